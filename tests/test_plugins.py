"""`--plugin FILE_OR_MODULE`: what it registers, and that a broken one stops the run with one line."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from bench.cli.main import cli
from bench.errors import PluginError
from bench.registry import entries as registry
from bench.registry import files, plugins

GOOD = """
from dataclasses import dataclass
from bench.attacks.base import Attack
from bench.defenses.base import Defense
from bench.models.mlp import Mlp  # imported, not defined here: not an entry
from bench.parameters import parameter

@dataclass(frozen=True, kw_only=True)
class _Part(Defense):
    reference = "mine"
    stages = ("client",)
    def transforms(self, setting):
        return {}

@dataclass(frozen=True, kw_only=True)
class MyRDPNoise(_Part):
    strength: float = parameter(0.5, "how much", unit="rad", source="ours", low=0)
    name: str = parameter("a field, not the entry's name", "what it is called")

@dataclass(frozen=True, kw_only=True)
class Second(_Part):
    name = "chosen"

class Unfinished(Attack):
    reference = "mine"
"""


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_added", {})


def _write(tmp_path: Path, text: str, name: str = "mine.py") -> str:
    (tmp_path / name).write_text(text)
    return str(tmp_path / name)


def test_concrete_classes_of_the_file_are_registered(tmp_path: Path) -> None:
    spec = _write(tmp_path, GOOD)
    assert {(origin.kind, origin.name) for origin in registry.add_plugin(spec)} == {
        ("defenses", "my-rdp-noise"),
        ("defenses", "chosen"),
    }
    assert registry.instance("defenses", "my-rdp-noise", {"strength": 2}).strength == 2
    assert registry.literals("defenses", "chosen")["stages"] == ("client",)
    origin = registry.origin("defenses", "chosen")
    assert (origin.distribution, origin.file) == (None, Path(spec).resolve())


def test_adding_twice_is_no_harm_and_worker_processes_find_the_same_class(tmp_path: Path) -> None:
    spec = _write(tmp_path, GOOD)
    assert registry.add_plugin(spec) == registry.add_plugin(spec)
    sent = pickle.dumps(registry.instance("defenses", "my-rdp-noise", {"strength": 3}))
    script = (
        "import pickle, sys; from bench.registry import entries as registry; registry.add_plugin(sys.argv[1])\n"
        "print(pickle.loads(sys.stdin.buffer.read()).strength)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, spec], input=sent, capture_output=True, timeout=120, check=True
    )
    assert done.stdout.strip() == b"3.0"


def test_a_module_name_works_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(tmp_path, GOOD, "an_importable_plugin.py")
    monkeypatch.syspath_prepend(tmp_path)
    registry.add_plugin("an_importable_plugin")
    assert registry.load("defenses", "chosen").__module__ == "an_importable_plugin"
    assert registry.literals("defenses", "chosen")["reference"] == "mine"


def test_two_files_of_the_same_name_do_not_meet(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    first, second = _write(tmp_path, "x = 1"), _write(tmp_path, "x = 2", "other/mine.py")
    assert [plugins.module(first).x, plugins.module(second).x] == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import os\nraise KeyError('why')", r"--plugin .*mine\.py:2: KeyError: 'why'$"),
        ("x = 1\ndef broken(:\n    pass", r"--plugin .*mine\.py:2: SyntaxError: invalid syntax$"),
        ("import json\n\njson.loads('{')", r"--plugin .*mine\.py:3: JSONDecodeError"),
        ("import not_to_be_had", r"--plugin .*mine\.py:1: ModuleNotFoundError"),
        ("raise SystemExit(4)", r"--plugin .*mine\.py:1: SystemExit: 4"),
        ("x = 1", "it defines no attack, defense, data set, model or detector; derive a class from"),
        (GOOD.replace('"chosen"', '"my-rdp-noise"'), "'my-rdp-noise' is taken twice, by --plugin .*mine.py"),
        (GOOD.replace('"chosen"', '"prune"'), r"'prune' is taken twice, by gradient-leakage-.* and by --plugin"),
    ],
)
def test_a_broken_plugin_is_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        registry.add_plugin(_write(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert registry._added == {}  # all of it or nothing


def test_two_plugins_with_one_name_are_refused(tmp_path: Path) -> None:
    registry.add_plugin(_write(tmp_path, GOOD))
    with pytest.raises(PluginError, match=r"taken twice, by --plugin .*mine\.py and by --plugin .*other\.py"):
        registry.add_plugin(_write(tmp_path, GOOD, "other.py"))


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"--plugin .*gone\.py: no such file"):
        registry.add_plugin(str(tmp_path / "gone.py"))
    with pytest.raises(PluginError, match=r"--plugin no_such_plugin: no such module is installed; .*\.py"):
        registry.add_plugin("no_such_plugin")


def test_a_broken_plugin_stops_the_command_with_exit_code_2(tmp_path: Path) -> None:
    script = "from bench.cli.main import main; main()"
    spec = _write(tmp_path, "1 / 0")
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, "list", "--plugin", spec], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"bench: --plugin {Path(spec).resolve()}:1: ZeroDivisionError: division by zero\n"


@pytest.mark.parametrize(
    "command",
    [
        "check FILE",
        "describe FILE",
        "list FILE",
        "run --defense FILE --attack cpl --dataset digits --point type-1",
        "run --suite standard --defense FILE:strength=1",
        "calibrate --defense FILE",
    ],
)
def test_a_file_in_place_of_a_name_is_told_with_its_names_and_is_not_run(tmp_path: Path, command: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"{GOOD}\nraise SystemExit('the file ran')\n")
    told = CliRunner().invoke(cli, command.replace("FILE", str(file)).split())
    text = str(told.exception)
    assert told.exit_code and "\n" not in text
    assert f"--plugin {file}`" in text and "defense 'my-rdp-noise', defense 'chosen'" in text


def test_a_file_without_entries_or_without_code_is_told(tmp_path: Path) -> None:
    for text, told in (
        ("x = 1", "it defines no attack, defense"),
        ("def", "it cannot be read"),
        (None, "no such file"),
    ):
        file = tmp_path / f"{len(told)}.py"
        if text is not None:
            file.write_text(text)
        assert told in (files.remedy(str(file), "NAME") or "")
    assert files.remedy("gaussian", "NAME") is None
