"""Axes become cells as GitHub Actions would have it; what cannot run is said; none comes twice."""

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
from bench.matrix.combine import Choice, Extra, combine
from bench.matrix.expand import Planned, expand
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
    "cancer": SimpleNamespace(
        sha256="a" * 64, subset=None, kind="table", shape=(30,), classes=2, training=355
    ),
    "digits": SimpleNamespace(
        sha256="b" * 64, subset=None, kind="image", shape=(1, 8, 8), classes=10, training=5000
    ),
    "mnist": SimpleNamespace(
        sha256="c" * 64, subset="first", kind="image", shape=(1, 28, 28), classes=10, training=50000
    ),
}


class Resolver:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def data(self, name: str, params: Mapping[str, Any]) -> Any:
        self.asked.append(name)
        return FACTS[name]


@pytest.fixture
def plan(tmp_path: Path) -> Any:
    def planned(text: str) -> tuple[Planned, ...]:
        path = tmp_path / "m.toml"
        path.write_text(text, "utf-8")
        return expand(read(path, registry=REGISTRY), resolve=Resolver(), registry=REGISTRY)

    return planned


AXES = {
    "dataset": '["digits"]', "model": '["dlg-lenet"]', "attack": '["dlg"]', "point": '["type-2"]',
}  # fmt: skip


def toml(**changed: str) -> str:
    return "[axes]\n" + "\n".join(f"{name} = {text}" for name, text in {**AXES, **changed}.items()) + "\n"


def attacks(planned: tuple[Planned, ...]) -> list[AttackCell]:
    return [item.cell for item in planned if isinstance(item.cell, AttackCell)]


def plain(axes: dict[str, list[Any]]) -> dict[str, list[Choice]]:
    return {name: [Choice(value, value) for value in values] for name, values in axes.items()}


def extras(entries: list[dict[str, Any]]) -> list[dict[str, Extra]]:
    return [{key: Extra(value, Choice(value, value)) for key, value in entry.items()} for entry in entries]


def rows(found: Any) -> list[dict[str, Any]]:
    return [{key: choice.value for key, choice in row.choices.items()} for row in found]


# GitHub Docs, "Running variations of jobs in a workflow": the example of `include` and its result.
def test_githubs_own_example_of_include() -> None:
    axes = plain({"fruit": ["apple", "pear"], "animal": ["cat", "dog"]})
    include = extras(
        [
            {"color": "green"},
            {"color": "pink", "animal": "cat"},
            {"fruit": "apple", "shape": "circle"},
            {"fruit": "banana"},
            {"fruit": "banana", "animal": "cat"},
        ]
    )
    found = combine(axes, (), include)
    assert rows(found) == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]
    assert [row.alone for row in found] == [None] * 4 + [3, 4]


def test_githubs_example_transposed_to_axes_of_ours(plan: Any) -> None:
    axes = toml(dataset='["digits", "mnist"]', attack='["dlg", "cpl"]')
    found = attacks(
        plan(
            axes
            + "[[include]]\nevaluations = 7\n"
            + '[[include]]\nevaluations = 9\nattack = "dlg"\n'
            + '[[include]]\ndataset = "digits"\nreadings = 3\n'
            + '[[include]]\ndataset = "cancer"\nmodel = "mlp"\nattack = "cpl"\npoint = "type-1"\n'
        )
    )
    assert [(c.dataset.name, c.attack.name, c.evaluations, c.readings) for c in found] == [
        ("digits", "dlg", 9, 3),
        ("digits", "cpl", 7, 3),
        ("mnist", "dlg", 9, 16),
        ("mnist", "cpl", 7, 16),
        ("cancer", "cpl", 500, 16),
    ]


# GitHub Docs, same page, "Excluding matrix configurations": 12 combinations less 1 and less 2.
def test_exclude_needs_a_partial_match_only() -> None:
    axes = plain(
        {"os": ["macos", "windows"], "version": [12, 14, 16], "environment": ["staging", "production"]}
    )
    exclude = [
        {"os": "macos", "version": 12, "environment": "production"},
        {"os": "windows", "version": 16},
    ]
    found = rows(combine(axes, exclude))
    assert len(found) == 12 - 1 - 2
    assert not any(all(row[k] == v for k, v in entry.items()) for row in found for entry in exclude)


