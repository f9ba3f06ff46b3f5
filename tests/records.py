"""Records made up for tests: typed, small, with figures that follow from their examples."""

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console, RenderableType

from bench.cell import AttackCell, DataRef, Entry, Federated, TrainingCell
from bench.leaderboard.costs import DefenseCost, costs
from bench.record import store
from bench.record.metrics import OVER_PRIOR_DB
from bench.record.schema import (
    AttackConditions,
    AttackResult,
    Code,
    Cost,
    Environment,
    ExampleScore,
    Provenance,
    ReadingScore,
    Record,
    Share,
    Status,
    Summary,
    TrainingCost,
    TrainingResult,
)
from bench.scoring.summary import summarise

T = TypeVar("T")
CELL = AttackCell(
    dataset=DataRef(name="digits", sha256="0" * 64),
    federated=Federated(batch=1),
    defense=Entry(name="none"),
    model=Entry(name="dlg-lenet", params={"activation": "sigmoid"}),
    point="type-2",
    readings=2,
    attack=Entry(name="cpl", params={"outer": 300, "restarts": 0}),
)
TRAINING = TrainingCell(
    dataset=CELL.dataset,
    model=CELL.model,
    federated=Federated(algorithm="fedavg", steps=2),
    defense=Entry(name="none"),
    rounds=20,
)
PROVENANCE = Provenance(bench=Code(origin="gradient-leakage-bench", version="1", protocol=1, sha256="5" * 64))
MACHINE = Environment(
    bench="1",
    torch="2",
    numpy="2",
    python="3",
    platform="Linux",
    device="cpu",
    device_name="x86_64",
    threads=1,
    cores=2,
)


def entry(value: str | Entry) -> Entry:
    """An entry of that name, without parameters."""
    return Entry(name=value) if isinstance(value, str) else value


def attack_cell(**changes: Any) -> AttackCell:
    """`CELL` with changes; entries may be given by name."""
    named: dict[str, Any] = {key: entry(changes[key]) for key in ("attack", "defense", "model") if key in changes}
    return CELL.model_copy(update={**changes, **named})


def example(success: bool = False, **figures: Any) -> ExampleScore:
    """An example at 30 dB where it leaked, at 0 dB where not; a `psnr_db` of None failed."""
    figures = {"psnr_db": 30.0 if success else 0.0, "rmse": 0.1 if success else 0.5, **figures}
    if figures["psnr_db"] is None:
        figures = {**figures, "rmse": None, "status": figures.get("status", "nan")}
    return ExampleScore(**{"status": "ok", "success": success, "identified": success, **figures})


def readings_of(
    successes: Sequence[Sequence[bool]], psnr_db: Sequence[Sequence[float | None]] | None = None, **figures: Any
) -> tuple[ReadingScore, ...]:
    """Reading r is of client r and examples 10r, 10r + 1, …"""
    return tuple(
        ReadingScore(
            status="ok",
            leaked=any(hits),
            clients=(row,),
            indices=tuple(10 * row + n for n in range(len(hits))),
            evaluations=10,
            outer=1,
            snr_db=120.0,
            cosine=1.0,
            examples=tuple(
                example(hit, **({"psnr_db": psnr_db[row][n]} if psnr_db else {}), **figures)
                for n, hit in enumerate(hits)
            ),
        )
        for row, hits in enumerate(successes)
    )


def _fixed(rows: Sequence[Sequence[T]]) -> tuple[tuple[T, ...], ...]:
    return tuple(map(tuple, rows))


def _summary(scores: Sequence[ReadingScore]) -> Summary:
    return summarise(scores, identification_chance=0.01, gallery=99, priors={}, over=OVER_PRIOR_DB)


@lru_cache(maxsize=256)
def _scored(
    successes: tuple[tuple[bool, ...], ...], psnr_db: tuple[tuple[float | None, ...], ...] | None
) -> tuple[tuple[ReadingScore, ...], Summary]:
    scores = readings_of(successes, psnr_db)
    return scores, _summary(scores)


