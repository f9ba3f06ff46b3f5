"""Thresholds at 5 % false alarms, from the scores of honest received models: for each detector and for their union."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from math import inf, isnan
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bench.cell import AttackCell
from bench.detectors.base import Detector, ReceivedModel
from bench.errors import BenchError, PluginError
from bench.record.files import read_plain, write_atomically
from bench.registry.plugins import error_line

FALSE_ALARMS = 0.05
LEAST = 200  # honest models
FIRST, LATER = STAGES = ("first", "later")  # the client knows whether the round is the first
UNION = "any"  # all detectors together


@dataclass(frozen=True, slots=True, kw_only=True)
class Null:
    """Detectors' scores of honest received models (the null hypothesis), from which the thresholds follow."""

    net: str
    """Name of the model, with its parameters."""
    dataset: str
    """Name of the data set, with its content's hash."""
    batch: int
    """Number of examples with which a client tests a received model."""
    scores: Mapping[str, Mapping[str, tuple[float, ...]]]
    """Stage of the training ("first" round or "later" rounds) → detector → scores (model,), in the same order of models
    for all detectors."""

    @classmethod
    def of(cls, cell: AttackCell, scores: Mapping[str, Iterable[Mapping[str, float]]]) -> Self:
        """Make the null distribution, from which alarm thresholds follow, from detectors' scores of honest models.
        `cell` is the attack experiment that gives the setting. `scores` are stage ("first" or "later" round) → a map
        for each honest model, detector → score."""
        listed = {stage: list(models) for stage, models in scores.items()}
        return cls(
            **_setting(cell),
            scores={
                stage: {name: tuple(each[name] for each in models) for name in models[0]}
                for stage, models in listed.items()
            },
        )

    @property
    def detectors(self) -> tuple[str, ...]:
        """Names of the detectors with scores."""
        return tuple(self.scores[FIRST])

    def count(self, stage: str) -> int:
        """Return the number of honest models with scores in the `stage`, "first" or "later" round."""
        return len(self.scores[stage][self.detectors[0]])

    def threshold(self, stage: str, detector: str) -> float:
        """Return the score above which the `detector` gives an alarm in the `stage` ("first" or "later" round). An
        honest model has a larger score with a probability of at most 5 %."""
        falling = np.sort(self.scores[stage][detector])[::-1]
        return float(falling[int(FALSE_ALARMS * (len(falling) + 1)) - 1])

    def alarms(self, stage: str, scores: Mapping[str, float]) -> dict[str, bool]:
        """Return which detectors give an alarm for a received model: detector → True or False, and the key `UNION` for
        all detectors together.

        - `stage`: "first" or "later" round.
        - `scores`: detector → score of the received model.

        All detectors together give an alarm if the least of their p-values is small; the probability of a false alarm
        is at most 5 %, too. Raises `BenchError` for too few honest models."""
        raised = {name: score > self.threshold(stage, name) for name, score in scores.items()}
        least = min(_tail(self.scores[stage][name], score) for name, score in scores.items())
        return raised | {UNION: least <= self._union_threshold(stage)}

    def _union_threshold(self, stage: str) -> float:
        models: Iterable[NDArray[np.float64]] = (np.asarray(each) for each in self.scores[stage].values())
        shares = np.min([1 - (np.searchsorted(np.sort(each), each)) / len(each) for each in models], axis=0)
        fitting = [value for value in np.unique(shares) if np.mean(shares <= value) <= FALSE_ALARMS]
        threshold = float(fitting[-1] if fitting else shares.min() - 1 / len(shares))
        if threshold < 1 / (len(shares) + 1):  # below every p-value
            raise BenchError(
                f"the union of {len(self.scores[stage])} detectors has no threshold at 5 % false alarms from "
                f"{len(shares)} honest models; give more --models"
            )
        return threshold

    def write(self, path: Path) -> None:
        """Write the scores to the file `path`, as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(asdict(self), indent=1).encode())


def _tail(scores: tuple[float, ...], score: float) -> float:
    """Return the p-value of a `score` among the honest models' `scores`."""
    return (1 + sum(each >= score for each in scores)) / (len(scores) + 1)


def read(path: Path, cell: AttackCell, detectors: Iterable[str]) -> Null:
    """Read and return the honest models' scores in the file `path`. Raises `BenchError` for an unreadable file, another
    model, data set or batch size than in the experiment `cell`, fewer than 200 models in a stage, a score that is NaN,
    and for a detector in `detectors` without scores."""
    try:
        content = json.loads(read_plain(path))
        null = Null(
            **{
                **content,
                "scores": {s: {n: tuple(map(float, v)) for n, v in content["scores"][s].items()} for s in STAGES},
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BenchError(f"{path}: no file of thresholds; remove the file, and bench detect makes another") from None
    for name, value in _setting(cell).items():
        if (there := getattr(null, name)) != value:
            raise BenchError(f"{path}: thresholds for {name} {there}, not {value}; leave out --thresholds")
    for stage, by_detector in null.scores.items():
        counts = {len(values) for values in by_detector.values()}
        if (counts and len(counts) > 1) or min(counts, default=0) < LEAST:
            raise BenchError(
                f"{path}: thresholds from {min(counts, default=0)} honest models in stage {stage}, "
                f"at least {LEAST} are needed; leave out --thresholds"
            )
        if any(isnan(value) for values in by_detector.values() for value in values):
            raise BenchError(f"{path}: a score is NaN; remove the file, and bench detect makes another")
        if missing := sorted({*detectors} - {*by_detector}):
            raise BenchError(f"{path}: no scores of the detector {missing[0]}; leave out --thresholds")
    return null


def score(name: str, detector: Detector, received: ReceivedModel) -> float:
    """Return the score of the `detector` called `name` for a `received` model (with the client's further knowledge).
    Weights of another architecture than agreed have the score -infinity for all detectors but `architecture`. Raises
    `PluginError` for NaN, for a score that is no number, and for an exception in the detector."""
    if not received.agreed and name != "architecture":
        return -inf
    try:
        value = float(detector.score(received))
    except Exception as error:
        raise PluginError(f"detector {name}: {error_line(error)}; mend its score") from None
    if isnan(value):
        count = len(received.inputs)
        raise PluginError(f"detector {name} gives NaN for a client with {count} examples; return a number")
    return value


def _setting(cell: AttackCell) -> dict[str, Any]:
    dataset = f"{cell.dataset.name} {cell.dataset.sha256[:16]}"
    return {"net": str(cell.model), "dataset": dataset, "batch": cell.federated.batch}