def test_include_comes_after_exclude_and_can_bring_back_what_was_dropped() -> None:
    axes = plain({"a": [1, 2]})
    assert rows(combine(axes, [{"a": 1}], extras([{"a": 1}]))) == [{"a": 2}, {"a": 1}]


def test_include_alone_makes_combinations_of_its_own() -> None:
    assert rows(combine({}, (), extras([{"a": 1}, {"b": 2}]))) == [{"a": 1}, {"b": 2}]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(data=st.data())
def test_include_and_exclude_against_a_slow_oracle(data: Any) -> None:
    values = st.integers(0, 2)
    axes = data.draw(st.dictionaries(st.sampled_from("abc"), st.lists(values, min_size=1, unique=True)))
    entry = st.dictionaries(st.sampled_from("abcde"), values, min_size=1)
    include = data.draw(st.lists(entry, max_size=4))
    exclude = [
        {k: v for k, v in drawn.items() if k in axes} for drawn in data.draw(st.lists(entry, max_size=3))
    ]
    exclude = [drawn for drawn in exclude if drawn]
    original = (
        [dict(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())] if axes else []
    )
    original = [row for row in original if not any(row.items() >= drop.items() for drop in exclude)]
    expected, alone = [dict(row) for row in original], []
    for added in include:
        hits = [i for i, row in enumerate(original) if {**added, **row}.items() >= added.items()]
        for i in hits:
            expected[i] = {**expected[i], **added}
        if not hits:
            alone.append(added)
    assert rows(combine(plain(axes), exclude, extras(include))) == expected + alone


def test_a_bare_name_matches_any_parameters_and_a_table_those_it_has(plan: Any) -> None:
    axes = toml(defense='["none", { name = "prune", sweep = { share = [0.1, 0.2], at = ["a", "b"] } }]')
    bare = attacks(plan(axes + '[[exclude]]\ndefense = "prune"'))
    assert [cell.defense.name for cell in bare] == ["none"]
    table = attacks(plan(axes + '[[exclude]]\ndefense = { name = "prune", share = 0.1 }'))
    assert [cell.defense.params.get("share") for cell in table] == [None, 0.2, 0.2]


def test_exclude_takes_part_of_a_federated_setting_and_of_weights(plan: Any) -> None:
    axes = toml(
        federated='[{ algorithm = "fedavg", sweep = { steps = [1, 5], batch = [1, 2] } }]',
        weights='["init", { train = { rounds = 9 }, sweep = { round = [1, 9] } }]',
    )
    found = attacks(
        plan(axes + "[[exclude]]\nfederated = { steps = 5 }\n[[exclude]]\nweights = { round = 9 }")
    )
    assert {cell.federated.steps for cell in found} == {1}
    assert {getattr(cell.weights, "round", None) for cell in found} == {None, 1}
    assert len(found) == 2 * 2
    only = attacks(plan(axes + '[[exclude]]\nweights = "init"'))
    assert {cell.weights.kind for cell in only} == {"checkpoint"}


def test_grants_are_matched_as_a_whole(plan: Any) -> None:
    axes = toml(grants='[[], ["labels"], ["labels", { repeated-readings = 100 }]]')
    found = attacks(plan(axes + '[[exclude]]\ngrants = ["labels"]'))
    assert [(cell.grants.labels, cell.grants.repeated_readings) for cell in found] == [
        (False, 1),
        (True, 100),
    ]


WIDE = toml(
    dataset='["cancer", "digits"]', model='["mlp"]', attack='["dlg", { name = "cpl", restarts = 2 }]',
    defense='["none", { name = "prune", sweep = { share = [0.5, 0.7], at = ["a", "b"] } }]',
    weights='["init", { train = { rounds = 4 }, sweep = { round = [1, 4] } }]', seed="[0, 1]",
)  # fmt: skip


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
    assert [(cell.rounds, cell.checkpoints, cell.defense.name) for cell in trainings] == [
        (20, (1, 5, 20), "none"),
        (9, (0,), "none"),
        (20, (20,), "noise"),
    ]
    assert [type(item.cell) for item in found[:3]] == [TrainingCell] * 3
    for cell in attacks(found):
        assert isinstance(cell.weights, CheckpointWeights)
        assert cell.weights.training == (trainings[1] if cell.weights.round == 0 else trainings[0]).id


