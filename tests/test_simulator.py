"""The round as a black box: what it shows, that it repeats no victim's draw, and what it costs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.cells import prepared
from torch import Tensor

from bench import rng
from bench.answer.attack import attack
from bench.answer.context import Memory, RunContext
from bench.answer.readings import reading_hash, take_reading
from bench.answer.run import run
from bench.answer.setup import Setup
from bench.answer.truth import truth_from
from bench.answer.victims import Truth, batches_of
from bench.cell import AttackCell, DataRef, Entry, Federated, Grants
from bench.contracts.situations import data
from bench.defenses.base import Context, Defense, Setting, StageTransforms, State, Tensors, Transform
from bench.errors import NotApplicable, PluginError
from bench.federated.batches import Batches
from bench.federated.describe import is_random
from bench.federated.pipeline import run_round
from bench.federated.simulator import RoundSimulator, simulator_seed
from bench.federated.stages import DrawKey, stages
from bench.parameters import values
from bench.points import POINTS
from bench.registry import entries as registry
from bench.trip import Reading

MEMORY = Memory()
SIGN = '''
from dataclasses import dataclass

from bench.defenses.base import Defense, Transform


@dataclass(frozen=True, slots=True)
class Sign(Transform):
    def apply(self, tensors, context):
        return {name: value.sign() for name, value in tensors.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SignCompression(Defense):
    """The sign of each coordinate."""

    reference = "signSGD"
    stages = ("example",)

    def transforms(self, setting):
        return {"example": (Sign(),)}
'''


def cell_of(defense: str = "none", where: str = "type-2", **changes: Any) -> AttackCell:
    params, federated = changes.pop("params", {}), {"clients": 12, "per_round": 3, "batch": 2}
    return AttackCell(
        dataset=DataRef(name="digits", sha256=data().sha256),
        model=Entry(name="mlp", params={"hidden": [16]}),
        federated=Federated(**federated | changes.pop("federated", {})),
        defense=Entry(name=defense, params=values(registry.instance("defenses", defense, params))),
        attack=Entry(name="learned-inverter"),
        knowledge="black-box",
        point=where,
        readings=2,
        **changes,
    )


def taken(cell: AttackCell, tmp: Path) -> tuple[Setup, Reading, Truth]:
    setup = prepared(cell, RunContext(run=tmp), MEMORY)
    truth = truth_from(cell, setup.source)
    batches = batches_of(cell, setup, truth.victims, truth.point)
    return setup, take_reading(cell, setup, truth, batches, MEMORY.simulations), truth.examples


@pytest.mark.parametrize("where", POINTS)
@pytest.mark.parametrize("name", registry.names("defenses"))
def test_it_shows_of_examples_what_a_reading_of_them_would(name: str, where: str, tmp_path: Path) -> None:
    """Of the victims' own examples, the reading itself, where the defense draws nothing; else something finite."""
    algorithms = [{"algorithm": "fedsgd"}, {"algorithm": "fedavg", "steps": 2}]
    for federated in algorithms if where == "type-1" else algorithms[:1]:
        params = {"sigma": 0.1} if name == "quantile" else {}  # at its default three clients cannot count
        cell = cell_of(name, where, params=params, federated=federated)
        try:
            setup, reading, truth = taken(cell, tmp_path)
        except NotApplicable as reason:
            pytest.skip(f"{name} does not run here: {reason}")
        assert reading.simulator is not None
        found = reading.simulator(truth.inputs, truth.labels, 0)
        drawn = is_random(setup.stages, POINTS[where])
        for key, value in reading.values.items():
            expected = value / (reading.unit * reading.steps)
            assert found[key].shape == value.shape
            assert torch.isfinite(found[key]).all()
            if not drawn:
                torch.testing.assert_close(found[key], expected, rtol=1e-4, atol=1e-6)
        if drawn:
            assert any((found[key] != reading.values[key]).any() for key in found)


def test_no_draw_of_the_victims_recurs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[tuple[Any, ...]] = []
    original = rng.generator

    def noted(seed: int, purpose: str, *fields: Any) -> Any:
        if purpose == "defense":
            keys.append((seed, *fields))
        return original(seed, purpose, *fields)

    monkeypatch.setattr("bench.federated.draws.generator", noted)
    for name, where in (("gaussian", "type-1"), ("fed-cdp", "type-2"), ("niss", "type-0")):
        for seed in (0, 1):
            keys.clear()
            _, reading, truth = taken(cell_of(name, where, seed=seed), tmp_path)
            victims = set(keys)
            keys.clear()
            assert reading.simulator is not None
            for draw in (0, 1):
                reading.simulator(truth.inputs, truth.labels, draw)
            assert victims and keys
            assert not victims & set(keys)
            assert len(set(keys)) == len(keys)  # nor does one of its own
            assert {key[0] for key in keys} == {simulator_seed(seed)}


def test_repeated_readings_are_simulated_as_often(tmp_path: Path) -> None:
    cell = cell_of("gaussian", params={"at": "example"}, grants=Grants(repeated_readings=3))
    _, reading, truth = taken(cell, tmp_path)
    assert reading.simulator is not None
    found = reading.simulator(truth.inputs, truth.labels, 0)
    assert {value.shape[:2] for value in found.values()} == {(2, 3)}
    assert reading.simulator.used == 6
    first = next(iter(found.values()))
    assert (first[:, 0] != first[:, 1]).any()


