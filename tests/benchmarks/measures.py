"""Our attacks against the published loops, in turn in one process: readings, timings and ratios.

Both sides have the same gradient, start, label and stop rule.  `table.py` prints the rows,
`test_attacks.py` asserts on them.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench import api
from bench.attacks.base import Attack
from bench.attacks.search.matching import MatchingAttack, Parts
from bench.attacks.search.start import Start, start
from bench.datasets.loading import load
from bench.registry import entries as registry
from bench.rng import Key
from bench.scoring.metrics import psnr_db
from bench.trip import Budget, Reading, Reconstruction

sys.path.insert(0, str(Path(__file__).parent))
from baselines import Result, published_gradinv, published_lbfgs

# Of the published loop.  `map`, which has a start of its own, stands against the loop of CPL.
STARTS: dict[str, Start] = {"idlg": "gaussian", "cpl": "tile-2", "map": "tile-2"}
STOP_LOSS = 1e-6
INNER = 20  # evaluations of one outer step; both sides compare the loss after each
SUCCESS_DB = 20
# Our step rule with the suites' options: same objective, start, label and stop.  `map` has no such options, and stops
# later than the loop does: at 1e-9 of the zero-gradient loss.
OURS: dict[str, dict[str, Any]] = {
    name: {"line_search": "backtracking", "restarts": 3, "refine_float64": True} for name in ("idlg", "cpl")
}
ENDLESS: dict[str, dict[str, Any]] = {"idlg": {"stop_loss": 0.0}}  # options that remove an attack's stop
KEY = Key(seed=0)
Row = dict[str, Any]  # text and numbers by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Victims of one data set on `dlg-lenet`: `reading` holds all, `truth` (victim, *shape)."""

    name: str
    model: nn.Module
    reading: Reading
    truth: Tensor
    labels: Tensor

    def some(self, rows: range) -> Reading:
        """The reading of some victims alone, with their indices, so from the same starts."""
        values = {name: value[rows.start : rows.stop] for name, value in self.reading.values.items()}
        return replace(self.reading, values=values, indices=tuple(rows))

    def with_published_stop(self) -> "Case":
        """The case without public labels, so that the stop compares the loss as the baseline does, not normalised."""
        unknown = torch.full_like(self.reading.public_labels, -1)
        return replace(self, reading=replace(self.reading, public_labels=unknown))

    def gradient(self, victim: int) -> dict[str, Tensor]:
        return {name: value[victim, 0] for name, value in self.reading.values.items()}

    def weights(self) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.reading.weights.items()}


def case(name: str, victims: int, data_dir: Path | None, split: str = "training") -> Case:
    """The first `victims` examples of a split and their gradients at the weights of seed 0.

    Raises `MissingDataError` where the data are not there.
    """
    data = load(registry.instance("datasets", name, {}), name, data_dir)
    examples = getattr(data, split)
    truth = torch.from_numpy(examples.floats(slice(0, victims)))
    labels = torch.from_numpy(examples.labels[:victims].copy())
    model = api.build("dlg-lenet", shape=data.shape, classes=data.classes)
    each = [api.gradient(model, truth[n : n + 1], labels[n : n + 1]) for n in range(victims)]
    gradients = {name: torch.stack([gradient[name] for gradient in each]) for name in each[0]}
    reading = api.reading(
        gradients,
        model=model,
        shape=data.shape,
        classes=data.classes,
        public=data.public.floats(slice(0, 64)),
        public_labels=data.public.labels[:64],
    )
    return Case(name=name, model=model, reading=reading, truth=truth, labels=labels)


def attack(name: str, *, stop: bool = True, **params: Any) -> Attack:
    """A registered attack; with `stop`, under the stop rule of the baseline."""
    registered: Attack = registry.instance("attacks", name, params)
    if not stop or not isinstance(registered, MatchingAttack):
        return registered
    kind: Any = type(registered)

    class Stopped(kind):  # type: ignore[misc]  # its parts, but for the plan's stop
        def parts(self, reading: Reading, budget: Budget) -> Parts:
            parts: Parts = kind.parts(self, reading, budget)
            return replace(parts, limits=replace(parts.limits, stop_loss=STOP_LOSS, look_every=INNER))

    return Stopped(**params)


T = TypeVar("T")


def timed(work: Callable[[], T], clock: Callable[[], float] = time.perf_counter) -> tuple[float, T]:
    begin = clock()
    result = work()
    return clock() - begin, result


