"""Run a pipeline in two worlds (neighbouring data sets), and compute the lower bounds of ε that follow."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bench import rng
from bench.audit.bounds import Bound, Scores, Values, epsilon_bound, largest, mu_bound
from bench.audit.scores import Learned, Moments, learned
from bench.errors import BenchError

WORLDS = (0, 1)
_HUGE = 1e300
_FEW = 4  # values whose directions need few runs
Pipeline = Callable[[int, int], Mapping[str, Values]]  # (world, seed) → point → released values (value,)
Score = Callable[[Values], float]
Tick = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Lower bounds of ε and μ, measured on the values released at an interception point."""

    epsilon: Bound
    """Lower bound of ε, without an assumption on the noise."""
    mu: Bound
    """Lower bound of μ (sensitivity divided by the noise's standard deviation), for a Gaussian mechanism."""
    scores: tuple[str, ...]
    """Names of the scores (functions of the released values); `Bound.score` is an index into these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Size of an audit: number of runs, δ and confidence. More runs can prove a larger ε. Raises `BenchError` if the
    runs are too few to prove any ε above 0."""

    runs: int = 2000
    """Number of runs in each world (of two neighbouring data sets)."""
    delta: float = 1e-5
    """δ of the (ε, δ) guarantee whose ε is bounded, in [0, 1)."""
    confidence: float = 0.95
    """Probability with which each bound holds, in (0, 1)."""
    seed: int = 0
    """Seed from which the seeds of all runs follow."""

    def __post_init__(self) -> None:
        if not 0 <= self.delta < 1:
            raise BenchError(f"δ must be at least 0 and below 1, got {self.delta:g}; 1e-5 is usual")
        if not 0.5 <= self.confidence < 1:
            raise BenchError(f"the confidence must be at least .5 and below 1, got {self.confidence:g}; .95 is usual")
        if self.runs < 2 or self.largest <= 0:
            raise BenchError(
                f"{self.runs} runs prove no ε above 0 at δ = {self.delta:g} with confidence {self.confidence:g}; "
                f"{self._least()}"
            )

    @property
    def tested(self) -> int:
        """Number of runs in each world (data set) that bound the probabilities of the chosen event, a score above or
        below a threshold. The other runs choose the event."""
        return self.runs - self.runs // 2

    def learning(self, values: int) -> int:
        """Return how many runs of an audit, in each world (of two neighbouring data sets), serve to learn scores that
        tell the worlds apart: a quarter of the first half of all runs if a run releases few `values` (a number),
        otherwise two thirds. The other runs of the first half choose the event; the second half bounds the event's
        probabilities."""
        half = self.runs // 2
        return half // 4 if values <= _FEW else 2 * half // 3

    @property
    def largest(self) -> float:
        """Largest lower bound of ε that an audit with this plan can measure, at its δ and confidence."""
        return largest(self.tested, delta=self.delta, confidence=self.confidence)

    def _least(self) -> str:
        tested = 1
        while tested < 10**6 and largest(tested, delta=self.delta, confidence=self.confidence) <= 0:
            tested *= 2
        return "take a smaller δ" if tested >= 10**6 else f"take {2 * tested} runs or more, such as 2000"


def measured(
    pipeline: Pipeline, plan: Plan, *, score: Score | None = None, tick: Tick | None = None
) -> dict[str, Measured]:
    """Run the pipeline `plan.runs` times in each world (of two neighbouring data sets), and return the lower bounds of
    ε and μ for the values released under each name: name → bounds. The first half of the runs chooses an event, a score
    above or below a threshold; the second half bounds the event's probabilities.

    - `pipeline`: function of world (0 or 1) and seed that returns the released values, name → (value,).
    - `plan`: number of runs, δ, confidence and seed.
    - `score`: function from the released values to their exact likelihood ratio, if known; None: some of the first half
      of the runs learn scores.
    - `tick`: function without arguments, called after every pair of runs (a run in each world); None: no call.

    Raises `BenchError` if all runs of both worlds release the same values."""
    first = int(rng.generator(plan.seed, "audit").integers(2**31))
    longest = max(len(values) for values in pipeline(0, first).values())
    learning = plan.learning(longest) if score is None else 0
    moments: dict[str, tuple[Moments, Moments]] = {}
    scorers: dict[str, Learned] = {}
    kept: dict[str, tuple[list[Values], list[Values]]] = {}
    for run in range(plan.runs):
        if run == learning:
            scorers = {point: _learned(worlds, point) for point, worlds in moments.items()}
        for world in WORLDS:
            for point, values in pipeline(world, first + 2 * run + world).items():
                if run < learning:
                    if point not in moments:
                        moments[point] = (Moments(values), Moments(values))
                    moments[point][world].add(values[None])
                else:
                    scores = scorers[point](values[None]) if score is None else _given(score, values[None])
                    kept.setdefault(point, ([], []))[world].append(scores)
        if tick is not None:
            tick()
    return {
        point: _bounds((np.concatenate(zero), np.concatenate(one)), learning, plan, scorers.get(point))
        for point, (zero, one) in kept.items()
    }


def _learned(worlds: tuple[Moments, Moments], point: str) -> Learned:
    scorer = learned(worlds)
    if scorer.nothing_differs:
        raise BenchError(
            f"{point}: all runs of both worlds have the same values; the two data sets and the seed change nothing"
        )
    return scorer


def _given(score: Score, values: Values) -> Values:
    scores = np.array([float(score(each)) for each in values])
    if np.isnan(scores).any():
        raise BenchError("the score is NaN; a likelihood ratio is a number, or ±infinity")
    finite: Values = np.nan_to_num(scores, posinf=_HUGE, neginf=-_HUGE)
    return finite[:, None]


def _bounds(worlds: tuple[Values, Values], learning: int, plan: Plan, scorer: Learned | None) -> Measured:
    """Return the bounds from the scores (run, score) of the two `worlds`, after the runs that learned scores."""
    selecting = plan.runs // 2 - learning
    names = ("given score",) if scorer is None else scorer.names
    every = range(len(names))
    select: list[Scores] = [(worlds[0][:selecting, at], worlds[1][:selecting, at]) for at in every]
    test: list[Scores] = [(worlds[0][selecting:, at], worlds[1][selecting:, at]) for at in every]
    return Measured(
        epsilon=epsilon_bound(select, test, delta=plan.delta, confidence=plan.confidence),
        mu=mu_bound(select, test, confidence=plan.confidence),
        scores=names,
    )


def seconds_of(pipeline: Pipeline, plan: Plan, *, probes: int = 3) -> float:
    """Return an estimate of the CPU seconds that an audit of `pipeline` with `plan` takes, from `probes` trial runs in
    each world (data set). The first run may load libraries, and does not count."""
    pipeline(0, 0)
    start = time.process_time()
    for probe in range(probes):
        for world in WORLDS:
            pipeline(world, probe)
    return (time.process_time() - start) / probes * plan.runs
