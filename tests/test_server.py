"""A server that chooses the weights: levels in cells, what the attack knows, faulty weights, no shared readings."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import MEMORY, RESOLVER, answer, attack, entry, prepared
from torch import Tensor

from bench.answer import company
from bench.answer.context import Memory, RunContext
from bench.answer.crafted import choose, received, server_of
from bench.answer.observation import draw_and_observe
from bench.answer.run import run
from bench.answer.setup import load_data
from bench.answer.truth import draw_truth
from bench.attacks.base import Attack
from bench.attacks.bins import Bins
from bench.cell import AttackCell, DataRef, Federated, Grants
from bench.errors import BenchError, NotApplicable, PluginError
from bench.leaderboard.conditions import by_condition
from bench.matrix.expand import PlannedCell, expand
from bench.matrix.feasible import impossible
from bench.matrix.read import read
from bench.rng import Key
from bench.trip import Server, Tensors

WEIGHTS = Grants(server="weights")


def cell(**changes: Any) -> AttackCell:
    return attack(
        **{
            "attack": entry("attacks", "bins"),
            "model": entry("models", "mlp", hidden=(64,), activation="relu"),
            "federated": Federated(clients=10, per_round=2, batch=8),
            "point": "type-1",
            "grants": WEIGHTS,
        }
        | changes
    )


def known(which: AttackCell, folder: Path) -> tuple[Server, Tensor]:
    """What the server knows, and the victims' examples."""
    context = RunContext(run=folder)
    truth = draw_truth(which, load_data(which, context, MEMORY), folder)
    return server_of(which, prepared(which, context, MEMORY), truth), truth.victims.inputs.flatten(0, 3)


def test_a_listener_is_no_part_of_an_id() -> None:
    listener, server = (cell(grants=grants) for grants in (Grants(), WEIGHTS))
    assert "server" not in listener.canonical() and Grants(server="listen").configuration() == {}
    assert server.id != listener.id and server.grants.words() == ["a server that chooses the weights"]


def test_a_cell_needs_the_level_of_its_attack() -> None:
    def reason(**changes: Any) -> str | None:
        return impossible(cell(**changes), RESOLVER.data("digits", {}))

    assert reason() is None
    assert (
        reason(grants=Grants()) == 'bins needs a server that chooses the weights: grants = [[{ server = "weights" }]]'
    )
    assert (
        reason(attack=entry("attacks", "cpl"))
        == "cpl does not choose the weights of a server; leave out the grant server"
    )
    trap = entry("attacks", "trap")
    assert reason(attack=trap) is reason(attack=trap, grants=Grants()) is None


def test_an_unknown_level_is_a_line(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(
        'title = "levels"\n[axes]\ndataset = ["digits"]\nmodel = ["mlp"]\nattack = ["bins"]\npoint = ["type-1"]\n'
        'grants = [[{ server = "program" }]]\n'
    )
    with pytest.raises(
        BenchError, match="unknown server 'program'; there are inconsistent, layers, listen, rounds, weights"
    ):
        read(path)


def test_a_server_knows_no_victim(tmp_path: Path) -> None:
    for grants in (WEIGHTS, Grants(server="weights", labels=True)):
        server, victims = known(cell(grants=grants), tmp_path)
        for field in fields(server):
            value = getattr(server, field.name)
            rows = value.flatten(1) if isinstance(value, Tensor) and value.dim() > 1 else victims[:0].flatten(1)
            assert not (victims.flatten(1)[:, None] == rows).all(2).any(), field.name
    assert {field.name for field in fields(server)}.isdisjoint({"values", "labels", "mates_inputs", "indices"})
    server, victims = known(cell(grants=Grants(server="weights", gallery=60)), tmp_path)
    assert server.gallery_inputs is not None and len(server.gallery_inputs) == 60  # granted: the victims are there


def test_the_weights_depend_on_no_victim(tmp_path: Path) -> None:
    one, other = (cell(victims=half) for half in ("tuning", "scoring"))
    first, second = (choose(each, known(each, tmp_path)[0]) for each in (one, other))
    assert all(torch.equal(first[name], second[name]) for name in first)


def faulty(change: str, value: Any) -> Any:
    def craft(self: Bins, server: Server, key: Key) -> Tensors | None:
        made = dict(server.weights)
        made[change] = value(made[change]) if change in made else value
        return made

    return craft


@pytest.mark.parametrize(
    ("craft", "reason"),
    [
        (faulty("1.weight", lambda w: w * torch.nan), "chose weights 1.weight with values that are not finite"),
        (faulty("1.weight", lambda w: w.double() * 1e300), "chose weights 1.weight with values that are not finite"),
        (faulty("3.bias", lambda w: w[:3]), "chose weights 3.bias of shape (3,), expected (10,)"),
        (faulty("5.bias", torch.zeros(2)), "chose weights with an unknown 5.bias"),
        (lambda self, server, key: {}, "chose weights without 1.bias"),
        (Attack.craft, "names the server weights and chooses no weights; define craft"),
        (lambda self, server, key: server.public_inputs.zero_(), "wrote to the server that it was given"),
        (lambda self, server, key: server.victims, "AttributeError: 'Server' object has no attribute 'victims'"),
    ],
    ids=["nan", "overflow", "shape", "unknown", "missing", "none", "writes", "victims"],
)
def test_faulty_weights_are_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, craft: Any, reason: str) -> None:
    monkeypatch.setattr(Bins, "craft", craft)
    record = run(cell(), RunContext(run=tmp_path), Memory())
    assert record.status == "crashed" and record.reason is not None
    assert reason in record.reason and "\n" not in record.reason