def test_calls_beyond_the_budget_are_refused_and_equal_ones_count_once(tmp_path: Path) -> None:
    _, reading, truth = taken(cell_of(), tmp_path)
    simulator = reading.simulator
    assert isinstance(simulator, RoundSimulator)
    simulator.budget = 5
    first = simulator(truth.inputs, truth.labels, 0)
    first["broken by the attack"] = torch.zeros(1)
    assert simulator(truth.inputs, truth.labels, 0).keys() == reading.values.keys()
    assert simulator.used == 2
    simulator(truth.inputs, truth.labels, 1)
    with pytest.raises(PluginError, match="asks for 2 simulations after 4; the budget is 5"):
        simulator(truth.inputs, truth.labels, 2)


def test_a_process_simulates_once_for_cells_that_share_defense_point_and_weights(tmp_path: Path) -> None:
    MEMORY.simulations.clear()
    _, reading, truth = taken(cell_of("prune", params={"at": "example"}), tmp_path)
    assert reading.simulator is not None
    reading.simulator(truth.inputs, truth.labels, 0)
    kept = len(MEMORY.simulations)
    for changes, more in (
        ({"params": {"at": "example"}, "draw": 1}, 0),
        ({"params": {"at": "example", "share": 0.5}}, 1),
        ({"params": {"at": "example"}, "seed": 1}, 2),
    ):
        _, other, _ = taken(cell_of("prune", **changes), tmp_path)
        assert other.simulator is not None
        other.simulator(truth.inputs, truth.labels, 0)
        assert other.simulator.used == 2
        assert len(MEMORY.simulations) == kept + more


def test_the_readings_hash_knows_what_is_simulated(tmp_path: Path) -> None:
    def hashed(defense: str, where: str = "type-2", **params: Any) -> str:
        return reading_hash(taken(cell_of(defense, where, params=params), tmp_path)[1])

    assert hashed("none") == hashed("prune", at="client")  # nothing acts on what type-2 shows
    same = taken(cell_of("gaussian", params={"at": "client"}), tmp_path)[1]
    other = taken(cell_of("laplace", params={"at": "client"}), tmp_path)[1]
    one, two = (
        replace(each, values=same.values)
        for each in (
            taken(cell_of("gaussian", "type-1"), tmp_path)[1],
            taken(cell_of("laplace", "type-1"), tmp_path)[1],
        )
    )
    assert reading_hash(same) == reading_hash(other)
    assert reading_hash(one) != reading_hash(two)  # equal values, other defenses


class Counting(Transform):
    """Adds how often this client took part."""

    owner = "client"

    def initial(self, shapes: Any) -> State:
        del shapes
        return {"times": torch.zeros(())}

    def update(self, tensors: Tensors, state: State, context: Context) -> tuple[dict[str, Tensor], State]:
        del context
        times = state["times"]
        after = {name: value + times.reshape(-1, *[1] * (value.dim() - 1)) for name, value in tensors.items()}
        return after, {"times": times + 1}


class Counted(Defense):
    reference, stages = "test", ("client",)

    def transforms(self, setting: Setting) -> StageTransforms:
        del setting
        return {"client": (Counting(),)}


def test_simulated_clients_have_not_trained_yet(tmp_path: Path) -> None:
    cell = cell_of(where="type-1")
    setup, reading, truth = taken(cell, tmp_path)
    simulator = reading.simulator
    assert isinstance(simulator, RoundSimulator)
    shapes = {name: tuple(value.shape) for name, value in setup.weights.items()}
    before = stages(Counted(), setup.setting, shapes)
    batches = Batches(clients=(0, 1), inputs=truth.inputs[:, None], labels=truth.labels[:, None])
    after = run_round(
        setup.model, setup.weights, batches, cell.federated, before, DrawKey(seed=0, draw=0, round=0), classes=10
    ).stages
    assert any((state["times"] > 0).any() for state in after.states.values())
    plain, later = (
        replace(simulator, stages=each, name=name, kept={})(truth.inputs, truth.labels, 0)
        for each, name in ((setup.undefended, "plain"), (after, "later"))
    )
    for name in plain:
        torch.testing.assert_close(later[name], plain[name])


def test_a_plug_in_defense_is_attacked_and_the_cost_is_in_the_record(tmp_path: Path) -> None:
    file = tmp_path / "sign.py"
    file.write_text(SIGN)
    registry.add_plugin(str(file))
    cell = cell_of("sign-compression", federated={"batch": 1})
    try:
        record = run(cell, RunContext(run=tmp_path), Memory())
    finally:
        registry.drop_plugins()
    assert record.status == "done", record.reason
    assert record.attack is not None
    assert record.cost.simulations is not None and record.cost.simulations >= 100
    assert record.cost.simulation_seconds is not None
    assert record.attack.conditions.simulated and not record.attack.conditions.described
    prior = max(prior.psnr_db_median or 0 for prior in record.attack.figures().priors.values())
    assert (record.attack.figures().medians["psnr_db"] or 0) > prior


def test_equal_readings_are_attacked_once(tmp_path: Path) -> None:
    memory, context = Memory(), RunContext(run=tmp_path)
    _, first = attack(cell_of("none"), context, memory)
    _, second = attack(cell_of("prune", params={"at": "client"}), context, memory)
    assert first is not None
    assert second is not None
    assert first.simulations
    assert second.reused_from
    assert second.simulations is None
