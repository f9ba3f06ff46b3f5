"""A server that sends its weights to the victim, and zeros to the round's other clients: the mean is the victim's."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import MEMORY, RESOLVER, attack, entry

from bench.answer.context import RunContext
from bench.answer.observation import draw_and_observe
from bench.answer.run import run
from bench.attacks.bins import Bins
from bench.cell import AttackCell, Entry, Federated, Grants
from bench.errors import NotApplicable
from bench.matrix.feasible import impossible
from bench.trip import Tensors

CLIENTS = 4
INCONSISTENT, SAME = Grants(server="inconsistent"), Grants(server="weights")
ALONE = Grants(server="weights", dummies=CLIENTS - 1)  # the victim's message itself
MLP = entry("models", "mlp", hidden=(64, 32), activation="relu")


def cell(grants: Grants = INCONSISTENT, **changes: Any) -> AttackCell:
    return attack(
        **{
            "attack": entry("attacks", "bins"),
            "model": MLP,
            "federated": Federated(clients=12, per_round=CLIENTS, batch=3),
            "point": "aggregate",
            "grants": grants,
            "readings": 2,
        }
        | changes
    )


def seen(which: AttackCell, folder: Path) -> Tensors:
    return draw_and_observe(which, RunContext(run=folder), MEMORY).reading.values


def equal(one: Tensors, other: Tensors) -> set[str]:
    return {name for name, value in one.items() if torch.allclose(value, other[name], rtol=1e-5, atol=1e-8)}


@pytest.mark.parametrize(
    ("model", "shown", "steps"),
    [
        (MLP, {"5.bias"}, 1),
        (MLP, {"5.bias"}, 3),
        (entry("models", "mlp", hidden=(64, 32), activation="sigmoid"), {"5.bias", "5.weight"}, 1),
    ],
    ids=["relu", "local steps", "sigmoid"],
)
def test_only_the_last_layer_shows_other_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Entry, shown: set[str], steps: int
) -> None:
    """Zero weights give zero outputs and no gradient below the last layer; with sigmoids, the last weight has one."""
    monkeypatch.setattr(Bins, "craft", lambda self, server, key: server.weights)
    monkeypatch.setattr(Bins, "refuses", lambda self, reading: None)
    federated = Federated(
        algorithm="fedsgd" if steps == 1 else "fedavg", clients=12, per_round=CLIENTS, batch=3, steps=steps
    )
    message, mixed, mean = (
        seen(cell(grants, model=model, federated=federated), tmp_path) for grants in (ALONE, INCONSISTENT, SAME)
    )
    assert message.keys() - equal(message, mixed) == shown
    assert equal(message, mean) == set()


def test_secure_aggregation_shows_the_message_up_to_its_steps(tmp_path: Path) -> None:
    bits, clip = 16, 4.0
    masked = entry("defenses", "secure-aggregation", clip=clip, bits=bits)
    message = seen(cell(ALONE), tmp_path)
    mixed = seen(cell(defense=masked), tmp_path)
    step = 2 * clip / 2**bits
    below = [name for name in message if name != "5.bias"]
    gaps = torch.cat([(mixed[name] - message[name].clamp(-clip, clip)).flatten() for name in below]).abs()
    assert 0 < float(gaps.max()) <= CLIENTS * step * 1.01


def test_bins_recover_the_victim_alone(tmp_path: Path) -> None:
    """16 examples of the victim in 64 bins, and 64 in the mean over all clients: .79 and .37 by the closed form."""
    wide = {"model": entry("models", "mlp", hidden=(64,), activation="relu"), "readings": 4}
    wide |= {"federated": Federated(clients=20, per_round=CLIENTS, batch=16)}
    wide |= {"attack": entry("attacks", "bins", direction="random")}
    records = [run(cell(grants, **wide), RunContext(run=tmp_path), MEMORY) for grants in (INCONSISTENT, SAME)]
    shares = []
    for record, examples in zip(records, (16, 64), strict=True):
        assert record.attack is not None and record.attack.summary is not None, record.reason
        assert len(record.attack.readings[0].indices) == examples
        shares.append(record.attack.summary.asr.value)
    assert shares[0] >= 0.6 and shares[1] <= 0.45


def test_needless_or_unknowable_cells_are_a_line(tmp_path: Path) -> None:
    def reason(**changes: Any) -> str:
        return str(impossible(cell(**changes), RESOLVER.data("digits", {})))

    assert impossible(cell(), RESOLVER.data("digits", {})) is None
    assert "change only a mean, not what type-1 shows; take point = aggregate" in reason(point="type-1")
    assert reason(attack=entry("attacks", "cpl")) == (
        "cpl does not choose the weights of each client of a server; leave out the grant server"
    )
    assert "has no description; take knowledge = plain" in reason(knowledge="adaptive")
    assert INCONSISTENT.words() == ["a server that chooses the weights of each client"]
    with pytest.raises(NotApplicable, match='depends on a round\'s common weights; take server = "weights"'):
        draw_and_observe(cell(defense=entry("defenses", "ldp-fl")), RunContext(run=tmp_path), MEMORY)
