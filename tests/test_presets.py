"""Every shipped preset is a valid matrix with a title, and plans cells that can run."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest

from bench import PROTOCOL
from bench.cell import AnyCell, AttackCell, DataRef, Entry, FileWeights, InitialWeights, TrainingCell
from bench.cli import run
from bench.datasets.base import Dataset
from bench.errors import MatrixError
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.kinds.texts import TEXT
from bench.matrix.document import PRESETS, document, preset_names
from bench.matrix.expand import PlannedCell, expand
from bench.matrix.feasible import DatasetFacts
from bench.matrix.messages import Errors
from bench.matrix.published import beside
from bench.matrix.read import read
from bench.matrix.suites import ATTACKS, MATRICES, OF_DEFENSES, SUITES, VERSIONS, ranking, ranking_line
from bench.points import POINTS
from bench.record.checkpoints import fit, read_about, read_weights
from bench.registry import entries as registry
from bench.sweep.plan import Resolver

# Shape, classes and examples for training, five sixths of what is not for testing.
SHAPES = {
    "cancer": ((30,), 2, 355),
    "adult": ((105,), 2, 30526),
    "digits": ((1, 8, 8), 10, 1122),
    "mnist": ((1, 28, 28), 10, 50000),
    "fashion-mnist": ((1, 28, 28), 10, 50000),
    "cifar10": ((3, 32, 32), 10, 41667),
    "cifar10-10k": ((3, 32, 32), 10, 8333),
    "cifar10-mobilenet": ((1280,), 10, 8333),
    "cifar100": ((3, 32, 32), 100, 41667),
    "lfw": ((3, 32, 32), 62, 1889),
    "aptos": ((2048,), 5, 28985),
    "opinions": ((20,), 2, 5000),
    "reviews": ((24,), 2, 7969),
}
STANDARD_V1 = "a0d41babd5d6e58c4044342406b272f46f8f4214fde0d1cabf791d905aa6d511"
ATTACKS_V1 = "38fef5ec4564a439bce6e9f973b4ab13eb0f1759a6b8069e0767ce2b77a64dfd"
EMBEDDED = ("cancer", "digits", "opinions")
NAMES = preset_names()


def facts_of(name: str, params: Mapping[str, Any]) -> DatasetFacts:
    """Facts on the data by name: presets are checked without the data."""
    shape, classes, training = SHAPES[name]
    kind = IMAGE if len(shape) == 3 else TEXT if len(shape) == 1 and shape[0] < 30 else TABLE
    return DatasetFacts(sha256="0" * 64, subset=None, kind=kind, shape=shape, classes=classes, training=training)


@cache
def planned(name: str, scale: str | None = None) -> tuple[PlannedCell, ...]:
    return tuple(expand(read(name, scale=scale), facts_of))


def cells(name: str) -> list[AttackCell]:
    return [item.cell for item in planned(name) if isinstance(item.cell, AttackCell)]


def test_the_shapes_above_name_data_sets_that_are_there() -> None:
    for name in SHAPES:
        entry: Any = registry.load("datasets", name)
        assert issubclass(entry, Dataset)
        assert entry.kind == facts_of(name, {}).kind.name


@pytest.mark.parametrize("name", EMBEDDED)
def test_the_facts_above_are_those_of_the_data_that_come_along(name: str) -> None:
    facts = Resolver(None).data(name, {})
    assert (facts.shape, facts.classes, facts.training) == SHAPES[name]


def scales(name: str) -> list[str | None]:
    return [*document(PRESETS / f"{name}.toml", Errors(name)).get("scales", [None])]


@pytest.mark.parametrize(("name", "scale"), [(name, scale) for name in NAMES for scale in scales(name)])
def test_every_preset_reads_and_all_its_cells_can_run(name: str, scale: str | None) -> None:
    assert {item.impossible for item in planned(name, scale)} == {None}


def test_fed_alpha_cdp_comes_whole_and_in_two_sizes() -> None:
    tables = {f"fed-alpha-cdp/table-{number}" for number in (1, *range(3, 12))}
    assert tables | {f"fed-alpha-cdp/{name}" for name in ("figure-3", "figure-4", "full-size")} <= set(NAMES)
    for name in sorted(tables - {"fed-alpha-cdp/table-1", "fed-alpha-cdp/table-3"}):
        sizes = (planned(name, scale) for scale in scales(name))
        small, full = ([item.cell for item in size] for size in sizes)
        assert all(isinstance(cell, TrainingCell) for cell in (*small, *full))
        assert {cell.federated.steps for cell in small if cell.model.name == "fed-cnn"} == {20}
        assert {cell.federated.steps for cell in full} == {100}
        assert read(name).published, name


def test_every_preset_has_a_title() -> None:
    assert {"quickstart", "resilience", *SUITES} <= set(NAMES)
    for name in NAMES:
        assert len(read(name).title) >= 20, name


def test_quickstart_pairs_each_data_set_with_its_model() -> None:
    found = cells("quickstart")
    pairs = {(cell.dataset.name, cell.model.name) for cell in found}
    assert pairs == {("cancer", "mlp"), ("digits", "dlg-lenet"), ("opinions", "tiny-transformer")}
    assert len({str(cell.defense) for cell in found}) == 6
    assert {cell.point for cell in found} == {"type-2", "type-1", "type-0"}


def test_the_budgets_of_resilience_follow_data_and_attack() -> None:
    budgets = {(c.dataset.name, c.attack.name): c.evaluations for c in cells("resilience")}
    lbfgs = {"mnist": 500, "cifar10": 1200, "lfw": 1200}
    del budgets["mnist", "learned-inverter"]  # it matches nothing
    assert budgets == {
        (data, attack): 1000 if attack == "gradinv" else lbfgs[data]
        for data in lbfgs
        for attack in ("dlg", "idlg", "cpl", "gradinv", "map")
    }


def test_resilience_crosses_everything_with_batches_of_three_and_of_one() -> None:
    found = cells("resilience")
    points = Counter((cell.federated.batch, cell.point) for cell in found)
    assert set(points) == {(3, "type-2"), (3, "type-1"), (3, "type-0"), (1, "type-1"), (1, "type-0")}
    # on each data set four published attacks, `map` plain and adaptive; on MNIST one who can only run the defense
    attackers = 3 * (4 + 2) + 1
    assert set(points.values()) == {attackers * 6}
    assert set(Counter(str(cell.defense) for cell in found).values()) == {attackers * 5}
    assert {(cell.readings, cell.federated.steps) for cell in found} == {(16, 1)}


@pytest.mark.parametrize("name", OF_DEFENSES)
def test_a_suite_is_the_same_for_every_defense(name: str) -> None:
    matrix = read(MATRICES.get(name, name), more_defenses=("prune",))
    assert matrix.suite == MATRICES.get(name, name)
    found = [item.cell for item in expand(matrix, facts_of)]
    same = {"defense": Entry(name="any"), "after": ()}
    by_defense = {
        defense: Counter(
            cell.model_copy(update={key: value for key, value in same.items() if hasattr(cell, key)}).canonical()
            for cell in found
            if cell.defense.name == defense
        )
        for defense in ("none", "prune")
    }
    assert by_defense["none"] == by_defense["prune"]
    assert sum(by_defense["none"].values()) * 2 == len(found)


def content(cells: Iterable[AnyCell]) -> str:
    """SHA-256 of a suite's cells, whatever copies of the data sets are here; of weights files the content counts."""
    nowhere = "0" * 64
    texts = set()
    for cell in cells:
        data = DataRef(name=cell.dataset.name, params=cell.dataset.params, sha256=nowhere)
        fixed: dict[str, Any] = {"dataset": data}
        if cell.kind == "attack":
            fixed["after"] = (nowhere,) * len(cell.after)  # ids depend on the data
            if isinstance(cell.weights, FileWeights):
                fixed["weights"] = cell.weights.model_copy(update={"path": ""})
        texts.add(cell.model_copy(update=fixed).canonical())
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()


