"""Records of one question → the worst-case attack success rate, picture by picture, and what it is held
against: the best guess without the gradient."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from bench.points import POINTS
from bench.record.store import Record
from bench.scoring.intervals import clustered_share, wilson
from bench.scoring.summary import median

SNR_CAP_DB = 120.0  # of `bench.scoring.reading`: the reading is the undefended one
BASELINES = ("prior-", "labels-only")  # attackers whose pictures owe nothing to the gradient
Picture = tuple[int, int, int, int]  # seed, draw, reading, picture
_T = TypeVar("_T")


# Figure of a picture → what one that failed counts as in a median.
FIGURES = {"psnr_db": -np.inf, "rmse": np.inf, "ssim": -np.inf, "lpips": np.inf}


@dataclass(slots=True)
class Worst:
    """One defense at one point: `leaked` picture → whether any attack succeeded; `by_attack` the same
    for each, `figures` name → attack → picture → value (NaN where it failed); `prior_db` the best guess
    without the gradient; what did not count and why."""

    leaked: dict[Picture, bool] = field(default_factory=dict)
    by_attack: dict[str, dict[Picture, bool]] = field(default_factory=dict)
    figures: dict[str, dict[str, dict[Picture, float]]] = field(
        default_factory=lambda: {name: {} for name in FIGURES}
    )
    prior_db: dict[Picture, float] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    crashed: dict[str, str] = field(default_factory=dict)
    failed: set[Picture] = field(default_factory=set)  # some attack crashed, diverged or gave no number
    undistorted: bool = True  # whether every reading was bit-equal to the undefended one

    def add(self, record: Record, attack: str) -> None:
        """Count one cell, of the attack of that name."""
        cell = record.cell
        if record.status == "n/a":
            self.absent[attack] = record.reason or "no reason given"
            return
        if record.status == "crashed":
            self.crashed[attack] = record.reason or "no reason given"
            # a crash is no protection, and leaves no denominator smaller
            for reading in range(cell["readings"]):
                for number in range(_pictures(cell)):
                    key = (cell["seed"], cell["draw"], reading, number)
                    self.leaked.setdefault(key, False)
                    self.failed.add(key)
            return
        self.undistorted &= record.summary.get("reading_snr_db_least") == SNR_CAP_DB
        own = self.by_attack.setdefault(attack, {})
        figures = {name: each.setdefault(attack, {}) for name, each in self.figures.items()}
        for key, picture in pictures(record):
            own[key] = bool(picture["success"])
            self.leaked[key] = self.leaked.get(key, False) or own[key]
            for name, each in figures.items():
                each[key] = number_of(picture, name)
            prior = np.fmax(number_of(picture, "best_floor_db"), self.prior_db.get(key, np.nan))
            self.prior_db[key] = float(prior)
            if picture["status"] in ("diverged", "nan"):
                self.failed.add(key)

    @property
    def asr(self) -> float | None:
        """Share of pictures leaked to the worst attacker; None where nothing was scored."""
        return sum(self.leaked.values()) / len(self.leaked) if self.leaked else None

    @property
    def lower_bound(self) -> bool:
        """Whether a picture that nobody got back was met by a failed attack: the true rate may be higher."""
        return any(not self.leaked[picture] for picture in self.failed)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 %, with what belongs together counted together (`clusters`)."""
        return share_interval(self.leaked)

    @property
    def at_least_once(self) -> float | None:
        """Share of pictures that leaked on some draw of the defense's noise; None where there was one draw."""
        if len({draw for _, draw, _, _ in self.leaked}) < 2:
            return None
        once: dict[tuple[int, int, int], bool] = {}
        for (seed, _, reading, picture), leaked in self.leaked.items():
            place = (seed, reading, picture)
            once[place] = once.get(place, False) or leaked
        return sum(once.values()) / len(once)

    @property
    def best(self) -> tuple[str, float] | None:
        """The attack with the highest rate of its own, of equal ones that of the highest median PSNR, and
        that rate; a baseline only where there is nothing else.

        Where the defense's noise was drawn several times the attack is chosen on the first draw and its rate
        is of the others: the best of several attacks on one draw is partly lucky with it.
        """
        attacks = [name for name in self.by_attack if not name.startswith(BASELINES)] or list(self.by_attack)
        first = [name for name in attacks if self._of(self.by_attack[name], chosen=True)]
        if not first:
            return None
        name = max(first, key=lambda one: (self._rate(one, chosen=True), self._median_db(one)))
        return name, self._rate(name, chosen=False)

    def best_median(self, figure: str) -> float | None:
        """Median of a figure of `FIGURES` over the best attack's pictures, a failed one worse than any; None
        where it is no number."""
        best = self.best
        return None if best is None else self.quoted(best[0], figure)

    def quoted(self, attack: str, figure: str) -> float | None:
        """Median of a figure over an attack's pictures, on those draws on which `best` is quoted."""
        return self._median(attack, figure, chosen=False)

    @property
    def best_psnr_db(self) -> float | None:
        """Median PSNR of the best attack in dB."""
        return self.best_median("psnr_db")

    @property
    def best_rmse(self) -> float | None:
        """Median RMSE of the best attack."""
        return self.best_median("rmse")

    def rate(self, attack: str) -> float:
        """One attack's own success rate over all its pictures."""
        own = self.by_attack[attack]
        return sum(own.values()) / len(own)

    @property
    def prior_psnr_db(self) -> float | None:
        """Median PSNR in dB of the best guess without the gradient on each picture, which any success has
        to beat by 3 dB; None where nobody guessed."""
        return median(_array(self.prior_db), -np.inf) if self.prior_db else None

    def _of(self, values: Mapping[Picture, _T], *, chosen: bool) -> list[_T]:
        """The values on the first draw, or on the others; all of them where there is one draw."""
        draws = {draw for _, draw, _, _ in self.leaked}
        first = min(draws, default=0)
        return [value for key, value in values.items() if len(draws) < 2 or (key[1] == first) == chosen]

    def _rate(self, attack: str, *, chosen: bool) -> float:
        own = self._of(self.by_attack[attack], chosen=chosen)
        return sum(own) / len(own) if own else 0.0

    def _median(self, attack: str, figure: str, *, chosen: bool) -> float | None:
        values = np.array(self._of(self.figures[figure][attack], chosen=chosen), np.float64)
        return median(values, FIGURES[figure])

    def _median_db(self, attack: str) -> float:
        found = self._median(attack, "psnr_db", chosen=True)
        return -np.inf if found is None else found


