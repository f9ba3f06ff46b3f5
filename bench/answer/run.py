"""Cell → record: the trip, for one cell.

data, weights → victims → reading → attack → reconstruction → scores → record
"""

import os
import platform
import resource
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench import __version__, rng
from bench.answer.readings import reading_hash, show, take_reading, to_device
from bench.answer.victims import draw_victims, pictures
from bench.attacks.base import Attack
from bench.cell import AttackCell, CheckpointWeights, FileWeights, TrainingCell
from bench.datasets.base import Data
from bench.datasets.loading import load
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.accounting.report import EpsilonReport
from bench.defenses.base import Defense, Public, Setting
from bench.errors import BenchError, DataError, NotApplicable, PluginError, StorageError
from bench.federated import bayesian, replay, resume
from bench.federated.batches import clients_of
from bench.federated.cost import cost as cost_of
from bench.federated.describe import is_random, untouched
from bench.federated.privacy import NO_MECHANISM, Account, account, at_point
from bench.federated.stages import Stages, stages
from bench.federated.training import Course, Progress, begin, train
from bench.gradients import one_hot
from bench.models.base import Model
from bench.points import Point, point
from bench.record import fingerprint as source
from bench.record.checkpoints import (
    checkpoint_path,
    checkpoint_sha256,
    fit,
    read_about,
    read_weights,
    write_weights,
)
from bench.record.store import Record, write_arrays
from bench.registry import entries as registry
from bench.rng import Key
from bench.scoring.assign import paired
from bench.scoring.lpips_metric import load as load_lpips
from bench.scoring.priors import floors
from bench.scoring.reading import reading_cosine, reading_snr
from bench.scoring.score import score
from bench.trip import Budget, Reading, Reconstruction

