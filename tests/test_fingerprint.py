"""The fingerprint of the code that answers: it changes with the files that answer, and with nothing else."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench import PROTOCOL, __version__
from bench.cell import AttackCell, DataRef, Entry, Federated, TrainingCell
from bench.record import fingerprint
from bench.record.schema import Code, Provenance
from bench.registry import entries as registry

CHECKOUT = Path(__file__).parent.parent
PLUGIN = """
from bench.defenses.base import Defense
class Mine(Defense):
    reference = "mine"
    stages = ("client",)
    def transforms(self, setting):
        return {}
"""
# The cells of a small run by name, and what would answer each: as the files are, and after a change of each of some.
SCRIPT = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from bench.cell import AttackCell, DataRef, Entry, Federated, TrainingCell
from bench.record import fingerprint
from bench.registry import entries
entries.add_plugin("mine.py")
common = dict(dataset=DataRef(name="digits", sha256="0" * 64), model=Entry(name="mlp"), federated=Federated())
def attack(defense, name):
    return AttackCell(**common, defense=Entry(name=defense), attack=Entry(name=name), point="type-1")
cells = {f"{d} {a}": attack(d, a) for d in ("none", "prune", "mine") for a in ("dlg", "labels-only")}
cells["prune training"] = TrainingCell(**common, defense=Entry(name="prune"), rounds=2)
def answers():
    for cache in (f for f in vars(fingerprint).values() if hasattr(f, "cache_clear")):
        cache.cache_clear()
    return {name: asdict(fingerprint.of_cell(cell)) for name, cell in cells.items()}
found = {"": answers()}
for name in json.load(sys.stdin):
    path = Path("..") / name
    text = path.read_bytes()
    path.write_bytes(text + b"# edited\\n")
    found[name] = answers()
    path.write_bytes(text)
print(json.dumps(found))
"""
EVERYTHING = {
    "none dlg",
    "none labels-only",
    "prune dlg",
    "prune labels-only",
    "mine dlg",
    "mine labels-only",
    "prune training",
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", {})


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Files are read once a process; these tests edit them."""
    caches = [registry._installed, *(f for f in vars(fingerprint).values() if hasattr(f, "cache_clear"))]
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def _cell(defense: str, seed: int = 0) -> AttackCell:
    return AttackCell(
        dataset=DataRef(name="digits", sha256="0" * 64),
        model=Entry(name="mlp"),
        federated=Federated(),
        defense=Entry(name=defense),
        attack=Entry(name="dlg"),
        point="type-1",
        seed=seed,
    )


def _plugin(tmp_path: Path, folder: str, text: str = PLUGIN) -> str:
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "mine.py"
    path.write_text(text)
    return str(path)


def _code_of(tmp_path: Path, folder: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Code:
    monkeypatch.setattr(registry, "_added", {})
    registry.add_plugin(_plugin(tmp_path, folder, text))
    return fingerprint.of_entry("defenses", "mine")


@pytest.mark.parametrize(("place", "counts"), [("site-packages", False), ("target", False), ("project", True)])
def test_a_library_beside_an_installed_package_is_not_its_code(
    place: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target FOLDER` leaves metadata in a folder of any name."""
    folder = tmp_path / place
    for name, text in (("ours", "import a_library_beside"), ("a_library_beside", "")):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(text)
    if place == "target":
        (folder / "a_library_beside-1.0.dist-info").mkdir()
    monkeypatch.syspath_prepend(folder)
    reached = fingerprint.reached("ours", folder / "ours" / "__init__.py")
    assert ("a_library_beside" in reached) is counts


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel's files: the packages where their import names say; and a plug-in of two files beside."""
    place = tmp_path_factory.mktemp("site-packages")
    table = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    for package, folder in table["package-dir"].items():
        target = place / package.replace(".", "/")
        shutil.copytree(CHECKOUT / folder, target, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "mine").mkdir()
    (place / "mine" / "mine.py").write_text("import sys; sys.path.append('.')\nimport mine_constants\n" + PLUGIN)
    (place / "mine" / "mine_constants.py").write_text("SHARE = 0.9\n")
    return place


def _answers(site: Path, *edited: str) -> dict[str, dict[str, object]]:
    """What would answer each cell, by a process that imports bench from there: as it is, and with each file edited."""
    process = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(site)},
        input=json.dumps(edited),
        cwd=site / "mine",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    answers: dict[str, dict[str, object]] = json.loads(process.stdout)
    return answers


def test_a_wheel_and_a_checkout_agree(site: Path) -> None:
    """The fingerprint is of files by import path, wherever they lie."""
    training = TrainingCell(
        dataset=DataRef(name="digits", sha256="0" * 64),
        model=Entry(name="mlp"),
        federated=Federated(),
        defense=Entry(name="prune"),
        rounds=2,
    )
    here = fingerprint.of_cell(training)
    assert _answers(site)[""]["prune training"] == asdict(here)


