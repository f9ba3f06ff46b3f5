"""Imports go one way: this walks the AST of every source file of the checkout beside `tests/`.

A new file directly under `bench/` needs a layer in `LAYERS`; a new border is a line in `BORDERS`.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from tests.trees import parsed

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
FOLDERS: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]

# A file imports only its own layer or lower ones; circles are refused everywhere.
LAYERS = (
    (
        "bench",
        "errors",
        "folders",
        "sanitize",
        "points",
        "rng",
        "kinds",
        "trip",
        "rows",
        "spectrum",
        "cell",
        "epsilon",
        "unpickle",
        "device",
        "graphs",
        "uses",
        "training",
    ),
    ("parameters", "registry", "gradients", "record", "packaged", "minilm", "mobilenet"),
    ("datasets", "models", "defenses", "attacks", "detectors"),
    ("federated", "scoring", "pictures", "ceilings"),
    ("matrix",),
    ("answer", "leaderboard"),
    ("contracts", "isolation"),
    ("sweep", "gate"),
    ("tracking", "submission", "own", "reference", "calibration", "audit", "assess", "detection"),
    ("api", "health"),
    ("cli",),
)
# The same inside attacks/, by what a part reads; the registered entries stand above.
ATTACK_LAYERS = (
    ("base", "objective", "solvers"),
    ("labels", "chain", "first_layer", "last_layer", "inverter"),
    ("candidates", "search", "texts"),
    ("spans",),
)
# What these must never import, however far away; names outside `bench` count by their top level.
VIEWS = ("bench.leaderboard", "bench.gate", "bench.pictures", "bench.tracking", "bench.submission")
_NOT_IN_VIEWS = ("bench.answer", "bench.federated", "torch")
BORDERS = {
    "bench.attacks": (
        "bench.datasets",
        "bench.defenses",
        "bench.models",
        "bench.federated",
        "bench.answer",
        "bench.scoring",
        "bench.cell",
        "bench.record",
        "bench.registry.entries",
    ),
    "bench.defenses": ("bench.attacks", "bench.datasets", "bench.models", "bench.answer", "bench.cell"),
    "bench.defenses.accounting": ("torch", "bench.cell", "bench.federated"),
    "bench.datasets": ("bench.attacks", "bench.defenses", "bench.models", "bench.cell"),
    "bench.models": ("bench.attacks", "bench.defenses", "bench.datasets", "bench.cell"),
    "bench.scoring": ("bench.attacks", "bench.defenses", "bench.models"),
    "bench.matrix": ("bench.answer", "mlflow"),
    "bench.matrix.read": ("torch",),
    "bench.answer": (*VIEWS, "mlflow", "torchvision"),
    "bench.record.store": ("torch", "mlflow"),
    "bench.health": ("torch", "torchvision", "mlflow"),
    **{view: _NOT_IN_VIEWS for view in VIEWS if view != "bench.submission"},
    # `verify` alone runs cells again
    **{f"bench.submission.{name}": _NOT_IN_VIEWS for name in ("check", "export", "importing", "verdicts")},
}
# Heavy or optional distributions and the one file that may import each.
OWNERS = {
    "mlflow": "bench.tracking.upload",
    "lpips": "bench.scoring.lpips_metric",
    "torchvision": "bench.scoring.lpips_metric bench.datasets.frozen",
    "pooch": "bench.datasets.fetch",
    "dp_accounting": "bench.defenses.accounting.pld",
    "altair": "bench.leaderboard.forms.charts bench.leaderboard.forms.frontier",
    "vl_convert": "bench.leaderboard.forms.charts",
    "jinja2": "bench.leaderboard.forms.offline bench.leaderboard.forms.page",
    "distributed": "bench.sweep.cluster",
    "tokenizers": "bench.datasets.reviews",
    "flwr": "bench.assess.flower",
    "nvflare": "bench.assess.nvflare",
}
# Imports inside functions, beside those of commands: what is optional or slow, and why it may be.
INSIDE_FUNCTIONS = {
    ("bench.own.frames", "pandas"),  # half a second that only a notebook pays
    ("bench.sweep.cluster", "dask"),  # optional
    ("bench.sweep.cluster", "distributed"),
    ("bench.parameters", "pydantic"),  # `bench list` stays below 0.3 s
    ("bench.scoring.lpips_metric", "lpips"),  # optional: it brings torchvision
    ("bench.tracking.upload", "mlflow"),  # 3 s, and its telemetry is turned off before
    ("bench.datasets.digits", "sklearn"),  # a second that other data sets need not pay
    ("bench.datasets.cancer", "sklearn"),
    ("bench.datasets.frozen", "torch"),  # for a network's features alone
    ("bench.datasets.frozen", "torchvision"),
    ("bench.mobilenet", "torch"),
    ("bench.defenses.accounting.pld", "dp_accounting"),  # optional where ε is filled in later; a second
    ("bench.datasets.reviews", "tokenizers"),  # the extra `text`
}
IMPORTERS = {
    "bench.cli.main",
    "bench.registry.plugins",
    "bench.registry.entries",
    "bench.assess.flower",
    "bench.assess.nvflare",
}  # may call importlib.import_module

Trees = Mapping[str, ast.Module]


@cache
def sources() -> Trees:
    """The modules of bench, parsed where a test asks: each process of tests imports this file."""
    trees = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            name = ".".join((package, *parts)).removesuffix(".__init__")
            trees[name] = parsed(path)
    return trees


@cache
def makers() -> Trees:
    """The makers of the documents, which build on the wheel; `docs/recipes` are texts for users."""
    docs = ROOT / "docs"
    return {
        path.relative_to(docs).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): parsed(path)
        for path in [*docs.glob("*.py"), *(docs / "_make").glob("*.py")]
    }


def _within(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


def _imported(node: ast.AST, trees: Trees) -> Iterator[str]:
    """The modules that one statement imports: `from bench import rng` imports bench.rng."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole in trees else node.module