def test_weights_arrive_in_the_dtype_of_the_model(tmp_path: Path) -> None:
    setup = prepared(cell(), RunContext(run=tmp_path), MEMORY)
    doubled = {name: value.double() for name, value in setup.weights.items()}
    after = received(cell(), setup, doubled)
    assert all(torch.equal(after.weights[name], value) for name, value in setup.weights.items())
    with pytest.raises(PluginError, match="mend its craft"):
        received(cell(), setup, {})


def test_a_model_without_such_rows_is_not_applicable(tmp_path: Path) -> None:
    for model in (entry("models", "dlg-lenet"), entry("models", "mlp"), entry("models", "linear")):
        record = run(cell(model=model), RunContext(run=tmp_path), Memory())
        assert record.status == "n/a" and str(record.reason).startswith("its first layer is no fully connected layer")


@pytest.mark.parametrize(
    "model", ["linear", *(pytest.param(n, marks=pytest.mark.slow) for n in ("dlg-lenet", "resnet20"))]
)
def test_inserted_layers_recover_the_examples_of_any_net(tmp_path: Path, model: str) -> None:
    """Nets without rows for `bins`, and batches of 8 examples in 1024 bins."""
    by_value = entry("attacks", "bins", direction="random")  # few digits differ in brightness
    inserting = cell(model=entry("models", model), grants=Grants(server="layers"), attack=by_value)
    record = run(inserting, RunContext(run=tmp_path), Memory())
    assert record.attack is not None and record.attack.summary is not None, record.reason
    assert record.attack.summary.asr.value >= 0.9


@pytest.mark.slow
def test_a_defense_finds_its_layer_behind_inserted_layers(tmp_path: Path) -> None:
    """Soteria empties columns of the net's last layer; a layer's name without the prefix is a line."""

    def reading(layer: str) -> Tensors:
        defense = entry("defenses", "soteria", layer=layer)
        small = Federated(clients=10, per_round=2, batch=1)
        which = cell(
            federated=small,
            model=entry("models", "dlg-lenet"),
            grants=Grants(server="layers"),
            defense=defense,
            readings=1,
        )
        return draw_and_observe(which, RunContext(run=tmp_path), MEMORY).reading.values

    values = reading("")
    last = [name for name in values if name.startswith("net.") and name.endswith("weight")][-1]
    assert {name for name, value in values.items() if (value == 0).all((0, 1, 2)).any()} >= {last}
    with pytest.raises(NotApplicable, match=r"no linear layer '7'; there are inserted.rows, inserted.sum, net.7"):
        reading("7")


def test_a_text_has_no_such_rows(tmp_path: Path) -> None:
    opinions = DataRef(name="opinions", sha256=RESOLVER.data("opinions", {}).sha256)
    model = entry("models", "tiny-transformer", tokens=307)
    grants = Grants(server="weights", gallery=40)
    text = cell(
        dataset=opinions, model=model, attack=entry("attacks", "gallery"), grants=grants, federated=Federated(batch=1)
    )
    record = run(text, RunContext(run=tmp_path), Memory())
    assert record.status == "n/a" and str(record.reason).startswith("its first layer is no fully connected layer")


def test_readings_under_chosen_weights_are_shared_by_no_cells(tmp_path: Path) -> None:
    """A defense that changes nothing makes equal readings: a listener's are attacked once, these are not."""
    same = entry("defenses", "prune", share=0.0)
    memory, context = Memory(), RunContext(run=tmp_path)
    for grants, reused in ((Grants(), True), (WEIGHTS, False)):
        each = [
            cell(attack=entry("attacks", "trap"), grants=grants),
            cell(attack=entry("attacks", "trap"), grants=grants, defense=same),
        ]
        first, second = (run(which, context, memory) for which in each)
        assert first.cost.reused_from is None and (second.cost.reused_from == first.id) is reused
    company.attack_together(cell(), [cell(draw=1)], RunContext(run=tmp_path, rows=64), memory)
    assert not memory.attacked


CASCADE = """title = "levels in a cascade"
cascade = true
readings = 2
[axes]
dataset = ["digits"]
model = [{ name = "mlp", hidden = [64], activation = "relu" }]
attack = ["analytic", "trap"]
point = ["type-1"]
federated = [{ batch = 4 }]
grants = [[], [{ server = "weights" }]]
"""


def test_a_cascade_leaves_chosen_weights_out(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text(CASCADE)
    planned: tuple[PlannedCell, ...] = expand(read(path), RESOLVER.data)
    after = {
        (each.cell.attack.name, each.cell.grants.server): len(each.cell.after)
        for each in planned
        if isinstance(each.cell, AttackCell) and each.impossible is None
    }
    assert after == {("analytic", "listen"): 0, ("trap", "listen"): 1, ("trap", "weights"): 0}


def test_a_table_holds_one_level_and_one_choice_of_weights(tmp_path: Path) -> None:
    cells = [
        cell(),
        cell(attack=entry("attacks", "bins", direction="random")),
        cell(attack=entry("attacks", "trap")),
        cell(attack=entry("attacks", "trap"), grants=Grants()),
        cell(attack=entry("attacks", "labels-only"), grants=Grants()),
    ]
    conditions = by_condition([answer(each, tmp_path) for each in cells])
    assert [len(each.rows) for each in conditions] == [1, 1, 1, 1]
    assert [each.title.partition("weights by ")[2].partition("(")[0] for each in conditions] == [
        "bins",
        "bins",
        "trap",
        "",
    ]
