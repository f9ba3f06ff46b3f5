"""Share of crafted models that an honest client catches, for each attack, round and detector."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from torch import nn

from bench.answer.context import Memory, RunContext
from bench.answer.inserted import inserts, program, program_weights
from bench.answer.observation import attacked_rounds
from bench.answer.setup import load_data
from bench.answer.truth import draw_truth
from bench.answer.victims import batches_of
from bench.cell import AttackCell
from bench.detection import thresholds
from bench.detection.honest import AGES, EARLY, LATE, Honest, honest_models, later, received, seen
from bench.detection.thresholds import FIRST, LATER, UNION, Null
from bench.detectors.base import Detector, ReceivedModel
from bench.errors import BenchError
from bench.federated.training import accuracy
from bench.parameters import values
from bench.record.names import value_text
from bench.record.schema import AttackResult, Record, Share
from bench.registry import entries as registry
from bench.scoring.intervals import wilson
from bench.trip import Tensors

ROUNDS = {0: "first", EARLY: "second", LATE: "late"}  # finished rounds → name of the attacked round
_SPARE = 4  # federations for each that is needed: a training may diverge
NULL_SEEDS, TRIAL_SEEDS = 10_000, 20_000  # first seeds: no federation of the trials has a part in the null
_TESTED = 500  # examples of an accuracy
_LATER = 5  # rounds
Tick = Callable[[str], None]
_Accuracies = dict[str, float]  # field of `Caught` → a model's test accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Caught:
    """Result of detection in a certain round: how often an honest client's detectors give an alarm for the weights that
    an attack sends, and how much these weights lower the test accuracy, at once and five rounds later."""

    trials: int
    """Number of received models, each in a different federation."""
    alarms: Mapping[str, int]
    """Name of a detector → number of models with an alarm; the key `UNION` counts models with an alarm of any
    detector."""
    honest: float
    """Mean test accuracy of the honest models, in [0, 1]."""
    attacked: float
    """Mean test accuracy of the received models, in [0, 1]."""
    later_honest: float
    """Mean test accuracy in [0, 1] five honest rounds after the honest models."""
    later_back: float
    """The same after an attacked round and four honest rounds, if the server takes the honest models back."""
    later_attacked: float
    """The same, five honest rounds after the received models: the server trains on from the chosen weights."""

    def share(self, detector: str = UNION) -> Share:
        """Return the share of received models for which `detector` gave an alarm, with its 95 % interval; `UNION`
        stands for all detectors together."""
        count = self.alarms[detector]
        low, high = wilson(count, self.trials)
        return Share(value=count / self.trials, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures of an attack by a malicious server, which chooses the weights: reconstructed examples, and the share of
    weights that an honest client catches."""

    attack: str
    """Name of the attack with the parameters that differ from the defaults."""
    family: str
    """Name of the attack without parameters."""
    condition: str
    """Data set, model and batch size, in words."""
    cell: str
    """Id of the cell (experiment) with the attack's reconstructions."""
    reconstructed: Share
    """Share of reconstructed examples without a defense, from the record."""
    named: Share | None
    """Share of named examples (true examples picked from a gallery), from the record; None without a gallery."""
    seconds: float
    """Mean time of all detectors together, for a received model, in seconds."""
    added_bytes: int
    """Size of the parameters that the server inserts, in bytes; 0 for weights of the agreed model."""
    caught: Mapping[str, Caught]
    """Name of the attacked round, such as `first` → alarms for the weights sent in this round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Settings of a measurement of detection: the tested detectors, and the number of trials for each attack and
    round."""

    detectors: Mapping[str, Detector]
    """Name → tested detector."""
    context: RunContext
    """The run's folders and device."""
    memory: Memory
    """Loaded data sets, kept between trials."""
    trials: int
    """Number of received models for each attack and round."""
    tick: Tick = lambda text: None
    """Function that gets a text on the progress."""

    def scores(self, known: ReceivedModel) -> dict[str, float]:
        """Return the score of each detector, name → score, for `known`, the received model and the client's further
        knowledge."""
        return {name: thresholds.score(name, each, known) for name, each in self.detectors.items()}


def detectors() -> dict[str, Detector]:
    """Return all registered detectors with their default parameters, name → detector."""
    return {name: registry.instance("detectors", name, {}) for name in registry.names("detectors")}


def crafted(records: Iterable[Record]) -> list[Record]:
    """Select from `records` (results of cells) those for a measurement of detection: attacks by a malicious server,
    which chose the weights of an undefended round. The result has a record for each attack and condition (data, model
    and setting). Raises `BenchError` without such records."""
    chosen: dict[str, Record] = {}
    for record in records:
        cell, result = record.cell, record.result
        if isinstance(cell, AttackCell) and isinstance(result, AttackResult) and result.summary is not None:
            plain = cell.model_copy(update={"draw": 0, "seed": 0})
            if cell.grants.server != "listen" and cell.defense.name == "none":
                chosen.setdefault(plain.id, record)
    if not chosen:
        raise BenchError("no undefended record of an attack that chooses the weights; bench run --matrix server")
    return sorted(chosen.values(), key=lambda record: _label(_cell(record)))


def null_of(cell: AttackCell, bench: Bench, models: int, seed: int = NULL_SEEDS) -> Null:
    """Measure and return the detectors' scores of honest models, from which alarm thresholds follow: `models` models in
    the first round, and as many in later rounds. The models come from federations with the setting of the experiment
    `cell`, and with consecutive seeds from `seed` on. `bench` holds the detectors."""
    scores: dict[str, list[dict[str, float]]] = {FIRST: [], LATER: []}
    for stage, ages in ((FIRST, (0,)), (LATER, AGES)):
        seeds = range(seed, seed + _SPARE * models)
        for sent in islice(honest_models(cell, seeds, ages, bench.context, bench.memory), models):
            scores[stage].append(bench.scores(received(cell, sent)))
            bench.tick(f"honest models, {stage}: {len(scores[stage])} of {models}")
    return Null.of(cell, scores)