@cache
def _import_statements(tree: ast.Module) -> tuple[ast.AST, ...]:
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))


def _graph(trees: Trees) -> dict[str, set[str]]:
    return {
        name: {other for node in _import_statements(tree) for other in _imported(node, trees)}
        for name, tree in trees.items()
    }


def _layer(module: str) -> int | None:
    part = module.split(".")[1] if "." in module else module
    return next((number for number, layer in enumerate(LAYERS) if part in layer), None)


def upward(trees: Trees) -> list[str]:
    """Imports of a higher layer, and modules that no layer names."""
    faults = [f"{name} has no layer" for name in trees if _layer(name) is None]
    for name, others in _graph(trees).items():
        for other in others & set(trees):
            mine, its = _layer(name), _layer(other)
            if mine is not None and its is not None and its > mine:
                faults.append(f"{name} imports {other}, a layer above")
    return faults


def _attack_layer(module: str) -> int:
    part = module.split(".")[2]
    return next((number for number, layer in enumerate(ATTACK_LAYERS) if part in layer), len(ATTACK_LAYERS))


def upward_in_attacks(trees: Trees) -> list[str]:
    """Imports of a higher layer between the parts of an attack."""
    parts = {name for name in trees if name.startswith("bench.attacks.")}
    graph = _graph(trees)
    return [
        f"{name} imports {other}, a layer above"
        for name in sorted(parts)
        for other in sorted(graph[name] & parts)
        if _attack_layer(other) > _attack_layer(name)
    ]


def crossings(trees: Trees) -> list[str]:
    """Ways across a border, directly or through other modules of bench."""
    graph, faults = _graph(trees), []
    for package, forbidden in BORDERS.items():
        for start in (name for name in trees if _within(name, package)):
            seen, front = {start}, [start]
            while front:
                here = front.pop()
                for other in sorted(graph.get(here, set()) - seen):
                    seen.add(other)
                    front.append(other)
                    if any(_within(other, line) for line in forbidden):
                        faults.append(f"{start} reaches {other} (by {here})")
    return faults


def hidden(trees: Trees) -> list[str]:
    """Imports inside functions and calls of import_module, where they are not allowed."""
    faults = []
    for name, tree in trees.items():
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            for node in ast.walk(function):
                for other in _imported(node, trees):
                    top = other if other.startswith("bench") else other.split(".")[0]
                    if not _within(name, "bench.cli") and (name, top) not in INSIDE_FUNCTIONS:
                        faults.append(f"{name}:{function.name} imports {other}")
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            word = getattr(called, "attr", getattr(called, "id", ""))
            if word in ("import_module", "__import__") and name not in IMPORTERS:
                faults.append(f"{name} calls {word}")
    return faults


def _idle(node: ast.stmt) -> bool:
    """A docstring, a constant, or a guard that raises."""
    if isinstance(node, ast.Assign):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.If):
        return all(isinstance(inner, ast.Raise) for inner in node.body) and not node.orelse
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_every_source_folder_is_mapped() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name not in ("tests", "build")}
    assert set(FOLDERS.values()) == packages
    assert all(name == ("bench" if folder == "bench" else f"bench.{folder}") for name, folder in FOLDERS.items())
    assert "packages" not in PROJECT["tool"]["setuptools"]  # it would lose sub-packages in silence