def reconstruction(
    setup: Case,
    name: str,
    *,
    victims: int = 32,
    sample: int = 6,
    outer: int = 300,
    rounds: int = 2,
    published: bool = False,
) -> Row:
    """`victims` of ours at once against `sample` of them one at a time; ours `rounds` times, interleaved.

    `published`: ours takes the published full steps, too; else our step rule.  Both stop at the same loss.
    """
    setup = setup.with_published_stop()
    ours_seconds: list[float] = []
    theirs: list[tuple[float, Result]] = []
    result: Reconstruction | None = None
    for turn in range(rounds):
        seconds, result = timed(partial(_ours, setup, name, range(victims), outer, published))
        ours_seconds.append(seconds)
        theirs += [timed(partial(_theirs, setup, name, v, outer)) for v in range(turn, sample, rounds)]
    assert result is not None
    order = [v for turn in range(rounds) for v in range(turn, sample, rounds)]
    our_db = psnr(setup.truth[:victims], result.inputs[:, 0])
    their_db = psnr(setup.truth[order], torch.stack([their.example for _, their in theirs]))
    ours_ms = [1e3 * s / victims for s in ours_seconds]
    theirs_ms = 1e3 * sum(s for s, _ in theirs) / len(theirs)
    our_wins, their_wins = float((our_db >= SUCCESS_DB).mean()), float((their_db >= SUCCESS_DB).mean())
    our_evaluations = float(result.evaluations.double().mean())
    their_evaluations = sum(their.evaluations for _, their in theirs) / len(theirs)
    per_evaluation = [1e3 * s / their.evaluations for s, their in theirs]
    return {
        "data": setup.name,
        "attack": name,
        "steps": "full" if published else "ours",
        "victims": victims,
        "sample": len(theirs),
        "ours ms": median(ours_ms),
        "ours low": min(ours_ms),
        "ours high": max(ours_ms),
        "theirs ms": theirs_ms,
        "ratio": theirs_ms / median(ours_ms),
        "ours ms/success": median(ours_ms) / our_wins if our_wins else float("inf"),
        "theirs ms/success": theirs_ms / their_wins if their_wins else float("inf"),
        "ours ms/evaluation": median(ours_ms) / our_evaluations,
        "theirs ms/evaluation": median(per_evaluation),
        "theirs IQR": _iqr(per_evaluation),
        "ratio/evaluation": median(per_evaluation) * our_evaluations / median(ours_ms),
        "ours evaluations": our_evaluations,
        "theirs evaluations": their_evaluations,
        "ours loss": float(result.loss.median()),
        "ours loss at most": float(result.loss.max()),
        "ours ASR": our_wins,
        "theirs ASR": their_wins,
        "ours ASR on sample": float((our_db[:sample] >= SUCCESS_DB).mean()),
        "ours dB": median(our_db.tolist()),
        "ours dB on sample": median(our_db[:sample].tolist()),
        "theirs dB": median(their_db.tolist()),
    }


def alone(setup: Case, name: str, *, sample: int = 3, outer: int = 300, published: bool = False) -> Row:
    """One victim by our engine against the published loop, in turn; ms per evaluation, medians; `ratio` is
    of whole reconstructions."""
    setup = setup.with_published_stop()
    ours, theirs, totals, ours_db, theirs_db = [], [], [], [], []
    for victim in range(sample):
        our_seconds, result = timed(partial(_ours, setup, name, range(victim, victim + 1), outer, published))
        their_seconds, loop = timed(partial(_theirs, setup, name, victim, outer))
        ours.append(1e3 * our_seconds / int(result.evaluations[0]))
        theirs.append(1e3 * their_seconds / loop.evaluations)
        totals.append(their_seconds / our_seconds)
        truth = setup.truth[victim : victim + 1]
        ours_db += psnr(truth, result.inputs[:, 0]).tolist()
        theirs_db += psnr(truth, loop.example[None]).tolist()
    return {
        "data": setup.name,
        "attack": name,
        "steps": "full" if published else "ours",
        "sample": sample,
        "ours ms/evaluation": median(ours),
        "theirs ms/evaluation": median(theirs),
        "ratio/evaluation": median(theirs) / median(ours),
        "ratio": median(totals),
        "ratio low": min(totals),
        "ratio high": max(totals),
        "ours dB": median(ours_db),
        "theirs dB": median(theirs_db),
    }