def test_standard_is_a_cascade_and_what_was_published_as_its_version() -> None:
    """`standard-v1` is frozen: its attacks, budgets, conditions and trainings, under protocol 3.  Whoever changes one
    makes the next version, or puts it into `extra`."""
    matrix = read("standard", more_defenses=("prune",))
    assert matrix.cascade
    assert (VERSIONS["standard"], PROTOCOL) == ("standard-v1", 3)
    assert content(item.cell for item in expand(matrix, facts_of)) == STANDARD_V1


def test_the_suite_of_attacks_is_a_full_cross_on_twelve_conditions() -> None:
    """Every attack has the same victims, weights and budget; conditions and budgets are frozen, attacks are rows."""
    matrix = read(ATTACKS)
    found = cells(ATTACKS)
    assert not matrix.cascade and len(found) == len(planned(ATTACKS))
    by_attack: dict[str, list[AttackCell]] = {}
    for cell in found:
        alike = cell.model_copy(update={"attack": Entry(name="any"), "knowledge": "plain"})
        by_attack.setdefault(cell.attack.name, []).append(alike)
    conditions = {name: [cell.canonical() for cell in each] for name, each in by_attack.items()}
    assert len(set(map(tuple, conditions.values()))) == 1
    first = next(iter(by_attack.values()))
    settings = Counter(cell.model_copy(update={"seed": 0, "weights": InitialWeights()}).canonical() for cell in first)
    assert len(settings) == 12 and set(settings.values()) == {4}
    assert content(first) == ATTACKS_V1
    for cell in first:
        size = POINTS[cell.point].examples(
            batch=cell.federated.batch, steps=cell.federated.steps, senders=cell.federated.per_round
        )
        assert 4 * cell.readings * size >= 16 and cell.grants.labels
    assert len({str(cell.defense) for cell in first}) == 1 + 5