def pictures(record: Record) -> Iterable[tuple[Picture, Mapping[str, Any]]]:
    """Every picture of a cell's record with its key."""
    for reading, victim in enumerate(record.victims):
        for number, picture in enumerate(victim["pictures"]):
            yield (record.cell["seed"], record.cell["draw"], reading, number), picture


def clusters(keys: Sequence[Picture]) -> list[int] | None:
    """The cluster of each picture, by number: the weight seed where there are several, else the reading (a
    batch's pictures and a reading's draws belong together); None where every cluster is one picture, or
    there is one alone."""
    seeds = [(key[0],) for key in keys]
    found = seeds if len(set(seeds)) > 1 else [(key[0], key[2]) for key in keys]
    numbers = {cluster: number for number, cluster in enumerate(dict.fromkeys(found))}
    return None if len(numbers) in (1, len(keys)) else [numbers[cluster] for cluster in found]


def share_interval(hits: Mapping[Picture, bool]) -> tuple[float, float] | None:
    """The 95 % interval of a share of pictures; Wilson's where there are no clusters to resample."""
    if not hits:
        return None
    values, together = list(hits.values()), clusters(list(hits))
    return wilson(sum(values), len(values)) if together is None else clustered_share(values, together)


def number_of(picture: Mapping[str, Any], name: str) -> float:
    """One figure of a picture; NaN where the record has none."""
    value = picture.get(name)
    return np.nan if value is None else float(value)


def _array(values: Mapping[Picture, float]) -> Any:
    return np.array(list(values.values()), np.float64)


def _pictures(cell: Mapping[str, Any]) -> int:
    federated = cell["federated"]
    return POINTS[cell["point"]].examples(
        batch=federated["batch"], steps=federated["steps"], senders=federated["per_round"]
    )
