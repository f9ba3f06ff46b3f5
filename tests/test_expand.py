"""Blocks become cells: each a product of its axes; what cannot run is marked; none comes twice."""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from bench.cell import AttackCell, CheckpointWeights, FileWeights, TrainingCell
from bench.errors import MatrixError
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.matrix.expand import PlannedCell, expand
from bench.matrix.feasible import DatasetFacts
from bench.matrix.read import read
from bench.models.base import Model
from bench.models.cnn import FedCnn
from bench.models.convnet8 import ConvNet8
from bench.models.lenet import DlgLenet
from bench.models.mlp import Mlp
from bench.parameters import parameter


@dataclass(frozen=True, kw_only=True)
class Attack:
    knowledge = ("plain",)
    restarts: int = parameter(0, "restarts")


@dataclass(frozen=True, kw_only=True)
class Knowing:
    knowledge = ("plain", "adaptive")


@dataclass(frozen=True, kw_only=True)
class Defense:
    share: float = parameter(0.5, "a share")
    at: str = parameter("client", "where")


@dataclass(frozen=True, kw_only=True)
class Nothing:
    pass


NAMES: dict[str, dict[str, type]] = {
    "attacks": {"dlg": Attack, "cpl": Attack, "matching": Knowing},
    "defenses": {"none": Nothing, "prune": Defense, "noise": Nothing},
    "datasets": {"cancer": Nothing, "digits": Nothing, "mnist": Nothing},
    "models": {"mlp": Mlp, "dlg-lenet": DlgLenet, "fed-cnn": FedCnn, "convnet8": ConvNet8},
}
REGISTRY = SimpleNamespace(names=lambda kind: tuple(NAMES[kind]), load=lambda kind, name: NAMES[kind][name])
FACTS = {
    name: DatasetFacts(sha256=letter * 64, subset=subset, kind=kind, shape=shape, classes=classes, training=training)
    for name, letter, subset, kind, shape, classes, training in (
        ("cancer", "a", None, TABLE, (30,), 2, 355),
        ("digits", "b", None, IMAGE, (1, 8, 8), 10, 5000),
        ("mnist", "c", "first", IMAGE, (1, 28, 28), 10, 50000),
    )
}


def facts_of(name: str, params: Mapping[str, Any]) -> DatasetFacts:
    return FACTS[name]


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    def planned(text: str) -> tuple[PlannedCell, ...]:
        path = tmp_path / "m.toml"
        path.write_text(text, "utf-8")
        return expand(read(path, registry=REGISTRY), facts_of, registry=REGISTRY)

    return planned


AXES = {"dataset": '["digits"]', "model": '["dlg-lenet"]', "attack": '["dlg"]', "point": '["type-2"]'}


def toml(**changed: str) -> str:
    return "[axes]\n" + "\n".join(f"{name} = {text}" for name, text in {**AXES, **changed}.items()) + "\n"


def attacks(planned: tuple[PlannedCell, ...]) -> list[AttackCell]:
    return [item.cell for item in planned if isinstance(item.cell, AttackCell)]


def test_a_block_is_a_product_of_its_axes_and_of_those_it_shares(plan: Any) -> None:
    found = attacks(
        plan(
            "readings = 3\n"
            + toml(dataset='["digits", "mnist"]', attack='["dlg", "cpl"]', seed="[0, 1]")
            + '[[attack]]\ndataset = ["digits"]\n'
            + '[[attack]]\nattack = ["cpl"]\nseed = [2]\nreadings = [4, 5]\nevaluations = 7\n'
        )
    )
    assert [(c.dataset.name, c.attack.name, c.seed, c.readings, c.evaluations) for c in found] == [
        *(("digits", attack, seed, 3, 500) for attack in ("dlg", "cpl") for seed in (0, 1)),
        *((data, "cpl", 2, readings, 7) for data in ("digits", "mnist") for readings in (4, 5)),
    ]


def test_blocks_need_no_shared_axes_and_axes_no_block(plan: Any) -> None:
    lines = toml(attack='["dlg", "cpl"]').removeprefix("[axes]\n")
    assert plan("[axes]\n" + lines) == plan("[[attack]]\n" + lines)


def test_a_block_may_be_for_one_scale(plan: Any, tmp_path: Path) -> None:
    text = (
        'scales = ["small", "full"]\n'
        + toml()
        + "".join(
            f"[[attack]]\n{scale}seed = [{seed}]\n"
            for seed, scale in enumerate(("", 'scale = "small"\n', 'scale = "full"\n'))
        )
    )
    assert [cell.seed for cell in attacks(plan(text))] == [0, 1]
    full = expand(read(tmp_path / "m.toml", scale="full", registry=REGISTRY), facts_of, registry=REGISTRY)
    assert [cell.seed for cell in attacks(full)] == [0, 2]


