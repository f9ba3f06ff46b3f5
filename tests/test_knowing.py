"""Promise: who knows the defense is no weaker than who does not: attacks × defenses × points on digits."""

from pathlib import Path
from typing import Any, Literal

import pytest

from bench.answer.attack import attack
from bench.answer.context import Memory, RunContext
from bench.cell import AttackCell, DataRef, Entry, Federated, Grants
from bench.contracts.situations import data
from bench.errors import NotApplicable

ATTACKS: dict[str, dict[str, Any]] = {
    "dlg": {"line_search": "backtracking"},
    "idlg": {"line_search": "backtracking"},
    "cpl": {"line_search": "backtracking"},
    "gradinv": {},
    "map": {},
}
DEFENSES: dict[str, tuple[str, dict[str, Any]]] = {
    "prune": ("prune", {"share": 0.7}),
    "prune-example": ("prune", {"share": 0.7, "at": "example"}),
    "random-prune": ("random-prune", {"share": 0.5}),
    "random-prune-example": ("random-prune", {"share": 0.5, "at": "example"}),
    "low-rank": ("low-rank", {"share": 0.5}),
    "low-rank-example": ("low-rank", {"share": 0.5, "at": "example"}),
    "gaussian": ("gaussian", {"variance": 1e-8}),
    "gaussian-strong": ("gaussian", {"variance": 1e-4}),
    "laplace": ("laplace", {"variance": 1e-8}),
    "soteria": ("soteria", {}),
    "fed-cdp": ("fed-cdp", {"clip": 0.5, "sigma": 1e-3}),
    "fed-alpha-cdp": ("fed-alpha-cdp", {"clip": 32.0, "sigma": 1e-3}),
    "fed-sdp": ("fed-sdp", {"at": "client", "clip": 0.5, "sigma": 1e-3}),
    "adaclip": ("adaclip", {"at": "client", "sigma": 1e-3}),
    "quantile": ("quantile", {"at": "client", "sigma": 1e-3, "clip": 0.5, "correction": "none"}),
    "risk-balanced": ("risk-balanced", {"variance": 1e-2}),
    "niss": ("niss", {"clip": 0.5, "sigma": 1e-3}),
    "fed-split": ("fed-split", {"sigma": 1e-4, "clip": 0.5}),
    "ldp-fl": ("ldp-fl", {"epsilon": 100.0, "sending": "named"}),
}
PLACES = (("type-2", 1), ("type-1", 1), ("type-1", 3), ("aggregate", 1))  # point, batch
VICTIMS, SLACK = 32, 0.05
FAST = [
    ("gradinv", "gaussian-strong", "type-1", 1),
    ("cpl", "prune-example", "type-1", 3),
    ("cpl", "fed-sdp", "aggregate", 1),
]


def asr(
    name: str,
    defense: str,
    where: str,
    knowledge: Literal["plain", "adaptive"],
    folder: Path,
    memory: Memory,
    *,
    victims: int,
    evaluations: int,
    batch: int,
) -> float | None:
    """The share of examples leaked; None where the attack refuses the reading."""
    entry, params = DEFENSES[defense]
    cell = AttackCell(
        dataset=DataRef(name="digits", sha256=data().sha256),
        model=Entry(name="dlg-lenet"),
        federated=Federated(algorithm="fedsgd", clients=50, per_round=3, batch=batch),
        defense=Entry(name=entry, params=params),
        attack=Entry(name=name, params=ATTACKS[name]),
        point=where,
        readings=victims,
        evaluations=evaluations,
        knowledge=knowledge,
        grants=Grants(labels=True),
    )
    try:
        found, _ = attack(cell, RunContext(run=folder), memory)
    except NotApplicable:
        return None
    assert found.summary is not None
    return found.summary.asr.value


def compare(name: str, defense: str, where: str, folder: Path, *, victims: int, evaluations: int, batch: int) -> None:
    """Paired: the same victims, draws and labels; a reading that no transform touches is attacked once."""
    memory = Memory()
    plain, knowing = (
        asr(name, defense, where, "plain", folder, memory, victims=victims, evaluations=evaluations, batch=batch),
        asr(name, defense, where, "adaptive", folder, memory, victims=victims, evaluations=evaluations, batch=batch),
    )
    if plain is None or knowing is None:
        assert plain == knowing
        pytest.skip("it refuses such readings")
    assert knowing >= plain - SLACK, f"adaptive {knowing:.2f}, plain {plain:.2f}"


@pytest.mark.parametrize(("name", "defense", "where", "batch"), FAST)
def test_who_knows_the_defense_is_no_weaker(name: str, defense: str, where: str, batch: int, tmp_path: Path) -> None:
    compare(name, defense, where, tmp_path, victims=6, evaluations=60, batch=batch)


@pytest.mark.slow
@pytest.mark.parametrize(("where", "batch"), PLACES)
@pytest.mark.parametrize("defense", DEFENSES)
@pytest.mark.parametrize("name", ATTACKS)
def test_no_adaptive_attacker_is_weaker_than_its_plain_self(
    name: str, defense: str, where: str, batch: int, tmp_path: Path
) -> None:
    compare(name, defense, where, tmp_path, victims=VICTIMS, evaluations=300, batch=batch)