def rows(records: Sequence[Record], bench: Bench, null: Callable[[AttackCell], Null]) -> list[Row]:
    """Return a row of figures for each of `records`, attacks by a malicious server. The attack chooses weights in the
    first, the second and a late round of honest federations, and a client tests these weights with the detectors of
    `bench`. `null` is a function from a cell (experiment) to the honest models' scores, which give the thresholds."""
    trained: dict[str, list[tuple[Honest, _Accuracies]]] = {}
    made = []
    for record in records:
        cell = _cell(record)
        key = _condition(cell)
        if key not in trained:
            seeds = range(TRIAL_SEEDS, TRIAL_SEEDS + bench.trials)
            models = honest_models(cell, seeds, (*ROUNDS,), bench.context, bench.memory)
            trained[key] = [(sent, _of_honest(sent)) for sent in models]
        made.append(_row(record, cell, trained[key], bench, null(cell)))
    return made


def _of_honest(sent: Honest) -> _Accuracies:
    """Return the test accuracies that no attack changes: of the honest model, and after five and four honest rounds."""
    net, tested = sent.setup.model, sent.setup.data.test
    curve = later(sent, net, sent.weights, _LATER, _TESTED, every=1)
    return {
        "honest": accuracy(net, sent.weights, tested, _TESTED),
        "later_honest": curve[-1][1],
        "later_back": [reached for round_, reached in curve if round_ < _LATER][-1],
    }


def _row(
    record: Record, cell: AttackCell, federations: Sequence[tuple[Honest, _Accuracies]], bench: Bench, null: Null
) -> Row:
    alarms: dict[int, list[dict[str, bool]]] = {age: [] for age in ROUNDS}
    accuracies: dict[int, list[_Accuracies]] = {age: [] for age in ROUNDS}
    seconds, added = 0.0, 0
    for number, (sent, of_honest) in enumerate(federations):
        bench.tick(f"{_label(cell)}: {number + 1} of {len(federations)}")
        known, sent_model = attacked(cell, sent, bench.context, bench.memory)
        began = time.perf_counter()
        scores = bench.scores(known)
        seconds += (time.perf_counter() - began) / len(federations)
        alarms[sent.age].append(null.alarms(LATER if sent.age else FIRST, scores))
        added = _bytes(known.weights) - _bytes(sent.weights)
        accuracies[sent.age].append(
            of_honest
            | {
                "attacked": accuracy(sent_model, known.weights, sent.setup.data.test, _TESTED),
                "later_attacked": later(sent, sent_model, known.weights, _LATER, _TESTED, every=_LATER)[-1][1],
            }
        )
    result = record.result
    assert isinstance(result, AttackResult) and result.summary is not None
    return Row(
        attack=_label(cell),
        family=cell.attack.name,
        condition=_condition(cell),
        cell=record.id,
        reconstructed=result.summary.asr,
        named=result.summary.naming,
        seconds=seconds,
        added_bytes=added,
        caught={
            name: Caught(
                trials=len(alarms[age]),
                alarms={each: sum(one[each] for one in alarms[age]) for each in (*bench.detectors, UNION)},
                **{each: _mean([one[each] for one in accuracies[age]]) for each in accuracies[age][0]},
            )
            for age, name in ROUNDS.items()
            if alarms[age]
        },
    )


def attacked(cell: AttackCell, sent: Honest, context: RunContext, memory: Memory) -> tuple[ReceivedModel, nn.Module]:
    """Run the attack of the experiment `cell` in place of an honest server's round. Return the knowledge of the first
    attacked client, which its detectors test, and the module that runs the received weights (the agreed model, possibly
    behind inserted layers).

    - `sent`: the honest model, in place of which the attack sends its weights.
    - `context`: the run's folders and device.
    - `memory`: keeps loaded data sets.

    If the attack sends other weights in each of several rounds, those of the last round are returned."""
    victims = cell.model_copy(update={"seed": sent.seed})
    truth = draw_truth(victims, load_data(cell, context, memory), context.run)
    model = program(cell, sent.setup.model, sent.setup.data.shape)
    setup = replace(sent.setup, model=model, weights=program_weights(cell, model, dict(sent.weights)))
    sent_rounds, _ = attacked_rounds(victims, setup, truth, batches_of(victims, setup, truth.victims, truth.point))
    return seen(sent, sent_rounds[-1].weights, truth.victims.inputs[0, 0, 0], truth.victims.labels[0, 0, 0]), model


def _cell(record: Record) -> AttackCell:
    assert isinstance(record.cell, AttackCell)
    return record.cell


def _label(cell: AttackCell) -> str:
    """Return the attack's name with the parameters that differ from the defaults, such as `bins gain 1`."""
    default = values(registry.instance("attacks", cell.attack.name, {}))
    changed = [f"{key} {value_text(value)}" for key, value in cell.attack.params.items() if default.get(key) != value]
    changed += ["inserted layers"] if inserts(cell) else []
    changed += [f"{cell.grants.repeated_readings} rounds"] if cell.grants.varies else []
    return " ".join((cell.attack.name, ", ".join(changed))).strip()


def _condition(cell: AttackCell) -> str:
    return f"{cell.dataset.name}, {cell.model}, {cell.federated.batch} examples"


def _bytes(weights: Tensors) -> int:
    return sum(value.numel() * value.element_size() for value in weights.values())


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / len(shares)