def test_the_suite_of_attacks_names_every_attack_that_reconstructs_from_its_readings() -> None:
    named = {cell.attack.name for cell in cells(ATTACKS)}
    others = set(registry.names("attacks")) - named
    # baselines without a gradient; a list of candidates; mixtures, which no condition has; servers that choose weights;
    # texts; a closed form for single undefended examples; ReLUs behind a fully connected first layer; the noise of a
    # single defense
    baselines = {"prior-mean", "prior-nearest", "prior-class-mean", "labels-only"}
    assert others == {
        *baselines,
        "gallery",
        "demix",
        "bins",
        "trap",
        "fishing",
        "token-span",
        "token-matching",
        "r-gap",
        "spear",
        "compensated-gradinv",
    }


def test_each_attack_of_the_suite_knows_the_most_that_it_accepts() -> None:
    known = {cell.attack.name: cell.knowledge for cell in cells(ATTACKS)}
    assert {name for name, knowledge in known.items() if knowledge != "adaptive"} == {
        "learned-inverter",
        "analytic",
        "cpa",
    }
    assert (known["learned-inverter"], known["analytic"]) == ("black-box", "plain")


def test_attacks_of_the_command_line_replace_a_suites_attacks() -> None:
    found = [item.cell for item in expand(read(ATTACKS, attacks=("cpl:restarts=3,map",)), facts_of)]
    assert {cell.attack.name for cell in found if isinstance(cell, AttackCell)} == {"map", "cpl"}
    assert len(found) == 2 * 48
    with pytest.raises(MatrixError, match=r"--attack: unknown attack 'mapx'; did you mean 'map'\?"):
        read(ATTACKS, attacks=("mapx",))


def test_knowledge_beside_informed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        'informed = true\n[axes]\ndataset = ["digits"]\nmodel = ["mlp"]\nattack = ["dlg"]\npoint = ["type-2"]\n'
        'knowledge = ["plain"]'
    )
    with pytest.raises(MatrixError, match="knowledge: `informed` chooses each attack's knowledge"):
        read(tmp_path / "m.toml")