def test_two_blocks_with_the_same_cell_give_it_once_and_with_other_budgets_twice(plan: Any) -> None:
    blocks = "[[attack]]\n[[attack]]\nseed = [0]\n[[attack]]\nevaluations = 500\n[[attack]]\nevaluations = 9\n"
    assert [cell.evaluations for cell in attacks(plan(toml() + blocks))] == [500, 9]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_blocks_against_a_slow_oracle(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every combination of values is tried: it is a cell if some block has it in all its lists."""
    values = {"seed": (0, 1), "draw": (0, 1), "readings": (1, 2)}
    lists = {name: st.lists(st.sampled_from(items), min_size=1) for name, items in values.items()}
    drawn = st.fixed_dictionaries({}, optional=lists)
    shared, blocks = data.draw(drawn), data.draw(st.lists(drawn, max_size=4))
    path = tmp_path_factory.getbasetemp() / "oracle.toml"
    text = toml(**{name: str(items) for name, items in shared.items()})
    path.write_text(text + "".join("[[attack]]\n" + "".join(f"{k} = {v}\n" for k, v in b.items()) for b in blocks))
    cells = attacks(expand(read(path, registry=REGISTRY), facts_of, registry=REGISTRY))
    default = {"seed": [0], "draw": [0], "readings": [16]}
    expected = {
        row
        for row in itertools.product((0, 1), (0, 1), (1, 2, 16))
        for block in blocks or [{}]
        if all(value in {**default, **shared, **block}[name] for name, value in zip(values, row, strict=True))
    }
    assert {(cell.seed, cell.draw, cell.readings) for cell in cells} == expected
    assert len(cells) == len(expected)


WIDE = toml(
    dataset='["cancer", "digits"]',
    model='["mlp"]',
    attack='["dlg", { name = "cpl", restarts = 2 }]',
    defense='["none", { name = "prune", sweep = { share = [0.5, 0.7], at = ["a", "b"] } }]',
    weights='["init", { train = { rounds = 4 }, sweep = { round = [1, 4] } }]',
    seed="[0, 1]",
)


def test_cells_that_differ_in_the_defense_share_everything_else(plan: Any) -> None:
    groups: dict[str, set[str]] = {}
    for cell in attacks(plan(WIDE)):
        rest = cell.model_copy(update={"defense": cell.model}).canonical()
        groups.setdefault(rest, set()).add(str(cell.defense))
    assert len(groups) == 2 * 2 * 3 * 2
    assert {frozenset(defenses) for defenses in groups.values()} == {
        frozenset({"none", *(f"prune(at={at}, share={share})" for at in "ab" for share in (0.5, 0.7))})
    }


def test_ids_are_unique_and_the_order_is_that_of_the_lists(plan: Any) -> None:
    found = plan(WIDE)
    assert [item.cell.id for item in found] == [item.cell.id for item in plan(WIDE)]
    assert len({item.cell.id for item in found}) == len(found)
    doubled = toml(attack='["dlg", "dlg", { name = "dlg", restarts = 0 }, "cpl"]')
    assert [cell.attack.name for cell in attacks(plan(doubled))] == ["dlg", "cpl"]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_keys_in_a_table_means_nothing(plan: Any, seed: int) -> None:
    lines = WIDE.splitlines()[1:]
    turned = [*lines[seed:], *lines[:seed]][::-1]
    text = "\n".join(["[axes]", *turned]).replace(
        'sweep = { share = [0.5, 0.7], at = ["a", "b"] }', 'sweep = { at = ["a", "b"], share = [0.5, 0.7] }'
    )
    assert [item.cell.id for item in plan(text)] == [item.cell.id for item in plan(WIDE)]


def test_one_training_serves_every_round_that_is_asked_of_it(plan: Any) -> None:
    text = toml(
        weights="""[
            { train = { rounds = 20 }, sweep = { round = [5, 1] } },
            { train = { rounds = 9 }, round = 0 },
        ]""",
        defense='["none", "prune"]',
    )
    found = plan(
        text
        + '[[train]]\ndataset = ["digits"]\nmodel = ["dlg-lenet"]\nrounds = [20]\ncheckpoints = [20]\n'
        + 'defense = ["none", "noise"]\n'
    )
    trainings = [item.cell for item in found if isinstance(item.cell, TrainingCell)]
    kept = [(cell.rounds, cell.checkpoints, cell.defense.name) for cell in trainings]
    assert kept == [(20, (1, 5, 20), "none"), (9, (0,), "none"), (20, (20,), "noise")]
    assert [type(item.cell) for item in found[:3]] == [TrainingCell] * 3
    for cell in attacks(found):
        assert isinstance(cell.weights, CheckpointWeights)
        assert cell.weights.training == (trainings[1] if cell.weights.round == 0 else trainings[0]).id


def test_a_training_has_the_cells_setting_and_seed_unless_it_names_its_own(plan: Any) -> None:
    text = toml(
        weights="[{ train = { rounds = 3 }, round = 1 }, "
        '{ train = { rounds = 3, federated = { algorithm = "fedavg", steps = 20 }, test_every = 1 }, '
        "round = 1 }]",
        federated="[{ batch = 2 }]",
        seed="[0, 7]",
    )
    found = [item.cell for item in plan(text) if isinstance(item.cell, TrainingCell)]
    assert [(c.federated.batch, c.federated.steps, c.test_every, c.seed) for c in found] == [
        (2, 1, 5, 0),
        (2, 1, 5, 7),
        (3, 20, 1, 0),
        (3, 20, 1, 7),
    ]


def test_a_weights_file_for_each_seed(plan: Any, tmp_path: Path) -> None:
    for seed, content in enumerate((b"zero", b"one")):
        (tmp_path / f"w-{seed}.safetensors").write_bytes(content)
    found = attacks(plan(toml(weights='[{ file = "w-{seed}.safetensors" }]', seed="[0, 1]")))
    weights = [cell.weights for cell in found if isinstance(cell.weights, FileWeights)]
    hashes = [hashlib.sha256(content).hexdigest() for content in (b"zero", b"one")]
    assert [w.sha256 for w in weights] == hashes
    assert [Path(w.path).name for w in weights] == ["w-0.safetensors", "w-1.safetensors"]
    assert {w.series for w in weights} == {"w-{seed}.safetensors"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("w-{seed}", "'w-1' is not a file; mend the path, below "),
        ("../w-{seed}", "'../w-0' lies outside the matrix's folder; copy it beside the matrix"),
    ],
)
def test_a_seed_without_its_weights_file_is_an_error(plan: Any, tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "w-0").write_bytes(b"zero")
    with pytest.raises(MatrixError) as error:
        plan(toml(weights=f'[{{ file = "{name}" }}]', seed="[0, 1]"))
    assert str(error.value).splitlines()[0].startswith(f"{tmp_path / 'm.toml'}: weights: {message}")


def test_data_are_resolved_once_and_named_by_content(tmp_path: Path) -> None:
    path, looked_up = tmp_path / "m.toml", list[str]()

    def facts(name: str, params: Mapping[str, Any]) -> DatasetFacts:
        looked_up.append(name)
        return FACTS[name]

    path.write_text(toml(dataset='["digits", "mnist"]', seed="[0, 1, 2]"), "utf-8")
    found = attacks(expand(read(path, registry=REGISTRY), facts, registry=REGISTRY))
    assert looked_up == ["digits", "mnist"]
    assert {(cell.dataset.sha256[0], cell.dataset.subset) for cell in found} == {("b", None), ("c", "first")}


FITS = toml(model='["dlg-lenet", "mlp"]', dataset='["cancer", "digits"]')
IMPOSSIBLE = [
    (FITS, "dlg-lenet takes image, cancer is a table", 1, 3),
    (toml(knowledge='["plain", "adaptive"]'), "dlg knows plain, not adaptive", 1, 1),
    (
        toml(point='["type-2", "type-2-step", "type-1", "type-0", "aggregate"]', federated="[{ batch = 17 }]"),
        "too many unknowns: 17 examples behind a reading, at most 16",
        3,
        1,
    ),
    (
        toml(point='["type-0", "aggregate"]', federated="[{ batch = 3 }]"),
        "too many unknowns: 30 examples behind a reading, at most 16",
        1,
        1,
    ),
    (
        toml(point='["type-2", "type-1"]', federated='[{ algorithm = "fedavg", steps = 11, batch = 1 }]'),
        "too many unknowns: 11 local steps, at most 10",
        1,
        1,
    ),
    (
        toml(federated="[{ batch = 3, sweep = { client_examples = [2, 3] } }]"),
        "a client with 2 examples has no batch of 3",
        1,
        1,
    ),
    (
        toml(federated="[{ sweep = { clients = [100, 6000] } }]"),
        "no examples for 6000 clients, of 5000 for training",
        1,
        1,
    ),
    (
        toml(federated="[{ sweep = { client_examples = [50, 5001] } }]"),
        "no client can hold 5001 examples, of 5000 for training",
        1,
        1,
    ),
    (
        toml(federated='[{ client_examples = 15, sweep = { partition = ["iid", "two-shard"] } }]'),
        "two-shard gives a client two equal parts, 15 examples are odd",
        1,
        1,
    ),
    (  # 5000 over 1000 clients: 5 for each, and 4 where a client has two parts
        toml(federated='[{ clients = 1000, batch = 5, sweep = { partition = ["iid", "two-class"] } }]'),
        "a client with 4 examples has no batch of 5",
        1,
        1,
    ),
    (
        toml(
            point='["type-2", "type-2-step", "type-1", "type-0"]',
            federated='[{ algorithm = "fedavg", steps = 5, batch = 3, client_examples = 14 }]',
        ),
        "a reading would hold the same example twice: 15 of a client with 14",
        2,
        2,
    ),
    (
        toml(readings="[20, 21]", federated="[{ clients = 20 }]"),
        "21 readings of one client each, at most 20 are distinct with 20 clients",
        1,
        1,
    ),
    (
        toml(
            point='["type-0", "aggregate"]',
            readings="[9, 10]",
            federated="[{ clients = 28, per_round = 3, batch = 2 }]",
        ),
        "10 readings of 3 clients each, at most 9 are distinct with 28 clients",
        1,
        3,
    ),
    (
        toml(model='["fed-cnn"]', dataset='["digits", "mnist"]'),
        "fed-cnn does not fit 1×8×8: its layers do not fit inputs of this size",
        1,
        1,
    ),
]


@pytest.mark.parametrize(("text", "reason", "times", "run"), IMPOSSIBLE, ids=[row[1] for row in IMPOSSIBLE])
def test_what_cannot_run_inside_a_product_is_planned_with_its_reason(
    plan: Any, text: str, reason: str, times: int, run: int
) -> None:
    found = [item.impossible for item in plan(text)]
    assert found.count(reason) == times
    assert found.count(None) == run


@dataclass(frozen=True, kw_only=True)
class Reader(Model):
    """A plug-in's model that looks at values, which tensors without memory do not have."""

    reference = "a test"
    takes = ("image",)
    fault: bool = parameter(False, "whether it is broken")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if self.fault:
            raise KeyError("a mistake in the plug-in")
        return Looking(nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes)))


