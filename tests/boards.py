"""Records for boards and standings: attacks and trainings with chosen figures, a made-up suite, its reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.records import TRAINING, attack_cell, attack_record, entry, example, readings_of, training_record, unfinished

from bench.cell import Federated, Grants
from bench.epsilon import Epsilon
from bench.leaderboard.board import Row
from bench.record.schema import (
    AttackConditions,
    Code,
    Cost,
    Distortion,
    Privacy,
    Provenance,
    ReadingScore,
    Record,
    TrainingCost,
)
from bench.reference import store

SUITE_EXAMPLES = 40
BOARD_EXAMPLES = 32


def scored(
    share: float,
    defense: str = "none",
    point: str = "type-0",
    batch: int = 1,
    attack: str = "map",
    knowledge: str = "adaptive",
    **cell: object,
) -> Record:
    """A record in which the first so many of forty examples leaked; the batch tells conditions apart."""
    hits = [[n < share * SUITE_EXAMPLES] for n in range(SUITE_EXAMPLES)]
    made = attack_record(
        cell=attack_cell(
            defense=defense, point=point, attack=attack, knowledge=knowledge, federated=Federated(batch=batch), **cell
        ),
        readings=readings_of(hits),
        result={
            "distortion": Distortion(snr_db_least=120.0 if defense == "none" else 3.0),
            "conditions": AttackConditions(weights_norm=26.0, round=0, described=True),
        },
    )
    return replace(made, id=made.cell.id)


def suite() -> list[Record]:
    """Three conditions by batch; in the third, attackers get nothing even undefended."""
    rates = {
        "none": {(1, "type-2"): 1.0, (1, "type-0"): 1.0, (2, "type-0"): 0.8, (4, "type-0"): 0.2},
        "prune": {(1, "type-2"): 1.0, (1, "type-0"): 0.5, (2, "type-0"): 0.1, (4, "type-0"): 0.0},
        "noise": {(1, "type-2"): 0.5, (1, "type-0"): 0.5, (2, "type-0"): 0.3, (4, "type-0"): 0.0},
        "cdp": {(1, "type-2"): 0.0, (1, "type-0"): 0.0, (2, "type-0"): 0.0, (4, "type-0"): 0.0},
    }
    return [
        scored(rate, defense, point, batch) for defense, its in rates.items() for (batch, point), rate in its.items()
    ]


def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The made-up suite as the reference."""
    store.write("v", suite(), folder=tmp_path)
    monkeypatch.setattr(store, "FOLDER", tmp_path)
    for name in ("read", "versions", "strips"):
        function = getattr(store, name)
        defaults = tuple(tmp_path if each == Path(store.__file__).parent else each for each in function.__defaults__)
        monkeypatch.setattr(function, "__defaults__", defaults)


def attacked(
    leaked: int = 0,
    *,
    defense: str = "none",
    attack: str = "cpl",
    point: str = "type-2",
    status: str = "done",
    knowledge: Any = "plain",
    psnr: float | None = None,
    prior: float = 12.0,
    example_status: str = "ok",
    restarts: int = 0,
    readings: int = BOARD_EXAMPLES,
    repeated: int = 1,
    draw: int = 0,
    snr: float | None = None,
    seed: int = 0,
    protocol: int = 1,
    model: str = "dlg-lenet",
    identified: int | None = None,
    **result: Any,
) -> Record:
    """A cell of one example a reading, of which the first `leaked` leak, to an attacker who knew the defense."""
    result = {"conditions": AttackConditions(described=True), **result}
    cell = attack_cell(
        defense=defense,
        attack=attack,
        point=point,
        knowledge=knowledge,
        draw=draw,
        seed=seed,
        model=model,
        grants=Grants(repeated_readings=repeated),
        readings=readings,
    )
    scores = [
        ReadingScore(
            status="ok",
            restarts=restarts,
            examples=(
                example(
                    hit,
                    status=example_status,
                    identified=hit if identified is None else n < identified,
                    psnr_db=psnr if psnr is not None else (30.0 if hit else 8.0),
                    rmse=0.03 if hit else 0.4,
                    ssim=0.9,
                    prior_db=prior,
                ),
            ),
        )
        for n, hit in enumerate(n < leaked for n in range(readings))
    ]
    least = snr if snr is not None else 120.0 if defense == "none" else 0.0
    record = attack_record(
        readings=scores,
        cell=cell,
        result={"distortion": Distortion(snr_db_least=least), **result},
        provenance=Provenance(bench=Code(origin="bench", protocol=protocol)),
    )
    return record if status == "done" else unfinished(record, status, "because")


def trained(
    accuracy: float,
    *,
    defense: str = "none",
    seed: int = 0,
    rounds: int = 10,
    model: str = "dlg-lenet",
    epsilon: float | None = None,
    overhead: float | None = None,
) -> Record:
    cell = TRAINING.model_copy(
        update={"model": entry(model), "defense": entry(defense), "rounds": rounds, "seed": seed}
    )
    valid = Epsilon(
        convention="valid",
        accountant="a",
        unit="client",
        adversary="a",
        epsilon=epsilon,
        delta=1e-5,
        q=1.0,
        steps=1,
        multiplier=None,
        sampling="a",
        adjacency="a",
    )
    absent = None if epsilon is not None else "it adds no noise"
    privacy = Privacy(epsilon=epsilon, absent=absent, figures=() if absent else (valid,))
    cost = Cost(training=TrainingCost(overhead=overhead))
    return training_record(accuracy, cell=cell, result={"privacy": privacy}, cost=cost)


def by_defense(rows: list[Row]) -> dict[str, Row]:
    return {row.defense: row for row in rows}


def codes(row: Row) -> list[str]:
    return [flag.code for flag in row.flags]