def test_standard_has_the_conditions_that_tell_most() -> None:
    """Untrained and trained nets, pictures and a table, batches, local steps, every point; each figure is of 64
    examples and more, over four weight seeds."""
    found = [cell for cell in cells("standard") if not cell.grants.gallery]
    states = Counter(
        (cell.dataset.name, cell.model.name, cell.model.params.get("activation"), _stage(cell)) for cell in found
    )
    sigmoid, relu = ("dlg-lenet", "sigmoid", "untrained"), ("dlg-lenet", "relu")
    assert set(states) == {
        *((data, *sigmoid) for data in ("mnist", "cifar10-10k")),
        *((data, *relu, stage) for data in ("mnist", "cifar10-10k") for stage in ("early", "late")),
        ("cifar10-10k", "resnet20", None, "early"),
        ("adult", "mlp", "sigmoid", "untrained"),
    }
    assert {(cell.federated.batch, cell.federated.steps) for cell in found} == {(1, 1), (8, 1), (1, 3)}
    assert {cell.point for cell in found} == {"type-2", "type-1", "type-0", "aggregate"}
    figures: dict[tuple[Any, ...], set[int]] = {}
    for cell in found:
        examples = POINTS[cell.point].examples(
            batch=cell.federated.batch, steps=cell.federated.steps, senders=cell.federated.per_round
        )
        key = (cell.dataset.name, str(cell.model), _stage(cell), str(cell.federated), cell.point, str(cell.attack))
        figures.setdefault((*key, cell.readings * examples), set()).add(cell.seed)
    assert all(key[-1] * len(seeds) >= 64 and len(seeds) == 4 for key, seeds in figures.items())


def _stage(cell: AttackCell) -> str:
    """Which weights a cell attacks: untrained, early or late in training."""
    weights = cell.weights
    return Path(weights.path).stem.split("-")[2] if isinstance(weights, FileWeights) else "untrained"


def test_the_shipped_checkpoints_are_those_of_their_training_and_fit_their_model() -> None:
    """By id: setting, data and seed are those of checkpoints/training.  Above chance, .1, by 3σ."""
    subset = {"mnist": None, "cifar10": "10000 of 50000 training, 1000 of 10000 test pictures"}
    trained = {
        (item.cell.dataset.name, item.cell.model.name, item.cell.seed): item.cell
        for item in planned("checkpoints/training")
        if isinstance(item.cell, TrainingCell)
    }
    paths = sorted((PRESETS / "checkpoints").glob("*.safetensors"))
    assert len(paths) == 24
    accuracies = {}
    for path in paths:
        about, (data, net, stage, _) = read_about(path), path.stem.split("-")
        cell = trained[data, "dlg-lenet" if net == "relu" else net, about["seed"]]
        assert path.stem == f"{data}-{net}-{stage}-{about['seed']}"
        assert about["dataset"] == data
        assert about["round"] == cell.checkpoints[("early", "late").index(stage)]
        known = cell.dataset.model_copy(update={"sha256": about["data_sha256"], "subset": subset[data]})
        assert about["training"] == cell.model_copy(update={"dataset": known}).id
        accuracies[data, net, stage, about["seed"]] = about["accuracy"]
        model = registry.of("models", cell.model)
        shape, classes, _ = SHAPES[data]
        fit(model.build(shape, classes), read_weights(path), where=path.name)
    for (data, net, stage, seed), accuracy in accuracies.items():
        assert accuracy > 0.1 + 3 * (0.1 * 0.9 / 1000) ** 0.5
        assert stage == "late" or accuracy < accuracies[data, net, "late", seed]


def test_a_matrix_on_a_preset_is_that_preset_with_more_defenses(tmp_path: Path) -> None:
    def mine(text: str) -> Path:
        (tmp_path / "mine.toml").write_text(text, "utf-8")
        return tmp_path / "mine.toml"

    plain = {item.cell.id for item in expand(read("smoke"), facts_of)}
    more = '["none", { name = "prune", sweep = { share = [0.5, 0.9] } }]'
    matrix = read(mine(f'title = "t"\npreset = "smoke"\ndefense = {more}'))
    found = [item.cell for item in expand(matrix, facts_of)]
    assert (matrix.title, matrix.suite, matrix.cascade) == ("t", "smoke", True)
    assert plain < {cell.id for cell in found}
    assert len(found) == 3 * len(plain)
    for text, message in (
        ('preset = "smokes"', "preset: unknown preset 'smokes'; did you mean 'smoke'"),
        ("preset = 3", "preset: expected a preset's name, got 3"),
        ('preset = "smoke"\nreadings = 3', "readings: a file with `preset` has `title` and `defense` alone"),
        ('preset = "smoke"\ndefense = "prune"', "defense: expected a list, got 'prune'"),
    ):
        with pytest.raises(MatrixError, match=re.escape(message)):
            read(mine(text))