GALLERY = 1000
TRAILS = 8  # readings whose way is kept: as many as a picture strip shows
UNTRAINED_ROUNDS = 100  # T that schedules are planned over where no training gives one (Fed-αCDP §7)
REUSE = 64  # reconstructions a worker remembers
KEPT_BYTES = 500e6  # of data sets that a worker keeps beside the one in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run lives, and on what: run folder, data folder, device."""

    run: Path
    data_dir: Path | None = None
    device: str = "cpu"
    threads: int = 1  # that a training's chunks may take
    saved_every: float = 60.0  # seconds between two saved states of a training
    limit: float | None = None  # seconds that a cell may take
    blames_data: bool = (
        True  # data that are missing or altered here are the cell's crash, not the place's fault
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """How far a training cell is: rounds done of all, accuracy as last tested, ε so far (the paper's count)."""

    round: int
    rounds: int
    accuracy: float
    epsilon: float | None
    seconds_left: float


@dataclass(slots=True)
class Memory:
    """What a worker keeps between cells: loaded data, and reconstructions by what was asked of whom."""

    data: dict[str, Data] = field(default_factory=dict)
    reconstructions: dict[tuple[Any, ...], tuple[Reconstruction, str]] = field(default_factory=dict)


def run_cell(
    cell: AttackCell | TrainingCell, place: Place, memory: Memory,
    told: Callable[[Step], None] = lambda step: None,
) -> Record:  # fmt: skip
    """Run one cell to a record; whatever goes wrong inside is a status of the record, with its reason.

    `told` hears of every round of a training.  Raises `StorageError` where the run folder cannot be written, and
    `DataError` where the place says so: those are no fault of the cell's.
    """
    began, cpu = time.perf_counter(), time.process_time()
    try:
        if isinstance(cell, TrainingCell):
            outcome = _train(cell, place, memory, told)
        else:
            outcome = _attack(cell, place, memory)
    except NotApplicable as reason:
        outcome = Outcome(status="n/a", reason=str(reason))
    except StorageError:
        raise
    except DataError as error:
        if not place.blames_data:
            raise
        outcome = Outcome(status="crashed", reason=str(error))
    except BenchError as error:
        outcome = Outcome(status="crashed", reason=str(error))
    except Exception as error:
        outcome = Outcome(status="crashed", reason=_where(error))
    cost = {
        "wall_seconds": round(time.perf_counter() - began, 4),
        "cpu_seconds": round(time.process_time() - cpu, 4),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        **outcome.cost,
    }
    return Record(
        id=cell.id, status=outcome.status, reason=outcome.reason, cell=cell.model_dump(mode="json"),
        source=answering(cell, place.run), summary=outcome.summary, victims=outcome.victims,
        environment=environment(place), cost=cost, arrays=outcome.arrays,
    )  # fmt: skip


def answering(cell: AttackCell | TrainingCell, run: Path) -> dict[str, Any]:
    """The source of a cell in a run: its entries' code and, on a checkpoint, the weights by content."""
    found = source.cell_source(cell)
    if isinstance(cell, AttackCell) and isinstance(cell.weights, CheckpointWeights):
        try:
            found["weights"] = checkpoint_sha256(run, cell.weights.training, cell.weights.round)
        except (BenchError, NotApplicable) as reason:
            found["weights"] = str(reason)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What running a cell gives the record."""

    status: Any = "done"
    reason: str | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    victims: list[dict[str, Any]] = field(default_factory=list)
    arrays: str | None = None
    cost: dict[str, Any] = field(default_factory=dict)


def _attack(cell: AttackCell, place: Place, memory: Memory) -> Outcome:
    where = point(cell.point)
    data = _data(cell, place, memory)
    model, weights, round_ = _weights(cell, data, place)
    clients = clients_of(cell, data)
    training = replay.training_of(place.run, cell)
    public = _public(model, weights, data)
    setting = _setting(cell, clients, public, rounds=training.rounds if training else UNTRAINED_ROUNDS)
    defended = _stages(cell, setting, weights)
    whole = _whole_round(cell, defended, where)
    if training and round_ and defended.states:
        defended = _replayed(cell, training, place, data, model, weights, defended, round_)
    victims, batches = draw_victims(cell, data, clients, where, round_, whole=whole)
    reading = take_reading(cell, data, model, weights, victims, batches, defended, where, round_)
    attack: Attack = registry.instance("attacks", cell.attack.name, cell.attack.params)
    if reason := attack.refuses(reading):
        raise NotApplicable(reason)

    reconstruction, cost = _reconstruct(attack, reading, cell, place, memory)

    truth, labels, examples = pictures(victims, where)
    lpips, no_lpips = load_lpips() if data.kind == "image" else (None, "pictures alone have it")
    scores = score(
        truth.numpy(), labels.numpy(), reconstruction, kind=data.kind, groups=data.groups,
        floors=floors(data.public.floats(), data.public.labels, reconstruction.labels.numpy()),
        gallery=data.gallery.floats(slice(0, GALLERY)), lpips=lpips,
    )  # fmt: skip
    bare = Stages(setting=setting, transforms={}, states={})
    undefended = show(cell, data, model, weights, batches, bare, where, round_)
    trail, marks = _trail(reconstruction, scores.order)
    distorted, distortion = _distortion(reading, undefended)
    summary = {
        **scores.summary,
        **distortion,
        **_self_check(attack, reading, truth, labels, data, cell),
        **_at_point(cell, setting, where, reading, weights, round_),
        "private": data.private,
        "lpips_absent": no_lpips,
        "conditions": {
            **_conditions(weights, undefended, round_, data, reading),
            "described": cell.knowledge == "adaptive"
            and (reading.description is not None or untouched(defended, where)),
            "random": is_random(defended, where),
            **_trained(cell, place),
        },
        "notes": list(reconstruction.notes),
        **marks,
    }
    arrays = write_arrays(
        place.run,
        {
            "truth": truth.numpy(),
            "reconstruction": paired(reconstruction.inputs.numpy(), scores.order),
            **trail,
        },
    )
    rows = [
        {
            **row,
            **distorted[n],
            "clients": list(victims.clients[n]),
            "examples": examples[n].flatten().tolist(),
        }
        for n, row in enumerate(scores.readings)
    ]
    return Outcome(summary=summary, victims=rows, arrays=arrays, cost=cost)


def _replayed(
    cell: AttackCell, training: TrainingCell, place: Place, data: Data, model: nn.Module,
    weights: Mapping[str, Tensor], defended: Stages, round_: int,
) -> Stages:  # fmt: skip
    """The defense with its states at the checkpoint's round, followed over the training that made it."""
    replay.check_replayable(training, cell)
    clients = clients_of(training, data)
    architecture: Model = registry.instance("models", training.model.name, training.model.params)
    course = Course(cell=training, data=data, clients=clients, model=model)
    of_training = training.model_copy(update={"defense": cell.defense})
    initial = architecture.initial(model, training.seed)
    setting = _setting(training, clients, _public(model, initial, data), rounds=training.rounds)
    stages_ = _stages(of_training, setting, weights)
    kept = replay.cache_path(checkpoint_path(place.run, training.id, round_), cell)
    found = replay.states_at(course, initial, stages_, round_, kept, dict(weights))
    return replace(defended, states=found.states)


def _reconstruct(
    attack: Attack, reading: Reading, cell: AttackCell, place: Place, memory: Memory
) -> tuple[Reconstruction, dict[str, Any]]:
    """Attack the reading, or reuse what the same attack made of an equal one."""
    asked = (
        reading_hash(reading), cell.attack.model_dump_json(), cell.evaluations, cell.chunk, cell.seed,
    )  # fmt: skip
    if asked in memory.reconstructions:
        reconstruction, other = memory.reconstructions[asked]
        return reconstruction, {"reused_from": other, "attack_seconds": 0.0}
    began = time.perf_counter()
    reconstruction = _within_memory(attack, to_device(reading, torch.device(place.device)), cell)
    seconds = time.perf_counter() - began
    _well_formed(reconstruction, reading)
    if reading_hash(reading) != asked[0]:
        memory.data.clear()  # parts of the reading are views of the data
        raise PluginError(
            f"attack {cell.attack.name} wrote to the reading that it was given; let it work on copies: tensor.clone()"
        )
    if len(memory.reconstructions) >= REUSE:
        del memory.reconstructions[next(iter(memory.reconstructions))]
    memory.reconstructions[asked] = (reconstruction, cell.id)
    return reconstruction, {"attack_seconds": round(seconds, 4)}


def _within_memory(attack: Attack, reading: Reading, cell: AttackCell) -> Reconstruction:
    """Reconstruct; where the device runs out of memory, halve the chunk and go on, and say so."""
    chunk, notes = cell.chunk, list[str]()
    while True:
        try:
            budget = Budget(evaluations=cell.evaluations, chunk=chunk)
            found = attack.reconstruct(reading, budget, Key.of_attacker(cell.seed))
            return replace(found, notes=(*found.notes, *notes))
        except (MemoryError, RuntimeError) as error:
            if chunk == 1 or not _is_memory(error):
                raise
            torch.cuda.empty_cache()
            chunk = max(1, chunk // 2)
            notes.append(f"out of memory: went on with {chunk} readings at once")


def _is_memory(error: MemoryError | RuntimeError) -> bool:
    """Whether a device had no memory left; on a CPU torch says so in words alone."""
    known = isinstance(error, MemoryError | torch.OutOfMemoryError)
    return known or "can't allocate memory" in str(error)


def _train(cell: TrainingCell, place: Place, memory: Memory, told: Callable[[Step], None]) -> Outcome:
    """Train, from where an earlier run of the same code was cut off."""
    data = _data(cell, place, memory)
    architecture: Model = registry.instance("models", cell.model.name, cell.model.params)
    model = architecture.build(data.shape, data.classes).eval()
    weights = architecture.initial(model, cell.seed)
    clients = clients_of(cell, data)
    setting = _setting(cell, clients, _public(model, weights, data), rounds=cell.rounds)
    began = time.perf_counter()
    course = Course(
        cell=cell, data=data, clients=clients, model=model, device=torch.device(place.device),
        threads=place.threads,
    )  # fmt: skip
    defended = _stages(cell, setting, weights)
    spent = account(
        _defense(cell), setting, tensors=len(weights), coordinates=_coordinates(weights),
        examples=len(data.training),
    )  # fmt: skip
    answers, kept = answering(cell, place.run), resume.place(place.run, cell.id)
    start = resume.load(kept, begin(course, weights, defended), answers, cell.checkpoints)
    saved = began

    def after(now: Progress) -> bool:
        nonlocal saved
        goes_on = _goes_on(cell, spent, now)
        at = time.perf_counter()
        if goes_on and not now.diverged and at - saved > place.saved_every:
            resume.save(kept, now, answers)
            saved = at
        each = (at - began) / (now.round - start.round)
        told(
            Step(
                round=now.round, rounds=cell.rounds, accuracy=now.curve[-1][1],
                epsilon=spent.so_far(now.round) if spent else None,
                seconds_left=each * (cell.rounds - now.round),
            )
        )  # fmt: skip
        return goes_on

    trained = train(course, start, after) if _goes_on(cell, spent, start) else start
    seconds = time.perf_counter() - began
    summary = {
        "accuracy": trained.curve[-1][1] if not trained.diverged else 0.0,
        "curve": [list(pair_) for pair_ in trained.curve],
        "rounds": trained.round,
        "diverged": trained.diverged,
        "checkpoints": {
            str(round_): write_weights(
                checkpoint_path(place.run, cell.id, round_), tensors, _about(cell, round_, trained.curve)
            )
            for round_, tensors in sorted(trained.checkpoints.items())
        },
        **_privacy(spent, trained),
        **_bayesian(cell, course, trained, spent),
        "upload_bytes": sum(value.numel() * value.element_size() for value in weights.values()),
        "private": data.private,
    }
    kept.unlink(missing_ok=True)
    return Outcome(summary=summary, cost=_training_cost(course, start, seconds, trained.round - start.round))


def _training_cost(course: Course, start: Progress, seconds: float, rounds: int) -> dict[str, Any]:
    """Time of a round, and of one client's step beside the undefended one's."""
    found = cost_of(course, start)
    return {
        "seconds_per_round": round(seconds / max(1, rounds), 4),
        "milliseconds_per_step": round(found.milliseconds, 4),
        "undefended_milliseconds_per_step": round(found.undefended, 4),
        "overhead": round(found.ratio, 3),
        "overhead_quartiles": [round(found.low, 3), round(found.high, 3)],
    }


def _goes_on(cell: TrainingCell, spent: Account | None, now: Progress) -> bool:
    """Whether another round stays within what the cell asks: an accuracy to reach, an ε not to pass."""
    if cell.until_accuracy is not None and now.curve[-1][1] >= cell.until_accuracy:
        return False
    if cell.until_epsilon is None or spent is None:
        return True
    return spent.so_far(now.round + 1) <= cell.until_epsilon


def _bayesian(cell: TrainingCell, course: Course, trained: Progress, spent: Account | None) -> dict[str, Any]:
    """Bayesian ε beside the moments accountant's, at the rounds that were tested; nothing where none was asked."""
    if cell.bayesian is None:
        return {}
    accountant = bayesian.accountant(
        cell.bayesian, cell.federated, trained.stages, examples=len(course.data.training)
    )
    mechanism = spent.mechanism if spent and isinstance(spent.mechanism, Mechanism) else None
    tested = [round_ for round_, _ in trained.curve]
    by_round = accountant.by_round(trained.costs, mechanism, tested)
    reports = accountant.reports(trained.costs, trained.round)
    spent_ = {level: report.json() for level, report in reports.items()}
    return {"bayesian": {"by_round": by_round, "spent": spent_, "absent": accountant.absent}}


def _privacy(spent: Account | None, trained: Progress) -> dict[str, Any]:
    """ε by every convention; the headline is the tight one, of the released model."""
    if spent is None:
        return _figures((), None, NO_MECHANISM)
    if not trained.round:
        return _figures((), None, "no round ran: the first would pass the limit")
    found = spent.released(trained.round)
    return _figures(found, next(one for one in found if one.convention == "tight"), None)


def _figures(
    found: Sequence[EpsilonReport], headline: EpsilonReport | None, absent: str | None
) -> dict[str, Any]:
    """ε as a record has it: every figure, the headline's, and why there is none."""
    return {
        "privacy": [one.json() for one in found],
        "epsilon": None if headline is None else headline.epsilon,
        "epsilon_absent": absent if headline is None else headline.absent,
    }


def _about(cell: TrainingCell, round_: int, curve: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """What a checkpoint says of itself wherever its file goes; the accuracy where that round was tested."""
    return {
        "training": cell.id, "round": round_, "seed": cell.seed, "accuracy": dict(curve).get(round_),
        "dataset": cell.dataset.name, "data_sha256": cell.dataset.sha256, "bench": __version__,
    }  # fmt: skip


def _data(cell: AttackCell | TrainingCell, place: Place, memory: Memory) -> Data:
    key = cell.dataset.model_dump_json()
    data = memory.data.pop(key, None)
    if data is None:
        while memory.data and sum(kept.nbytes for kept in memory.data.values()) > KEPT_BYTES:
            del memory.data[next(iter(memory.data))]  # the one that was used longest ago
        entry = registry.instance("datasets", cell.dataset.name, cell.dataset.params)
        data = load(entry, cell.dataset.name, place.data_dir)
    memory.data[key] = data
    if data.sha256 != cell.dataset.sha256:
        raise DataError(
            f"data set {cell.dataset.name}: its content changed since the matrix was planned; run it again"
        )
    return data


def _weights(cell: AttackCell, data: Data, place: Place) -> tuple[nn.Module, dict[str, Tensor], int]:
    """The module in eval mode, its weights by name, and the training round they are from."""
    architecture: Model = registry.instance("models", cell.model.name, cell.model.params)
    model = architecture.build(data.shape, data.classes).eval()
    given = cell.weights
    if isinstance(given, FileWeights):
        path = Path(given.path)
        return model, fit(model, read_weights(path, sha256=given.sha256), where=str(path)), 0
    if isinstance(given, CheckpointWeights):
        path = checkpoint_path(place.run, given.training, given.round)
        sha256 = checkpoint_sha256(place.run, given.training, given.round)
        return model, fit(model, read_weights(path, sha256=sha256), where=str(path)), given.round
    return model, architecture.initial(model, cell.seed), 0


def _trained(cell: AttackCell, place: Place) -> dict[str, Any]:
    """Test accuracy of the weights and, of a file that says it, their training round."""
    given = cell.weights
    if isinstance(given, FileWeights):
        about = read_about(Path(given.path))
    elif isinstance(given, CheckpointWeights):
        about = read_about(checkpoint_path(place.run, given.training, given.round))
    else:
        about = {}
    round_, accuracy = about.get("round"), about.get("accuracy")
    known = {"round": round_} if isinstance(round_, int) else {}
    return {**known, "accuracy": accuracy if isinstance(accuracy, float) else None}


def _whole_round(cell: AttackCell, defended: Stages, where: Point) -> bool:
    """Whether what `where` shows of a client depends on the others of its round.

    Raises `NotApplicable` for colluders where there is nothing that they could tell.
    """
    across = defended.across
    whole = across is not None and where.sees(across)
    if cell.grants.colluders and (not whole or where.unit != "update"):
        raise NotApplicable(
            f"colluders tell what passed between clients before one's update was read; {cell.defense.name} at "
            f"{where.name} has none"
        )
    return whole


def _public(model: nn.Module, weights: Mapping[str, Tensor], data: Data) -> Public:
    """What a defense may be set up with: the weights at hand are the initial ones, or those attacked."""
    return Public(
        model=model, weights=weights, inputs=torch.from_numpy(data.public.floats()),
        labels=torch.from_numpy(data.public.labels), classes=data.classes,
    )  # fmt: skip


def _setting(
    cell: AttackCell | TrainingCell, clients: NDArray[np.int64], public: Public, *, rounds: int
) -> Setting:
    federated = cell.federated
    return Setting(
        clients=federated.clients, per_round=federated.per_round, rounds=rounds, steps=federated.steps,
        batch=federated.batch, client_examples=clients.shape[1], rate=federated.rate,
        moves=federated.rate if federated.algorithm == "fedsgd" else 1.0, public=public,
        colluders=cell.grants.colluders if isinstance(cell, AttackCell) else 0.0,
    )  # fmt: skip


def _defense(cell: AttackCell | TrainingCell) -> Defense:
    found: Defense = registry.instance("defenses", cell.defense.name, cell.defense.params)
    return found


def _stages(cell: AttackCell | TrainingCell, setting: Setting, weights: Mapping[str, Tensor]) -> Stages:
    try:
        return stages(_defense(cell), setting, _shapes(weights))
    except ValueError as error:
        raise NotApplicable(f"{cell.defense.name}: {error}") from None


def _coordinates(weights: Mapping[str, Tensor]) -> int:
    return sum(value.numel() for value in weights.values())


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}


def _distortion(
    reading: Reading, undefended: Mapping[str, Tensor]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Each reading against the undefended one, known to the harness alone, and all of them in short."""
    seen = {name: value.numpy() for name, value in reading.values.items()}
    plain = {
        name: value[:, None].expand(-1, len(reading.rounds), *value.shape[1:]).numpy()
        for name, value in undefended.items()
    }
    snr, cosine = reading_snr(seen, plain), reading_cosine(seen, plain)
    each = [
        {"reading_snr_db": _finite(float(one)), "reading_cosine": _finite(float(other))}
        for one, other in zip(snr, cosine, strict=True)
    ]
    return each, {
        "reading_snr_db_median": _finite(float(np.median(snr))),
        "reading_snr_db_least": _finite(float(np.min(snr))),
        "reading_cosine_median": _finite(float(np.median(cosine))),
    }


def _at_point(
    cell: AttackCell,
    setting: Setting,
    where: Point,
    reading: Reading,
    weights: Mapping[str, Tensor],
    round_: int,
) -> dict[str, Any]:
    """ε at the tap: what bounds any attacker there, or why nothing does."""
    found, absent = at_point(
        _defense(cell), setting, where, tensors=len(weights), coordinates=_coordinates(weights),
        round_=round_, observations=len(reading.rounds),
    )  # fmt: skip
    return _figures(() if found is None else (found,), found, absent)


def _trail(found: Reconstruction, order: NDArray[np.int64]) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The way to the first readings' pictures, for the arrays and the summary; nothing where none was kept.

    Every mark is paired as the end is: a picture keeps its row from the start to the truth.
    """
    if found.trajectory is None or not found.history:
        return {}, {}
    way = found.trajectory[:, :TRAILS].cpu().numpy()
    medians = [[mark, _finite(float(np.median(losses)))] for mark, losses in found.history]
    return (
        {"trail": np.stack([paired(at_mark, order[: way.shape[1]]) for at_mark in way])},
        {"trail_evaluations": [mark for mark, _ in found.history], "loss_history": medians},
    )


def _self_check(
    attack: Attack, reading: Reading, truth: Tensor, labels: Tensor, data: Data, cell: AttackCell
) -> dict[str, Any]:
    """The matching distance at the truth and at random public pictures (design: the attacker should
    recognise the truth).  Absent for attacks that match nothing."""
    objective = attack.objective(reading)
    if objective is None:
        return {"distance_at_truth": None, "distance_at_public": None, "recognises_truth": None}
    count = truth.shape[0] * truth.shape[1]
    chosen = rng.generator(cell.seed, "self-check").integers(len(data.public), size=count)
    public = torch.from_numpy(data.public.floats(chosen)).reshape(truth.shape)
    public_labels = torch.from_numpy(data.public.labels[chosen]).reshape(labels.shape)
    at_truth = float(objective(truth, one_hot(labels, data.classes, truth.dtype)).mean())
    at_public = float(objective(public, one_hot(public_labels, data.classes, truth.dtype)).mean())
    return {
        "distance_at_truth": _finite(at_truth), "distance_at_public": _finite(at_public),
        "recognises_truth": at_truth < at_public,
    }  # fmt: skip


def _conditions(
    weights: Mapping[str, Tensor], undefended: Mapping[str, Tensor], round_: int, data: Data, reading: Reading
) -> dict[str, Any]:
    norms = torch.stack([value.flatten(1).square().sum(1) for value in undefended.values()]).sum(0).sqrt()
    return {
        "round": round_,
        "gradient_norm_median": _finite(float(norms.median())),
        "weights_norm": _finite(float(sum(value.square().sum() for value in weights.values()) ** 0.5)),
        "mode": "eval",
        "client_examples": reading.client_examples,
        "pictures_per_reading": reading.examples,
        "subset": data.subset,
        "private": data.private,
    }


def environment(place: Place) -> dict[str, Any]:
    """The device, its name, threads, and the versions that answered."""
    device = torch.device(place.device)
    return {
        "bench": __version__, "torch": torch.__version__, "numpy": np.__version__,
        "python": platform.python_version(), "platform": platform.platform(),
        "device": device.type, "threads": place.threads,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "cores": os.cpu_count(),
    }  # fmt: skip


def _well_formed(found: Reconstruction, reading: Reading) -> None:
    """A plug-in's reconstruction in the shape that the contract asks for."""
    count = len(reading)
    if (
        found.inputs.shape[0] != count
        or found.inputs.shape[2:] != reading.shape
        or len(found.status) != count
    ):
        raise PluginError(
            f"attack returned inputs {tuple(found.inputs.shape)} and {len(found.status)} statuses; "
            f"expected ({count}, pictures, {', '.join(map(str, reading.shape))}) and {count}"
        )
    way = found.trajectory
    if way is not None and (
        len(way) != len(found.history) or way.shape[1] > count or way.shape[2:] != found.inputs.shape[1:]
    ):
        raise PluginError(
            f"attack returned a trail {tuple(way.shape)}; expected ({len(found.history)} marks as in its "
            f"history, at most {count} readings, {', '.join(map(str, found.inputs.shape[1:]))})"
        )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _where(error: Exception) -> str:
    """One line: the error and the innermost line of code it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    place = f" ({Path(last.filename).name}:{last.lineno})" if last else ""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{place}"
