"""Audits of the defenses on a trade-off board, at the strengths calibrated for level L1."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.audit import planted
from bench.audit.measure import Plan
from bench.audit.planted import Subject
from bench.audit.result import Audit
from bench.calibration.measure import federations
from bench.cell import Entry, Federated
from bench.contracts.situations import data
from bench.contracts.trials import trial_in
from bench.defenses.base import Defense
from bench.leaderboard.tradeoff import setting, standings
from bench.matrix.feasible import unbuildable
from bench.matrix.read import read
from bench.matrix.typed import entries, split
from bench.points import POINTS
from bench.record import audits
from bench.record.audits import Audited
from bench.record.tradeoff import NAMED, Tradeoff
from bench.registry import entries as registry

MATRICES = (
    "tradeoff",
    "tradeoff-cifar10",
    "tradeoff-adult",
    "tradeoff-text",
    "tradeoff-unlabelled",
    "tradeoff-cnn",
    "tradeoff-block",
)
_UNITS = 4  # in each hidden layer: ε follows from clip, noise and the number of tensors, never from a layer's width
_OF_DIGITS = Entry(name="mlp", params={"hidden": (_UNITS,)})  # in place of a model that does not fit digits


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A defense on a trade-off board, at a strength calibrated for L1, and the interception points with this
    strength."""

    dataset: str
    """Name of the data set."""
    model: str
    """Name of the model."""
    setting: str
    """Defense with its parameters, such as `dp-sgd:clip=0.5,sigma=1.01`."""
    points: tuple[str, ...]
    """Interception points at which the board has this strength."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """Federated setting of a board."""

    federated: Federated
    """Clients, clients per round, and batch."""
    rounds: int
    """Number of rounds of the training."""
    model: Entry
    """The model, with its parameters."""


def placed(tradeoff: Tradeoff) -> tuple[Placed, ...]:
    """Return the defenses of `tradeoff` that meet level L1 (at most chance + 5 percentage points of the examples are
    named), each at its calibrated strength."""
    found: dict[tuple[str, str, str], dict[str, None]] = {}
    for point in POINTS:
        for (dataset, model), ranked in standings(tradeoff, point).items():
            for each in ranked:
                if (at := each.at.get(NAMED[0])) is not None:
                    found.setdefault((dataset, model, setting(each.row, at)), {})[each.row.point] = None
    return tuple(
        Placed(dataset=dataset, model=model, setting=text, points=tuple(points))
        for (dataset, model, text), points in found.items()
    )


def audit_board(folder: Path, tradeoff: Tradeoff, plan: Plan, say: Callable[[str], None]) -> tuple[Audited, ...]:
    """Audit the defenses of `tradeoff` at L1, write the file `audits.json` into `folder` after each defense, and return
    all audits. Defenses with audits of the same plan in this file are not audited again.

    - `plan`: number of runs, δ, confidence and seed.
    - `say`: function that gets a line of text for each defense.

    An audited round has the board's clients per round, examples, rounds and number of tensors; digits are the examples,
    hidden layers have four units, and an `mlp` takes the place of a model that does not fit digits. Raises
    `RecordError` for a damaged file."""
    places, where = placed(tradeoff), dict(_federations())
    wanted = {(each.dataset, each.model, each.setting) for each in places}
    kept = {each.key: each for each in audits.read(folder) if _same(each, plan)}
    kept = {key: each for key, each in kept.items() if (each.dataset, each.model, each.setting) in wanted}
    for place in places:
        keys = [(place.dataset, place.model, point, place.setting) for point in place.points]
        if all(key in kept for key in keys):
            continue
        if (place.dataset, place.model) not in where:
            say(f"{place.dataset}, {place.model}: no shipped federated setting, not audited")
            continue
        found = _subject(place, where[place.dataset, place.model])
        if isinstance(found, str):
            say(f"{place.setting}: not audited, {found}")
            continue
        for audit in _run(found, place.points, plan):
            kept[place.dataset, place.model, audit.point, place.setting] = _audited(place, audit, plan)
        audits.write(folder, kept.values())
        say(f"{place.dataset}, {place.setting}: {', '.join(_line(kept[key]) for key in keys if key in kept)}")
    audits.write(folder, kept.values())
    return tuple(kept.values())


def _federations() -> Iterator[tuple[tuple[str, str], _Where]]:
    for name in MATRICES:
        for each in federations(read(name)):
            row = each.trainings[0]
            model = row["model"] if _fits_digits(row["model"]) else _OF_DIGITS
            where = _Where(federated=row["federated"], rounds=row["rounds"], model=model)
            yield (each.dataset, each.model), where


def _fits_digits(model: Entry) -> bool:
    """Return whether the model reads 8 × 8 images; `fed-cnn` would have an empty layer."""
    entry, digits = registry.load("models", model.name), data()
    pictures = "image" in getattr(entry, "takes", ())
    return pictures and unbuildable(entry, json.dumps(model.params), digits.shape, digits.classes) is None


def _subject(place: Placed, where: _Where) -> Subject | str:
    """Return the defense in a round of the board's federation, or the reason why it cannot be audited."""
    name, params = split(entries([place.setting], "--defense")[0])
    defense: Defense = registry.instance("defenses", name, params)
    network = dict(where.model.params)
    if "hidden" in network:
        network["hidden"] = (_UNITS,) * len(network["hidden"])
    try:
        trial = trial_in(
            defense,
            where.federated,
            clients=tuple(range(where.federated.per_round)),
            rounds=where.rounds,
            network=where.model.name,
            params=network,
        )
        mechanism = defense.mechanism(trial.stages.setting)
    except ValueError as error:
        return str(error)
    if mechanism is None:
        return defense.no_epsilon
    return Subject(name=place.setting, defense=defense, trial=trial, mechanism=mechanism)


def _run(subject: Subject, points: Sequence[str], plan: Plan) -> Iterator[Audit]:
    pipeline, places = planted.pipeline_of(subject)
    for audit in planted.audit_defense(subject, pipeline, places, plan):
        if audit.point in points:
            yield audit


def _audited(place: Placed, audit: Audit, plan: Plan) -> Audited:
    return Audited(
        dataset=place.dataset,
        model=place.model,
        point=audit.point,
        setting=place.setting,
        stated=_short(audit.stated),
        valid=None if audit.claim is None else _short(audit.claim.epsilon),
        absent=audit.absent,
        least=_short(audit.epsilon.value) or 0.0,
        gaussian=None if audit.claim is None or audit.claim.mu is None else _short(audit.gaussian),
        refuted=audit.violated,
        most=_short(plan.largest) or 0.0,
        runs=plan.runs,
        delta=plan.delta,
        confidence=plan.confidence,
        seed=plan.seed,
    )


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _same(each: Audited, plan: Plan) -> bool:
    return dataclasses.astuple(plan) == (each.runs, each.delta, each.confidence, each.seed)


def _line(each: Audited) -> str:
    valid = "–" if each.valid is None else f"{each.valid:.3g}"
    return f"{each.point} valid {valid}, audited ≥ {each.proven:.3g}"
