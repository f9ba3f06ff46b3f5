"""The gain of more evaluations, on examples of the tuning split, which is never scored: the suites' budgets are
chosen by this.  `python -P tests/benchmarks/budgets.py --data mnist`
"""

import argparse
import sys
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).parent))
import measures

from bench.trip import Budget

BUDGETS = {"cpl": (125, 250, 500, 1200, 2400), "idlg": (125, 250, 500, 1200, 2400), "gradinv": (250, 500, 1000, 2000)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--attacks", nargs="+", choices=BUDGETS, default=list(BUDGETS))
    parser.add_argument("--victims", type=int, default=64)
    parser.add_argument("--most", type=int, default=2400, help="evaluations at most")
    parser.add_argument("--data-dir", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    case = measures.case(args.data, args.victims, args.data_dir, split="tuning")
    for name in args.attacks:
        attack = measures.attack(name, stop=False, **measures.OURS.get(name, {}))
        for evaluations in (n for n in BUDGETS[name] if n <= args.most):
            budget = Budget(evaluations=evaluations, chunk=32)
            result = attack.reconstruct(case.some(range(args.victims)), budget, measures.KEY)
            db = measures.psnr(case.truth, result.inputs[:, 0])
            share, mean = float((db >= measures.SUCCESS_DB).mean()), float(result.evaluations.double().mean())
            print(
                f"{args.data} {name}: {evaluations} evaluations at most, {mean:.0f} used: ASR {share:.2f}, "
                f"median {median(db.tolist()):.1f} dB",
                flush=True,
            )


if __name__ == "__main__":
    main()