class Looking(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x * float(x.sum()))


@pytest.mark.parametrize("fault", ["true", "false"])
def test_a_model_is_not_ruled_out_for_what_the_trial_cannot_tell(
    plan: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setitem(NAMES["models"], "reader", Reader)
    found = plan(toml(model=f'[{{ name = "reader", fault = {fault} }}]'))
    assert [item.impossible for item in found] == [None]


def test_batch_norm_is_refused_with_the_models_own_words(plan: Any) -> None:
    text = toml(model='[{ name = "convnet8", width = 2, sweep = { batch_norm = [false, true] } }]', dataset='["mnist"]')
    free, refused = (item.impossible for item in plan(text))
    assert free is None
    assert "convnet8 does not fit 1×28×28: batch statistics mix the examples" in refused


def test_an_attack_on_a_training_that_cannot_run_cannot_run(plan: Any) -> None:
    text = toml(weights='["init", { train = { rounds = 3, federated = { client_examples = 2 } }, round = 1 }]')
    reason = "a client with 2 examples has no batch of 3"
    assert [item.impossible for item in plan(text)] == [reason, None, reason]


def test_a_training_is_not_held_to_what_an_attack_needs(plan: Any) -> None:
    text = toml(
        point='["type-1"]',
        federated="[{ clients = 12, batch = 9, client_examples = 10 }]",
        weights='[{ train = { rounds = 3, federated = { algorithm = "fedavg", steps = 20 } }, round = 1 }]',
        readings="[12, 13]",
    )
    reason = "13 readings of one client each, at most 12 are distinct with 12 clients"
    assert [item.impossible for item in plan(text)] == [None, None, reason]


def test_a_matrix_of_which_nothing_can_run_is_an_error(plan: Any, tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        plan(toml(dataset='["cancer"]', seed="[0, 1]"))
    assert str(caught.value) == (
        f"{tmp_path / 'm.toml'}: axes: nothing is left: every cell is n/a: "
        "dlg-lenet takes image, cancer is a table; add a combination that can run"
    )
