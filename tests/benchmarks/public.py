"""GradInv against a public implementation on the same gradients, labels, starts and budget:
`python -P tests/benchmarks/public.py --data mnist --signed hard`.

The peer is `breaching` (Geiping and others), `pip install --no-deps breaching==0.1.2 hydra-core omegaconf
antlr4-python3-runtime==4.9.3` beside our pins; it is no dependency of the project.  Its total variation
also counts the step from the image's edge to zero, a help where edges are black; `--variation paper`
gives it the paper's, which is ours.
"""

import argparse
import logging
import sys
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import measures

from bench.attacks.search.prior import total_variation
from bench.attacks.search.start import start
from bench.trip import Budget


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--signed", choices=("hard", "no"), default="hard")
    parser.add_argument("--variation", choices=("own", "paper"), default="own")
    parser.add_argument("--victims", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    victims = measures.case(args.data, args.victims, args.data_dir)
    attack = measures.attack("gradinv", stop=False, signed=args.signed == "hard")
    budget = Budget(evaluations=args.iterations, chunk=args.victims)
    our_seconds, ours = measures.timed(
        partial(attack.reconstruct, victims.some(range(args.victims)), budget, measures.KEY)
    )
    peer = Peer(victims, args.iterations, args.signed, args.variation)
    theirs = [measures.timed(partial(peer, victim)) for victim in range(args.victims)]
    our_db = measures.psnr(victims.truth, ours.inputs[:, 0])
    their_db = measures.psnr(victims.truth, torch.stack([image for _, image in theirs]))
    gap = our_db - their_db
    resampled = np.random.default_rng(0).choice(gap, (2000, len(gap)))
    low, high = np.quantile(np.median(resampled, 1), [0.025, 0.975])
    ours_ms = 1e3 * our_seconds / args.iterations / args.victims
    theirs_ms = 1e3 * median(seconds for seconds, _ in theirs) / args.iterations
    case = f"{args.data}, signed {args.signed}, variation {args.variation}"
    print(
        f"{case}, {args.victims} victims, {args.iterations} iterations: "
        f"median dB ours {np.median(our_db):.1f}, theirs {np.median(their_db):.1f}; "
        f"ours minus theirs, median of pairs {np.median(gap):+.2f} [{low:+.2f}, {high:+.2f}]; "
        f"ASR {np.mean(our_db >= 20):.2f} / {np.mean(their_db >= 20):.2f}; "
        f"ms an iteration and victim {ours_ms:.2f} / {theirs_ms:.2f}, {theirs_ms / ours_ms:.1f} times"
    )


class Peer:
    """The peer's attacker, set as its own configuration of the paper but for weight and length."""

    def __init__(self, case: measures.Case, iterations: int, signed: str, variation: str) -> None:
        import breaching  # type: ignore[import-not-found]

        self.case = case
        cfg: Any = breaching.get_attack_config("invertinggradients")
        cfg.optim.max_iterations, cfg.optim.callback = iterations, iterations
        cfg.optim.signed = signed if signed == "hard" else None
        cfg.regularization.total_variation.scale = 1e-4
        loss: Any = torch.nn.CrossEntropyLoss()
        self.attacker = breaching.attacks.prepare_attack(
            case.model, loss, cfg, {"device": torch.device("cpu"), "dtype": torch.float}
        )
        channels = case.truth.shape[1]
        for term in self.attacker.regularizers:  # it expects three channels
            term.weight, term.groups = term.weight[: 2 * channels], channels
            if variation == "paper":
                term.forward = lambda x: 1e-4 * total_variation(x[:, None])[0]

    def __call__(self, victim: int) -> Tensor:
        """Its image (*shape) of one victim."""
        case = self.case
        names = [name for name, _ in case.model.named_parameters()]
        observed, weights = case.gradient(victim), case.weights()
        payload = {
            "parameters": [weights[name] for name in names],
            "buffers": [],
            "metadata": SimpleNamespace(shape=tuple(case.truth.shape[1:]), modality="vision"),
        }
        shared = {
            "gradients": [observed[name] for name in names],
            "buffers": None,
            "metadata": {"num_data_points": 1, "labels": case.labels[victim : victim + 1], "local_hyperparams": None},
        }
        first = start("gaussian", case.reading, victim, 0, measures.KEY)
        with torch.enable_grad():
            images, _ = self.attacker.reconstruct([payload], [shared], {}, initial_data=first)
        image: Tensor = images["data"][0].detach()
        return image


if __name__ == "__main__":
    main()
