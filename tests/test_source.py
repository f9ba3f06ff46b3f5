"""The source of a record: it changes with the files that answer, and with nothing else."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bench import PROTOCOL, __version__
from bench.cell import AttackCell, DataRef, Entry, Federated, TrainingCell
from bench.record import fingerprint as source
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


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", {})


def _cell(defense: str, seed: int = 0) -> AttackCell:
    return AttackCell(
        dataset=DataRef(name="digits", sha256="0" * 64), model=Entry(name="mlp"), federated=Federated(),
        defense=Entry(name=defense), attack=Entry(name="dlg"), point="type-1", seed=seed,
    )  # fmt: skip


def _plugin(tmp_path: Path, folder: str, text: str = PLUGIN) -> str:
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "mine.py"
    path.write_text(text)
    return str(path)


def _hash_of(tmp_path: Path, folder: str, text: str, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(registry, "_added", {})
    registry.add_plugin(_plugin(tmp_path, folder, text))
    return source.source("defenses", "mine")


def test_bench_itself_is_version_protocol_and_hash() -> None:
    own = source.source("models", "mlp")
    assert own == {"distribution": registry.DISTRIBUTION, **source.own()}
    assert (own["version"], own["protocol"], len(own["sha256"])) == (__version__, PROTOCOL, 64)


def test_the_hash_is_of_files_by_import_path_so_a_wheel_and_a_checkout_agree(tmp_path: Path) -> None:
    """It moves when a file that takes part in an answer is edited, and not with what only shows records."""
    table = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    for package, folder in table["package-dir"].items():
        place = tmp_path / package.replace(".", "/")
        shutil.copytree(CHECKOUT / folder, place, ignore=shutil.ignore_patterns("__pycache__"))
    script = "from bench import source; print(source.own()['sha256'], source.__file__)"

    def asked() -> str:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script], env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        sha256, file = done.stdout.split()
        assert Path(file).is_relative_to(tmp_path)
        return sha256

    wheel = asked()
    assert wheel == source._hash(
        (f"{package.replace('.', '/')}/{path.relative_to(CHECKOUT / folder).as_posix()}", path)
        for package, folder in table["package-dir"].items()
        for path in (CHECKOUT / folder).rglob("*.py")
        if package != "bench.leaderboard"
        and (package != "bench" or path.relative_to(CHECKOUT / folder).parts[0] not in source._VIEWS)
    )
    for view in ("cli/run.py", "leaderboard/table.py"):
        with (tmp_path / "bench" / view).open("a") as file:
            file.write("# edited\n")
    assert asked() == wheel
    with (tmp_path / "bench" / "defenses" / "base.py").open("a") as file:
        file.write("# edited\n")
    assert asked() != wheel


def test_a_plugin_is_known_by_its_content_not_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = _hash_of(tmp_path, "here", PLUGIN, monkeypatch)
    there = _hash_of(tmp_path, "there", PLUGIN, monkeypatch)
    edited = _hash_of(tmp_path, "edited", PLUGIN + "# edited\n", monkeypatch)
    assert here == there
    assert here != edited


def test_a_third_party_distribution_is_hashed_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "acme_source-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-source\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[bench.defenses]\nmine = acme_source.mine:Mine\n")
    (info / "RECORD").write_text("acme_source/mine.py,,\nacme_source/table.csv,,\n../../bin/acme,,\n")
    (tmp_path / "acme_source").mkdir()
    (tmp_path / "acme_source" / "mine.py").write_text(PLUGIN)
    (tmp_path / "acme_source" / "table.csv").write_text("1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def asked() -> dict[str, object]:
        registry._installed.cache_clear()
        source._distribution_hash.cache_clear()
        return source.source("defenses", "mine")

    try:
        first = asked()
        assert (first["distribution"], first["version"]) == ("acme-source", "2.0")
        assert asked() == first
        (tmp_path / "acme_source" / "table.csv").write_text("2\n")  # installed data count
        second = asked()
        assert second["sha256"] != first["sha256"]
        (tmp_path / "acme_source" / "new.py").write_text(
            "x = 1\n"
        )  # so do sources no RECORD names (editable)
        assert asked()["sha256"] != second["sha256"]
    finally:
        monkeypatch.undo()
        registry._installed.cache_clear()
        source._distribution_hash.cache_clear()


def test_the_source_of_a_cell_names_each_part_and_is_json(tmp_path: Path) -> None:
    registry.add_plugin(_plugin(tmp_path, "a"))
    found = source.cell_source(_cell("mine"))
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"bench", "attack", "defense", "dataset", "model"}
    assert found["bench"] == source.own()
    assert found["attack"] == {"distribution": registry.DISTRIBUTION}
    assert found["defense"]["plugin"] == "mine.py"
    training = TrainingCell(
        dataset=DataRef(name="digits", sha256="0" * 64), model=Entry(name="mlp"), federated=Federated(),
        defense=Entry(name="mine"), rounds=2,
    )  # fmt: skip
    assert set(source.cell_source(training)) == {"bench", "defense", "dataset", "model"}


def test_the_source_is_not_part_of_the_question_and_the_question_not_of_the_source(tmp_path: Path) -> None:
    registry.add_plugin(_plugin(tmp_path, "a"))
    one, other = _cell("mine"), _cell("mine", seed=1)
    assert one.id != other.id
    assert source.cell_source(one) == source.cell_source(other)


def test_changed_says_in_words_what_changed() -> None:
    bench = {"version": "1", "protocol": 1, "sha256": "a"}
    own, file = {"distribution": "gradient-leakage-bench"}, {"plugin": "mine.py", "sha256": "a"}
    acme = {"distribution": "acme", "version": "1.0", "sha256": "a"}
    old = {"bench": bench, "defense": file, "attack": acme, "model": own}
    assert source.changed(old, old) == []
    assert source.changed(old, {**old, "bench": {**bench, "protocol": 2, "sha256": "b"}}) == [
        "bench: protocol 1 → 2"
    ]
    assert source.changed(old, {**old, "bench": {**bench, "sha256": "b"}}) == [
        "bench: the files of bench changed"
    ]
    assert source.changed(old, {**old, "defense": {**file, "sha256": "b"}}) == [
        "defense: the files of plug-in mine.py changed"
    ]
    assert source.changed(
        old, {**old, "attack": {**acme, "version": "1.1", "sha256": "b"}, "model": file}
    ) == [
        "attack: version 1.0 → 1.1",
        "model: came from gradient-leakage-bench, now from plug-in mine.py",
    ]
    assert source.changed({"bench": "damaged"}, {"bench": bench, "device": "cpu"})[1] == (
        "device: was not recorded before"
    )