def test_every_folder_of_sources_is_a_package() -> None:
    """A folder without __init__.py is in the wheel and missing from an editable install."""
    for folder in FOLDERS.values():
        for path in (ROOT / folder).rglob("*.py"):
            assert (path.parent / "__init__.py").exists(), path


def test_no_relative_imports() -> None:
    relative = [
        f"{name}:{node.lineno}"
        for name, tree in {**sources(), **makers()}.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative == []


def test_imports_go_down() -> None:
    assert upward(sources()) == []


def test_parts_of_attacks_import_down() -> None:
    assert upward_in_attacks(sources()) == []


def test_only_entries_stand_at_the_top_of_attacks() -> None:
    entries = {target.partition(":")[0] for target in PROJECT["project"]["entry-points"]["bench.attacks"].values()}
    files = {path.stem for path in (ROOT / "attacks").glob("*.py")} - {"__init__", "base"}
    assert {f"bench.attacks.{file}" for file in files} == entries


def test_no_circles() -> None:
    trees = {**sources(), **makers()}
    graph = {name: others & set(trees) - {name} for name, others in _graph(trees).items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the circle


def test_borders_hold() -> None:
    assert crossings(sources()) == []


@pytest.mark.parametrize(("distribution", "owner"), OWNERS.items())
def test_one_file_imports_it(distribution: str, owner: str) -> None:
    """Or two, where they have nothing else in common."""
    importers = {
        name for name, others in _graph(sources()).items() if any(_within(other, distribution) for other in others)
    }
    assert importers <= set(owner.split())


def test_imports_stand_at_the_top_but_for_the_list() -> None:
    assert hidden(sources()) == []
    assert hidden(makers()) == []


def test_the_wheel_imports_no_maker_of_documents() -> None:
    assert "_make.claims" in makers()
    graph = _graph({**sources(), **makers()})
    assert [name for name in sources() if graph[name] & {*makers()}] == []


def test_concrete_entries_are_reached_through_the_registry_only() -> None:
    """An entry may build on its neighbours in the same folder; nobody else names it."""
    entries = {
        target.partition(":")[0]
        for group, table in PROJECT["project"]["entry-points"].items()
        if group.startswith("bench.")
        for target in table.values()
    }
    named = [
        f"{name} imports {other}"
        for name, others in _graph(sources()).items()
        for other in sorted(others & entries)
        if not _within(name, other.rpartition(".")[0])
    ]
    assert named == []


def test_init_files_hold_no_code() -> None:
    for folder in FOLDERS.values():
        for path in (ROOT / folder).rglob("__init__.py"):
            body = ast.parse(path.read_text("utf-8")).body
            assert body, f"{path} has no docstring"
            assert all(map(_idle, body)), path


def test_planted_faults_are_found() -> None:
    """The checks above can fail."""
    planted = {
        "bench.rng": "import bench.answer.run",
        "bench.orphan": "x = 1",
        "bench.attacks.sly": "from bench.gradients import helper",
        "bench.gradients": "def f():\n    from bench.answer import victims",
        "bench.answer.victims": "x = 1",
        "bench.answer.run": "import importlib\nimportlib.import_module('bench.attacks.sly')",
    }
    trees = {name: ast.parse(text) for name, text in planted.items()}
    assert upward(trees) == [
        "bench.orphan has no layer",
        "bench.rng imports bench.answer.run, a layer above",
        "bench.gradients imports bench.answer.victims, a layer above",
    ]
    inside = {
        "bench.attacks.labels.infer": "import bench.attacks.search.prior\nimport bench.attacks.objective.local",
        "bench.attacks.search.prior": "import bench.attacks.map",
        "bench.attacks.objective.local": "x = 1",
        "bench.attacks.map": "import bench.attacks.search.prior",
    }
    assert upward_in_attacks({name: ast.parse(text) for name, text in inside.items()}) == [
        "bench.attacks.labels.infer imports bench.attacks.search.prior, a layer above",
        "bench.attacks.search.prior imports bench.attacks.map, a layer above",
    ]
    assert crossings(trees) == ["bench.attacks.sly reaches bench.answer.victims (by bench.gradients)"]
    assert hidden(trees) == ["bench.gradients:f imports bench.answer.victims", "bench.answer.run calls import_module"]
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()