def test_a_training_has_the_cells_setting_and_seed_unless_it_names_its_own(plan: Any) -> None:
    text = toml(
        weights='[{ train = { rounds = 3 }, round = 1 }, '
        '{ train = { rounds = 3, federated = { algorithm = "fedavg", steps = 20 }, test_every = 1 }, '
        "round = 1 }]",
        federated="[{ batch = 2 }]", seed="[0, 7]",
    )  # fmt: skip
    found = [item.cell for item in plan(text) if isinstance(item.cell, TrainingCell)]
    assert [(c.federated.batch, c.federated.steps, c.test_every, c.seed) for c in found] == [
        (2, 1, 5, 0), (2, 1, 5, 7), (3, 20, 1, 0), (3, 20, 1, 7),
    ]  # fmt: skip


def test_a_weights_file_for_each_seed(plan: Any, tmp_path: Path) -> None:
    for seed, content in enumerate((b"zero", b"one")):
        (tmp_path / f"w-{seed}.safetensors").write_bytes(content)
    found = attacks(plan(toml(weights='[{ file = "w-{seed}.safetensors" }]', seed="[0, 1]")))
    weights = [cell.weights for cell in found]
    assert [w.sha256 for w in weights if isinstance(w, FileWeights)] == [
        hashlib.sha256(content).hexdigest() for content in (b"zero", b"one")
    ]
    assert [Path(w.path).name for w in weights if isinstance(w, FileWeights)] == [
        "w-0.safetensors",
        "w-1.safetensors",
    ]
    only = toml(weights='["init", { file = "w-{seed}.safetensors" }]')
    rest = attacks(plan(only + '[[exclude]]\nweights = { file = "w-{seed}.safetensors" }'))
    assert [cell.weights.kind for cell in rest] == ["init"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("w-{seed}", "'w-1' is not a file; mend the path, below "),
        ("../w-{seed}", "'../w-0' lies outside the matrix's folder; copy it beside the matrix"),
    ],
)
def test_a_seed_without_its_weights_file_is_a_fault(plan: Any, tmp_path: Path, name: str, fault: str) -> None:
    (tmp_path / "w-0").write_bytes(b"zero")
    with pytest.raises(MatrixError) as error:
        plan(toml(weights=f'[{{ file = "{name}" }}]', seed="[0, 1]"))
    assert (
        str(error.value).splitlines()[0].startswith(f"{tmp_path / 'm.toml'}: axes.weights[0].file: {fault}")
    )


def test_data_are_resolved_once_and_named_by_content(tmp_path: Path) -> None:
    path, resolver = tmp_path / "m.toml", Resolver()
    path.write_text(toml(dataset='["digits", "mnist"]', seed="[0, 1, 2]"), "utf-8")
    found = attacks(expand(read(path, registry=REGISTRY), resolve=resolver, registry=REGISTRY))
    assert resolver.asked == ["digits", "mnist"]
    assert {(cell.dataset.sha256[0], cell.dataset.subset) for cell in found} == {("b", None), ("c", "first")}