def attack_record(
    successes: Sequence[Sequence[bool]] = ((True,), (False,)),
    psnr_db: Sequence[Sequence[float | None]] | None = None,
    *,
    id: str | None = None,
    cell: AttackCell = CELL,
    readings: Sequence[ReadingScore] | None = None,
    result: dict[str, Any] | None = None,
    **fields: Any,
) -> Record:
    """A finished attack: by reading, which of its examples leaked; its summary follows from them.

    `result` changes fields of the result, `fields` those of the record.
    """
    if readings is None:
        scores, summary = _scored(_fixed(successes), None if psnr_db is None else _fixed(psnr_db))
    else:
        scores, summary = tuple(readings), _summary(readings)
    whole = AttackResult(
        data="image", readings=scores, summary=summary, conditions=AttackConditions(weights_norm=26.0, round=0)
    )
    return Record(
        **{
            "id": id or cell.id,
            "status": "done",
            "cell": cell.model_copy(update={"readings": len(scores)}),
            "provenance": PROVENANCE,
            "environment": MACHINE,
            "cost": Cost(wall_seconds=1.0, attack_seconds=0.5),
            "result": replace(whole, **(result or {})),
            **fields,
        }
    )


def training_record(
    accuracy: float = 0.9,
    *,
    id: str | None = None,
    cell: TrainingCell = TRAINING,
    result: dict[str, Any] | None = None,
    **fields: Any,
) -> Record:
    """A finished training that ended at this accuracy."""
    whole = TrainingResult(
        accuracy=accuracy, curve=((0, 0.1), (cell.rounds, accuracy)), rounds=cell.rounds, diverged=False
    )
    cost = Cost(wall_seconds=1.0, training=TrainingCost(overhead=1.5, milliseconds_per_step=2.0))
    return Record(
        **{
            "id": id or cell.id,
            "status": "done",
            "cell": cell,
            "provenance": PROVENANCE,
            "environment": MACHINE,
            "cost": cost,
            "result": replace(whole, **(result or {})),
            **fields,
        }
    )


def defense_cost(**changes: Any) -> DefenseCost:
    """The cost of `training_record`, with changed fields."""
    (cost,) = costs([training_record()]).values()
    return replace(cost, **changes)


def printed(shown: RenderableType, width: int = 120) -> str:
    """What a terminal of this width shows, without colours."""
    console = Console(width=width, color_system=None, file=io.StringIO(), record=True)
    console.print(shown)
    return console.export_text()


def with_result(record: Record, **fields: Any) -> Record:
    """The record of an attack with other fields in its result."""
    assert record.attack is not None
    return replace(record, result=replace(record.attack, **fields))


def unfinished(record: Record, status: Status, reason: str) -> Record:
    """The record of the same cell with nothing to show for it."""
    return replace(record, status=status, reason=reason, result=None)


# Records to upload: two readings, with pictures of eight by eight pixels.

UPLOADED = AttackCell(
    dataset=CELL.dataset,
    model=Entry(name="dlg-lenet"),
    attack=Entry(name="cpl", params={"outer": 300}),
    federated=Federated(algorithm="fedavg", steps=4, partition="two-shard"),
    point="type-1",
    readings=2,
    defense=Entry(name="prune", params={"share": 0.7}),
)
SHADES = np.linspace(0, 1, 2 * 64, dtype=np.float32).reshape(2, 1, 1, 8, 8)
READING = ReadingScore(status="ok", examples=(ExampleScore(status="ok", success=True, psnr_db=21.0),))


def summary(asr: float = 0.5, **changes: Any) -> Summary:
    """Figures as stated, whatever the examples say."""
    whole = summarise((READING, READING), identification_chance=None, gallery=0, priors={}, over=OVER_PRIOR_DB)
    return replace(whole, **{"asr": Share(value=asr, low=0.1, high=0.9), **changes})


def to_upload(cell_id: str = "a1", *, asr: float = 0.5, result: Any = None, **changes: Any) -> Record:
    """A finished attack; `result` is another result, or changes fields of its own."""
    if result is None or isinstance(result, dict):
        result = replace(
            AttackResult(data="image", readings=(READING, READING), summary=summary(asr)), **(result or {})
        )
    record = replace(attack_record(cell=UPLOADED, id=cell_id), cost=Cost(wall_seconds=2.5), result=result)
    if "reason" in changes:
        changes = {"result": None, **changes}
    return replace(record, **changes)


def write(run: Path, cell_id: str, *, result: Any = None, arrays: Any = None, **changes: Any) -> Path:
    """Such a record in the run, with its arrays, and others where they are named."""
    arrays = {"truth": SHADES, "reconstruction": 1 - SHADES, **(arrays or {})}
    result = {"arrays": store.write_arrays(run, arrays), **(result or {})}
    return store.write(run, to_upload(cell_id, result=result, **changes))


def cell_ids(run: Path) -> list[str]:
    """The ids of the recorded cells, in order."""
    return sorted(path.stem for path in (run / "records").glob("*.json"))
