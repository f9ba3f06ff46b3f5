"""The registry: names, origins and literals without importing; loading; clashes and broken entries."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.command import output

from bench.attacks.base import Attack
from bench.cell import Entry
from bench.cli.describe import command as describe
from bench.cli.main import cli
from bench.errors import BenchError, PluginError, UnknownName
from bench.models.lenet import DlgLenet
from bench.registry import entries as registry
from bench.registry import static as literals

CHECKOUT = Path(__file__).parent.parent
MAIN = [sys.executable, "-P", "-c", "from bench.cli.main import main; main()"]
DEFENSE = """
from bench.defenses.base import Defense
class {name}(Defense):
    reference = "nobody"
    stages = ("client",)
    def transforms(self, setting):
        return {{}}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Put a distribution with these entry points and modules on sys.path, as an installer would."""

    def put(name: str, entries: dict[str, str], modules: dict[str, str], kind: str = "defenses") -> None:
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{key} = {value}\n" for key, value in entries.items())
        (info / "entry_points.txt").write_text(f"[bench.{kind}]\n{lines}")
        for path, text in modules.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
        registry._installed.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    registry._installed.cache_clear()


def _bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MAIN, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=120
    )


def test_names_are_those_of_pyproject() -> None:
    table = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    assert table["name"] == registry.DISTRIBUTION
    for kind in registry.KINDS:
        own = [name for name in registry.names(kind) if registry.origin(kind, name).built_in]
        assert own == sorted(table["entry-points"][f"bench.{kind}"])


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_own_entry_loads_and_its_literals_are_its_attributes(kind: str) -> None:
    distinguishing = {
        "attacks": "knowledge",
        "defenses": "stages",
        "datasets": "kind",
        "models": "takes",
        "detectors": "looks_at",
    }
    for name in registry.names(kind):
        entry, said = registry.load(kind, name), registry.literals(kind, name)
        assert said["reference"] == entry.reference  # type: ignore[attr-defined]
        assert said[distinguishing[kind]] == getattr(entry, distinguishing[kind])
        assert said["__doc__"]


def test_unknown_name_gives_near_names_all_names_and_the_right_kind() -> None:
    with pytest.raises(UnknownName, match=r"unknown attack 'gradinf'; did you mean 'gradinv'\? there are .*dlg"):
        registry.load("attacks", "gradinf")
    with pytest.raises(UnknownName, match="unknown attack 'dlg-lenet'; it is a model"):
        registry.origin("attacks", "dlg-lenet")
    with pytest.raises(ValueError, match="kind must be one of attacks"):
        registry.names("attack")


def test_instance_checks_parameters_and_says_where() -> None:
    assert registry.instance("models", "dlg-lenet", {"width": 0.2}) == DlgLenet(width=0.2)
    assert registry.of("models", Entry(name="dlg-lenet", params={"width": 0.2})) == DlgLenet(width=0.2)
    with pytest.raises(BenchError, match="line 3: width must be above 0, got -1"):
        registry.instance("models", "dlg-lenet", {"width": -1}, where="line 3")


def test_a_third_party_entry_is_found_and_loaded(install: Callable[..., None]) -> None:
    install("acme-one", {"veil": "acme_one.veil:Veil"}, {"acme_one/veil.py": DEFENSE.format(name="Veil")})
    found = registry.origin("defenses", "veil")
    assert (found.distribution, found.version, found.built_in) == ("acme-one", "1.0", False)
    assert registry.literals("defenses", "veil")["stages"] == ("client",)
    assert "acme_one.veil" not in sys.modules  # so far nothing was imported
    assert registry.load("defenses", "veil").__name__ == "Veil"


def test_a_name_taken_twice_is_refused_naming_both_and_the_rest_works(install: Callable[..., None]) -> None:
    install(
        "acme-two",
        {"veil": "acme_two:Veil", "alone": "acme_two:Veil", "none": "acme_two:Veil"},
        {"acme_two.py": DEFENSE.format(name="Veil")},
    )
    install("acme-three", {"veil": "acme_three:Other"}, {"acme_three.py": DEFENSE.format(name="Other")})
    for ask in (registry.origin, registry.load, registry.literals):
        with pytest.raises(PluginError, match=r"'veil' is taken twice, by acme-\w+ 1\.0 .* and by acme-\w+ 1\.0"):
            ask("defenses", "veil")
    with pytest.raises(PluginError, match=r"'none' is taken twice.*(acme-two.*gradient|gradient.*acme-two)"):
        registry.load("defenses", "none")
    assert registry.load("defenses", "alone").__name__ == "Veil"


@pytest.mark.parametrize(
    ("target", "text", "reason"),
    [
        ("broken_a:Gone", "x = 1", "Gone"),
        ("broken_b.nowhere:Gone", "x = 1", "broken_b.nowhere"),
        ("broken_c:Bad", "import no_such_module_at_all", r"broken_c.py:1: ModuleNotFoundError"),
        ("broken_d:Bad", "def f(:", r"broken_d.py:1: SyntaxError"),
        ("broken_e:Bad", "class Bad: pass", "it is no Defense; derive it from bench.defenses.base:Defense"),
        (
            "broken_f:Bad",
            "from bench.defenses.base import Defense\nclass Bad(Defense): pass",
            "abstract; give it transforms",
        ),
        ("broken_g:Bad", "raise SystemExit(3)", r"broken_g.py:1: SystemExit: 3"),
    ],
)
def test_a_broken_third_party_entry_is_named(install: Callable[..., None], target: str, text: str, reason: str) -> None:
    install("acme-broken", {"bad": target}, {f"{target.split(':')[0].split('.')[0]}.py": text})
    with pytest.raises(PluginError, match=rf"defense 'bad' of acme-broken 1\.0 .*{reason}") as caught:
        registry.load("defenses", "bad")
    assert "\n" not in str(caught.value)
    assert "prune" in registry.names("defenses")


def test_literals_follow_bases_through_files_and_run_nothing(install: Callable[..., None]) -> None:
    install(
        "acme-deep",
        {"deep": "acme_deep:Deep"},
        {
            "acme_deep/__init__.py": "from .deep import Deep\nraise RuntimeError('executed')\n",
            "acme_deep/deep.py": (
                "from typing import ClassVar\nfrom bench.attacks.base import Attack\n"
                "raise RuntimeError('executed')\n"
                "class _Middle(Attack):\n    reference = 'middle'\n    kind = 'inherited'\n"
                "    knowledge: ClassVar = ('adaptive',)\n"
                "class Deep(_Middle):\n    '''Deep.'''\n    reference = 'own'\n"
                "    field: int = 3\n    computed = print('executed')\n    kind = str('executed')\n"
            ),
        },
        kind="attacks",
    )
    said = registry.literals("attacks", "deep")
    assert (said["reference"], said["knowledge"], said["__doc__"]) == ("own", ("adaptive",), "Deep.")
    assert not {"field", "computed", "kind"} & set(said), "a computed value hides an inherited constant"
    # not set in the file: it comes from the base class in another
    assert literals.read("bench.attacks.base", "Attack")["knowledge"] == Attack.knowledge


def test_file_of_agrees_with_the_import_system_for_nested_bare_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bare_top" / "bare_below").mkdir(parents=True)
    (tmp_path / "bare_top" / "bare_below" / "leaf.py").write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    assert literals.file_of("bare_top.bare_below.leaf") == tmp_path / "bare_top" / "bare_below" / "leaf.py"
    assert "bare_top" not in sys.modules
    assert literals.file_of("bare_top.missing.leaf") is None
    assert literals.file_of("sys") is None
    assert literals.file_of("bench.attacks.base") == Path(sys.modules["bench.attacks.base"].__file__ or "")


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--json"], ["list", "--help"]])
def test_list_and_help_import_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom bench.cli.main import main\nsys.argv[1:] = " + repr(arguments) + "\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'mlflow', 'pandas', 'scipy'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_list_shows_every_entry_with_its_reference() -> None:
    listing = json.loads(_bench("list", "--json").stdout)
    for kind in registry.KINDS:
        assert [entry["name"] for entry in listing[kind]] == list(registry.names(kind))
        assert not [entry["error"] for entry in listing[kind] if "error" in entry]
        assert all(entry["reference"] for entry in listing[kind])
    text = _bench("list", "models", COLUMNS="60").stdout
    assert "dlg-lenet" in text
    assert "Attacks" not in text
    assert max(map(len, text.splitlines())) <= 60


def test_describe_shows_parameters_with_defaults_units_and_bounds() -> None:
    told = json.loads(output(describe, "dlg-lenet", "--json"))
    width = {item["name"]: item for item in told["parameters"]}["width"]
    assert (width["default"], width["above"], width["source"]) == (0.5, 0, "Zhu et al. 2019")
    assert told["kind"] == "models"
    done = _bench("describe", "dlg-lenets")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("bench: nothing is called 'dlg-lenets'; did you mean 'dlg-lenet'")


def test_list_reads_a_wheel_as_it_reads_a_checkout(tmp_path: Path) -> None:
    """The wheel's layout (all below bench/) on a path before the installed one."""
    table = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    for package, folder in table["package-dir"].items():
        place = tmp_path / "site" / package.replace(".", "/")
        shutil.copytree(CHECKOUT / folder, place, ignore=shutil.ignore_patterns("__pycache__"))
    listing = json.loads(_bench("list", "--json", PYTHONPATH=str(tmp_path / "site")).stdout)
    assert not [entry for kind in registry.KINDS for entry in listing[kind] if "error" in entry]
    script = "from bench.registry import entries as registry; print(registry.origin('models', 'mlp').file)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert Path(done.stdout.strip()) == tmp_path / "site" / "bench" / "models" / "mlp.py"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["list", "attack"], "there are no 'attack' to list; did you mean 'attacks'?"),
        (["list", "zzz"], "there are no 'zzz' to list; there are attacks, defenses, datasets, models, detectors"),
        (["leaderbord"], "there is no command 'leaderbord'; did you mean 'leaderboard'?"),
        (["zzzz"], "there is no command 'zzzz'; `bench --help` lists them"),
    ],
)
def test_a_near_miss_gets_a_hint(words: list[str], line: str) -> None:
    made = CliRunner().invoke(cli, words)
    assert made.exit_code == 2 and line in made.output


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("bench run --matrix smo", ["smoke"]),
        ("bench run --attack cpl,grad", ["cpl,gradinv"]),
        ("bench run --defense ldp", ["ldp-fl"]),
        ("bench describe resnet", ["resnet20"]),
        ("bench run --point type-2,agg", ["type-2,aggregate"]),
        ("bench show 12", ["12345678"]),
    ],
)
def test_the_shell_completes_names_presets_and_ids(
    typed: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "a" / "records").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "records" / f"12345678{'0' * 56}.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    words = typed.split()
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    said = CliRunner().invoke(cli, prog_name="bench", env={"_BENCH_COMPLETE": "bash_complete"}).output
    assert [line.partition(",")[2] for line in said.splitlines()] == found