FITS = toml(model='["dlg-lenet", "mlp"]', dataset='["cancer", "digits"]')
IMPOSSIBLE = [
    (FITS, "dlg-lenet takes image, cancer is a table", 1, 3),
    (toml(knowledge='["plain", "adaptive"]'), "dlg knows plain, not adaptive", 1, 1),
    (
        toml(
            point='["type-2", "type-2-step", "type-1", "type-0", "aggregate"]',
            federated="[{ batch = 17 }]",
        ),
        "too many unknowns: 17 pictures behind a reading, at most 16", 3, 1,
    ),
    (
        toml(point='["type-0", "aggregate"]', federated="[{ batch = 3 }]"),
        "too many unknowns: 30 pictures behind a reading, at most 16", 1, 1,
    ),
    (
        toml(point='["type-2", "type-1"]', federated='[{ algorithm = "fedavg", steps = 11, batch = 1 }]'),
        "too many unknowns: 11 local steps, at most 10", 1, 1,
    ),
    (
        toml(federated="[{ batch = 3, sweep = { client_examples = [2, 3] } }]"),
        "a client with 2 examples has no batch of 3", 1, 1,
    ),
    (
        toml(federated="[{ sweep = { clients = [100, 6000] } }]"),
        "no examples for 6000 clients, of 5000 for training", 1, 1,
    ),
    (
        toml(federated="[{ sweep = { client_examples = [50, 5001] } }]"),
        "no client can hold 5001 examples, of 5000 for training", 1, 1,
    ),
    (
        toml(federated='[{ client_examples = 15, sweep = { partition = ["iid", "two-shard"] } }]'),
        "two-shard gives a client two equal parts, 15 examples are odd", 1, 1,
    ),
    (  # 5000 over 1000 clients: 5 for each, and 4 where a client has two parts
        toml(federated='[{ clients = 1000, batch = 5, sweep = { partition = ["iid", "two-class"] } }]'),
        "a client with 4 examples has no batch of 5", 1, 1,
    ),
    (
        toml(
            point='["type-2", "type-2-step", "type-1", "type-0"]',
            federated='[{ algorithm = "fedavg", steps = 5, batch = 3, client_examples = 14 }]',
        ),
        "a reading would hold the same example twice: 15 of a client with 14", 2, 2,
    ),
    (
        toml(readings="[20, 21]", federated="[{ clients = 20 }]"),
        "21 readings of one client each, at most 20 are distinct with 20 clients", 1, 1,
    ),
    (
        toml(
            point='["type-0", "aggregate"]', readings="[9, 10]",
            federated="[{ clients = 28, per_round = 3, batch = 2 }]",
        ),
        "10 readings of 3 clients each, at most 9 are distinct with 28 clients", 1, 3,
    ),
    (
        toml(model='["fed-cnn"]', dataset='["digits", "mnist"]'),
        "fed-cnn does not fit 1×8×8: its layers do not fit inputs of this size", 1, 1,
    ),
]  # fmt: skip


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
    text = toml(
        model='[{ name = "convnet8", width = 2, sweep = { batch_norm = [false, true] } }]',
        dataset='["mnist"]',
    )
    free, refused = (item.impossible for item in plan(text))
    assert free is None
    assert "convnet8 does not fit 1×28×28: batch statistics mix the examples" in refused


def test_an_attack_on_a_training_that_cannot_run_cannot_run(plan: Any) -> None:
    text = toml(
        weights='["init", { train = { rounds = 3, federated = { client_examples = 2 } }, round = 1 }]'
    )
    reason = "a client with 2 examples has no batch of 3"
    assert [item.impossible for item in plan(text)] == [reason, None, reason]


def test_a_training_is_not_held_to_what_an_attack_needs(plan: Any) -> None:
    text = toml(
        point='["type-1"]', federated='[{ clients = 12, batch = 9, client_examples = 10 }]',
        weights='[{ train = { rounds = 3, federated = { algorithm = "fedavg", steps = 20 } }, round = 1 }]',
        readings="[12, 13]",
    )  # fmt: skip
    reason = "13 readings of one client each, at most 12 are distinct with 12 clients"
    assert [item.impossible for item in plan(text)] == [None, None, reason]


def test_an_entry_that_stands_alone_must_be_able_to_run(plan: Any, tmp_path: Path) -> None:
    text = toml() + '[[include]]\ndataset = "cancer"\nmodel = "dlg-lenet"\nattack = "cpl"\npoint = "type-2"\n'
    with pytest.raises(MatrixError) as caught:
        plan(text)
    assert str(caught.value) == (
        f"{tmp_path / 'm.toml'}: include[0]: stands alone and cannot run: "
        "dlg-lenet takes image, cancer is a table; change or drop it"
    )


def test_a_matrix_of_which_nothing_can_run_is_a_fault(plan: Any, tmp_path: Path) -> None:
    with pytest.raises(MatrixError) as caught:
        plan(toml(dataset='["cancer"]', seed="[0, 1]"))
    assert str(caught.value) == (
        f"{tmp_path / 'm.toml'}: axes: nothing is left: every cell is n/a: "
        "dlg-lenet takes image, cancer is a table; add a combination that can run"
    )
