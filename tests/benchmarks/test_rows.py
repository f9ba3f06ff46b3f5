"""Readings of several cells as the rows of one batch (`bench.answer.company`) against each cell by itself."""

from pathlib import Path
from typing import Any

import pytest

from bench.answer.context import Memory, RunContext
from bench.answer.run import run
from bench.cell import AttackCell, DataRef, Entry, Federated, Grants
from bench.datasets.loading import load
from bench.registry import entries as registry

pytestmark = pytest.mark.slow
DEFENSES = [
    Entry(name="none"),
    Entry(name="prune", params={"share": 0.5}),
    Entry(name="prune", params={"share": 0.7}),
    Entry(name="gaussian", params={"at": "client", "variance": 1e-4}),
    Entry(name="low-rank"),
    Entry(name="fed-sdp"),
]


def cells(dataset: str, attack: str, evaluations: int) -> list[AttackCell]:
    """Eight readings behind each of six defenses, to an attacker who knows none of them."""
    data = load(registry.instance("datasets", dataset, {}), dataset, None)
    base: dict[str, Any] = {
        "dataset": DataRef(name=dataset, sha256=data.sha256),
        "model": Entry(name="dlg-lenet"),
        "attack": Entry(name=attack),
        "federated": Federated(batch=1),
        "point": "type-1",
        "readings": 8,
        "evaluations": evaluations,
        "grants": Grants(labels=True),
    }
    return [AttackCell(**base, defense=defense) for defense in DEFENSES]


@pytest.mark.parametrize("rows", [None, 48])
@pytest.mark.parametrize(("dataset", "attack"), [("mnist", "cpl"), ("cifar10", "cpl"), ("cifar10", "map")])
def test_six_cells(benchmark: Any, tmp_path: Path, dataset: str, attack: str, rows: int | None) -> None:
    benchmark.group = f"six cells of eight readings: {dataset}, {attack}"
    waiting = cells(dataset, attack, 500)
    data = Memory().data

    def answer() -> None:
        memory = Memory(data=data)
        context = RunContext(run=tmp_path, rows=rows)
        for n, cell in enumerate(waiting):
            record = run(cell, context, memory, company=waiting[n + 1 :])
            assert record.status == "done", record.reason

    benchmark.pedantic(answer, rounds=3, warmup_rounds=1 if dataset == "mnist" else 0)