def test_the_reference_has_the_cells_of_the_suite() -> None:
    """A defense that is registered later waits for the next version of the suite (`tests/benchmarks/reference.py`)."""
    standard, reference = ({item.cell.id for item in planned(name)} for name in ("standard", "reference"))
    assert standard < reference


def test_a_suite_is_ranked_as_shipped_alone(tmp_path: Path) -> None:
    """By preset name or by the file itself; a copy, were it the same, or an option that changes it is not."""
    shipped = PRESETS / "smoke.toml"
    assert ranking("smoke", read("smoke").path)["ranked"]
    found = ranking("smoke", read(shipped).path)
    assert (found["ranked"], found["why_not"]) == (True, [])
    assert ranking_line(found) == f"suite smoke, protocol {PROTOCOL}: ranked"
    copy = tmp_path / "smoke.toml"
    copy.write_bytes(shipped.read_bytes())
    why = ["the matrix is not the shipped smoke.toml", "--readings changes the suite's configuration"]
    assert ranking("smoke", read(copy).path, ("--readings",))["why_not"] == why
    assert not ranking("extra", shipped)["ranked"]


def test_an_option_that_is_not_listed_is_an_override() -> None:
    """The command line as it is has none; one that is added counts until it is listed."""
    more = click.Option(["--budget"], type=int)

    def overrides(*arguments: str) -> list[str]:
        wider = click.Command("run", params=[*run.command.params, more], callback=lambda **_: run.overrides())
        found = wider.main(["--matrix", "smoke", *arguments], standalone_mode=False)
        assert isinstance(found, list)
        return found

    everything = ("--defense", "prune", "--jobs", "1", "--device", "cpu", "--out", "x", "--data-dir", "y")
    assert overrides(*everything, "--plugin", "p.py", "--no-tracking", "--json") == []
    assert overrides("--budget", "3") == ["--budget"]


def test_table_1_has_the_papers_figures_beside_every_cell_of_its_attacks() -> None:
    matrix = read("fed-alpha-cdp/table-1")
    entries = {cell.id: beside(matrix.published, cell) for cell in cells("fed-alpha-cdp/table-1")}
    ours = [cell.id for cell in cells("fed-alpha-cdp/table-1") if cell.attack.name == "map"]
    assert len(entries) == 3 * (5 + 1) and len(ours) == 3
    assert {name for name, entry in entries.items() if entry is None} == set(ours)
    assert len({id(entry) for entry in entries.values() if entry}) == len(matrix.published) == 3 * 3


def test_rounds_trains_each_model_once() -> None:
    trained = [item.cell for item in planned("rounds") if isinstance(item.cell, TrainingCell)]
    assert [cell.model.params["activation"] for cell in trained] == ["sigmoid", "relu"]
    assert {cell.checkpoints for cell in trained} == {(0, 1, 5, 20)}
    unrolled = [cell for cell in cells("rounds") if cell.attack.params.get("local") == "unrolled"]
    assert len(cells("rounds")) == 2 * 4 * 3 * (2 + 2) + len(unrolled)
    assert len(unrolled) == 2 * 4 * 2
    assert {cell.federated.steps for cell in unrolled} == {3}


def test_batch_and_starts_have_every_value_once() -> None:
    counts = Counter((c.federated.batch, c.federated.partition) for c in cells("batch"))
    assert counts == {(batch, kind): 4 for batch in (1, 2, 4, 8) for kind in ("iid", "two-shard")}
    starts = Counter((c.attack.params["start"], c.attack.params["line_search"]) for c in cells("starts"))
    assert len(starts) == 8 * 2
    assert set(starts.values()) == {2}
    assert {cell.attack.params["restarts"] for cell in cells("starts")} == {0}


def test_folders_are_part_of_a_presets_name(tmp_path: Path) -> None:
    (tmp_path / "paper").mkdir()
    text = 'title = "three"\n[axes]\ndataset = ["digits"]\nmodel = ["mlp"]\nattack = ["dlg"]\npoint = ["type-2"]'
    (tmp_path / "paper" / "table-3.toml").write_text(text, "utf-8")
    assert preset_names(tmp_path) == ("paper/table-3",)
    assert read("paper/table-3", folder=tmp_path).title == "three"
    with pytest.raises(MatrixError, match="did you mean 'paper/table-3'"):
        read("paper/table-4", folder=tmp_path)
