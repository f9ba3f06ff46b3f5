"""The worked example of a third party's package: built, installed, listed, described, and it works.

The build needs setuptools alone (a build backend called as an installer calls it), no network.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent / "example_package"
BUILD = """
import sys, warnings
warnings.simplefilter("ignore")
from setuptools import build_meta
print(build_meta.build_wheel(sys.argv[1]))
"""


def _install(source: Path, site: Path) -> None:
    """Build a wheel and unpack it into `site`: what installing a pure wheel into a folder is."""
    wheels = source.parent / f"{source.name}-wheels"
    wheels.mkdir()
    done = subprocess.run(
        [sys.executable, "-P", "-c", BUILD, str(wheels)], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example installed in it."""
    place = tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, place / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    _install(place / "copy", place / "site")
    return place / "site"


def _python(site: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-c", script, *arguments],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def _bench(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _python(site, "from bench.cli.main import main; main()", *arguments)


def test_list_shows_both_entries_with_their_package(site: Path) -> None:
    listing = json.loads(_bench(site, "list", "--json").stdout)
    defense = {entry["name"]: entry for entry in listing["defenses"]}["round-off"]
    attack = {entry["name"]: entry for entry in listing["attacks"]}["grey-guess"]
    assert (defense["stages"], attack["knowledge"]) == (["client"], ["plain"])
    assert (defense["distribution"], defense["version"], defense["own"]) == ("bench-round-off", "1.0", False)
    assert defense["reference"].startswith("after Alistarh")
    assert "bench-round-off 1.0" in _bench(site, "list", "defenses").stdout


def test_describe_shows_its_parameter(site: Path) -> None:
    told = json.loads(_bench(site, "describe", "round-off", "--json").stdout)
    (bits,) = told["parameters"]
    assert (bits["name"], bits["default"], bits["unit"], bits["low"]) == ("bits", 4, "bit", 2)
    assert Path(told["file"]).is_relative_to(site)


@pytest.mark.slow
def test_its_source_is_its_own_and_its_transform_rounds(site: Path) -> None:
    script = """
import torch
from bench.registry import entries as registry
from bench.record import fingerprint
from bench.defenses.base import Context, Setting
from bench.errors import BenchError
assert fingerprint.of_entry("defenses", "round-off").sha256 != fingerprint.own().sha256
assert fingerprint.of_entry("defenses", "round-off").origin == "bench-round-off"
defense = registry.instance("defenses", "round-off", {"bits": 3})
setting = Setting(clients=1, per_round=1, rounds=1, steps=1, batch=1, client_examples=1, rate=0.1)
((stage, (transform,)),) = defense.transforms(setting).items()
context = Context(lead=1, stage=stage, round=0, step=0, setting=setting, draws=None)
# two clients, each on a grid of its own: spacing max/3
given = torch.tensor([[3.0, -0.4, 1.6, 0.0], [30.0, -4.0, 16.0, 0.0]], requires_grad=True)
wanted = torch.tensor([[3.0, 0.0, 2.0, 0.0], [30.0, 0.0, 20.0, 0.0]])
torch.testing.assert_close(transform.apply({"w": given}, context)["w"], wanted)
seen = transform.simulate({"w": given}, {"w": wanted}, context)["w"]
torch.testing.assert_close(seen, wanted)
(slope,) = torch.autograd.grad(seen.sum(), given)
assert torch.equal(slope, torch.ones_like(given))  # straight through
assert torch.equal(transform.apply({"w": torch.zeros(2, 3)}, context)["w"], torch.zeros(2, 3))
try:
    registry.instance("defenses", "round-off", {"bits": 1})
except BenchError as error:
    print(error)
"""
    done = _python(site, script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "defense 'round-off': bits must be at least 2, got 1\n"


def test_a_second_package_that_takes_the_name_is_refused_and_one_that_breaks_is_isolated(
    site: Path, tmp_path: Path
) -> None:
    """One variant doubles `round-off`, and its other entry points at a class that is not there."""
    shutil.copytree(EXAMPLE, tmp_path / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    project = tmp_path / "copy" / "pyproject.toml"
    text = project.read_text("utf-8").replace("bench_round_off", "bench_second")
    text = text.replace('name = "bench-round-off"', 'name = "bench-second"')
    text = text.replace('grey-guess = "bench_second.attack:GreyGuess"', 'lost = "bench_second.attack:Lost"')
    project.write_text(text, "utf-8")
    (tmp_path / "copy" / "bench_round_off").rename(tmp_path / "copy" / "bench_second")
    shutil.copytree(site, tmp_path / "site")
    _install(tmp_path / "copy", tmp_path / "site")

    listing = json.loads(_bench(tmp_path / "site", "list", "--json").stdout)
    doubled = {entry["name"]: entry for entry in listing["defenses"]}["round-off"]["error"]
    assert "taken twice" in doubled
    assert "bench-round-off 1.0" in doubled
    assert "bench-second 1.0" in doubled
    attacks = {entry["name"]: entry for entry in listing["attacks"]}
    assert "attack 'lost' of bench-second 1.0" in attacks["lost"]["error"]
    assert "error" not in attacks["grey-guess"]
    assert "error" not in attacks["dlg"]
    done = _bench(tmp_path / "site", "describe", "round-off")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "uninstall one of them" in done.stderr