# A file of each room, and the cells that run again when it changes.
ROOMS = {
    "answer/attack.py": EVERYTHING,
    "answer/train.py": EVERYTHING,
    "federated/pipeline.py": EVERYTHING,
    "scoring/score.py": EVERYTHING,
    "record/schema.py": EVERYTHING,
    "registry/entries.py": EVERYTHING,
    "gradients.py": EVERYTHING,
    "datasets/base.py": EVERYTHING,
    "datasets/digits.py": EVERYTHING,
    "models/mlp.py": EVERYTHING,
    "defenses/base.py": EVERYTHING,
    "defenses/prune.py": {"prune dlg", "prune labels-only", "prune training"},
    "defenses/transforms/mask.py": {"prune dlg", "prune labels-only", "prune training"},
    "attacks/labels_only.py": {"none labels-only", "prune labels-only", "mine labels-only"},
    "attacks/dlg.py": {"none dlg", "prune dlg", "mine dlg"},
    "attacks/solvers/lbfgs.py": {"none dlg", "prune dlg", "mine dlg"},
    "defenses/fed_cdp.py": set(),
    "models/lenet.py": set(),
    "matrix/read.py": set(),
    "sweep/plan.py": set(),
    "contracts/run.py": set(),
    "pictures/grid.py": set(),
    "leaderboard/board.py": set(),
    "gate/verdict.py": set(),
    "tracking/upload.py": set(),
    "submission/check.py": set(),
    "own/coerce.py": set(),
    "health/versions.py": set(),
    "cli/run.py": set(),
    "api.py": set(),
}


@pytest.mark.slow  # fourteen seconds
def test_a_file_of_each_room_runs_again_what_it_answers(site: Path) -> None:
    """The rule of imports, seen from outside: cells whose provenance changes run again.

    A plug-in's second file, which it imports its constants from, is one of them.
    """
    expected = {f"bench/{name}": cells for name, cells in ROOMS.items()}
    expected["mine/mine_constants.py"] = {"mine dlg", "mine labels-only"}
    answers = _answers(site, *expected)
    before = answers.pop("")
    assert set(before) == EVERYTHING
    found = {name: {cell for cell in before if before[cell] != after[cell]} for name, after in answers.items()}
    assert found == expected


def test_bench_itself_is_version_protocol_and_hash() -> None:
    own = fingerprint.own()
    assert (own.origin, own.version, own.protocol) == (registry.DISTRIBUTION, __version__, PROTOCOL)
    assert len(own.sha256 or "") == 64


def test_a_plugin_is_known_by_its_content_not_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = _code_of(tmp_path, "here", PLUGIN, monkeypatch)
    there = _code_of(tmp_path, "there", PLUGIN, monkeypatch)
    edited = _code_of(tmp_path, "edited", PLUGIN + "# edited\n", monkeypatch)
    assert here == there
    assert here != edited


def test_a_third_party_distribution_is_hashed_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "acme_source-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-source\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[bench.defenses]\nmine = acme_source.mine:Mine\n")
    (info / "RECORD").write_text("acme_source/mine.py,,\nacme_source/table.csv,,\n../../bin/acme,,\n")
    (tmp_path / "acme_source").mkdir()
    (tmp_path / "acme_source" / "mine.py").write_text(PLUGIN)
    (tmp_path / "acme_source" / "table.csv").write_text("1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def code() -> Code:
        for cache in (registry._installed, fingerprint._of_origin):
            cache.cache_clear()
        return fingerprint.of_entry("defenses", "mine")

    first = code()
    assert (first.origin, first.version) == ("acme-source", "2.0")
    assert code() == first
    (tmp_path / "acme_source" / "table.csv").write_text("2\n")  # installed data count
    second = code()
    assert second.sha256 != first.sha256
    (tmp_path / "acme_source" / "new.py").write_text("x = 1\n")  # so do sources no RECORD names (editable)
    assert code().sha256 != second.sha256


def test_the_provenance_of_a_cell_names_each_part(tmp_path: Path) -> None:
    registry.add_plugin(_plugin(tmp_path, "a"))
    provenance = fingerprint.of_cell(_cell("mine"))
    assert provenance.bench == fingerprint.own()
    assert provenance.defense is not None and provenance.attack is not None
    assert (provenance.defense.origin, provenance.defense.plugin) == ("mine.py", True)
    assert (provenance.attack.origin, provenance.attack.plugin) == (registry.DISTRIBUTION, False)


def test_the_provenance_is_no_part_of_the_configuration_and_the_other_way_round(tmp_path: Path) -> None:
    registry.add_plugin(_plugin(tmp_path, "a"))
    cell, other = _cell("mine"), _cell("mine", seed=1)
    assert cell.id != other.id
    assert fingerprint.of_cell(cell) == fingerprint.of_cell(other)


def test_changed_says_in_words_what_changed() -> None:
    bench = Code(origin="gradient-leakage-bench", version="1", protocol=1, sha256="a")
    file = Code(origin="mine.py", plugin=True, sha256="a")
    acme = Code(origin="acme", version="1.0", sha256="a")
    own = Code(origin="gradient-leakage-bench", sha256="a")
    old = Provenance(bench=bench, defense=file, attack=acme, model=own)
    assert fingerprint.changed(old, old) == []
    new = replace(bench, protocol=2, sha256="b")
    assert fingerprint.changed(old, replace(old, bench=new)) == ["bench: protocol 1 → 2"]
    assert fingerprint.changed(old, replace(old, bench=replace(bench, sha256="b"))) == [
        "bench: the files of gradient-leakage-bench changed"
    ]
    assert fingerprint.changed(old, replace(old, defense=replace(file, sha256="b"))) == [
        "defense: the files of plug-in mine.py changed"
    ]
    update = replace(acme, version="1.1", sha256="b")
    assert fingerprint.changed(old, replace(old, attack=update, model=file)) == [
        "model: came from gradient-leakage-bench, now from plug-in mine.py",
        "attack: version 1.0 → 1.1",
    ]
    assert fingerprint.changed(old, replace(old, weights="c")) == ["weights: was not recorded before"]