def gradinv(setup: Case, *, signed: bool, victims: int = 32, iterations: int = 100, rounds: int = 3) -> Row:
    """Milliseconds per iteration and victim, ours at once against one victim at a time, in turn."""
    ours, theirs = [], []
    method = attack("gradinv", stop=False, signed=signed)
    for victim in range(rounds):
        budget = Budget(evaluations=iterations, chunk=victims)
        seconds, _ = timed(partial(method.reconstruct, setup.some(range(victims)), budget, KEY))
        ours.append(1e3 * seconds / iterations / victims)
        seconds, _ = timed(partial(_theirs_gradinv, setup, victim, iterations, signed))
        theirs.append(1e3 * seconds / iterations)
    return {
        "data": setup.name,
        "attack": "gradinv, signed" if signed else "gradinv",
        "victims": victims,
        "ours ms/iteration": median(ours),
        "theirs ms/iteration": median(theirs),
        "ratio": median(theirs) / median(ours),
        "ours low": min(ours),
        "ours high": max(ours),
        "theirs low": min(theirs),
        "theirs high": max(theirs),
    }


def scaling(setup: Case, name: str, counts: tuple[int, ...], *, evaluations: int = 60) -> Iterator[Row]:
    """Milliseconds per evaluation and victim with ever more victims in one chunk; nothing stops early."""
    method = attack(name, stop=False, **ENDLESS.get(name, {}))
    for count in counts:
        budget = Budget(evaluations=evaluations, chunk=count)
        seconds, result = timed(partial(method.reconstruct, setup.some(range(count)), budget, KEY))
        spent = int(result.evaluations.sum())
        yield {"data": setup.name, "attack": name, "victims": count, "ours ms/evaluation": 1e3 * seconds / spent}


def strength(setup: Case, name: str, *, victims: int = 100, outer: int = 300, stop: bool = True) -> Row:
    """How many of `victims` ours reconstructs, and how well, with the baseline's stop or to the end: until no
    step in double precision helps."""
    method = attack(name, stop=stop, **OURS.get(name, {}), **ENDLESS.get(name, {}))
    budget = Budget(evaluations=INNER * outer, chunk=32)
    seconds, result = timed(partial(method.reconstruct, setup.some(range(victims)), budget, KEY))
    db = psnr(setup.truth[:victims], result.inputs[:, 0])
    return {
        "data": setup.name,
        "attack": name,
        "to the end": not stop,
        "victims": victims,
        "ASR": float((db >= SUCCESS_DB).mean()),
        "dB": median(db.tolist()),
        "dB least": float(db.min()),
        "evaluations": float(result.evaluations.double().mean()),
        "restarts": int(result.restarts.sum()),
        "ms": 1e3 * seconds / victims,
    }


def workers(name: str, attack_name: str, *, count: int, victims: int = 32, outer: int, data_dir: Path | None) -> Row:
    """Milliseconds per victim of `count` processes that begin together, each with one thread and `victims`."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(count)
    with context.Pool(count, _join, (barrier,)) as pool:
        seconds = pool.starmap(_share, [(name, attack_name, victims, outer, data_dir)] * count, chunksize=1)
    return {
        "data": name,
        "attack": attack_name,
        "workers": count,
        "victims": count * victims,
        "ms a victim": 1e3 * max(seconds) / count / victims,
    }


_barriers: list[Any] = []  # of a worker: where all wait before they begin


def _join(barrier: Any) -> None:
    _barriers.append(barrier)


def _share(name: str, attack_name: str, victims: int, outer: int, data_dir: Path | None) -> float:
    torch.set_num_threads(1)
    setup = case(name, victims, data_dir).with_published_stop()
    _ours(setup, attack_name, range(victims), 1, False)
    _barriers[0].wait()
    return timed(partial(_ours, setup, attack_name, range(victims), outer, False))[0]


def _ours(setup: Case, name: str, rows: range, outer: int, published: bool) -> Reconstruction:
    budget = Budget(evaluations=INNER * outer, chunk=32)
    return attack(name, **({} if published else OURS.get(name, {}))).reconstruct(setup.some(rows), budget, KEY)


def _theirs(setup: Case, name: str, victim: int, outer: int) -> Result:
    first = start(STARTS[name], setup.reading, victim, 0, KEY)[0]
    label = int(setup.labels[victim])
    return published_lbfgs(setup.model, setup.weights(), setup.gradient(victim), label, first, outer, STOP_LOSS)


def _theirs_gradinv(setup: Case, victim: int, iterations: int, signed: bool) -> Result:
    first = start("gaussian", setup.reading, victim, 0, KEY)[0]
    label = int(setup.labels[victim])
    return published_gradinv(
        setup.model, setup.weights(), setup.gradient(victim), label, first, iterations, signed=signed
    )


def psnr(truth: Tensor, guess: Tensor) -> NDArray[np.float64]:
    """dB per victim, (victim, *shape) twice → (victim,)."""
    return psnr_db(truth[:, None].numpy(), guess[:, None].numpy())[:, 0]


def _iqr(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4)
    return high - low
