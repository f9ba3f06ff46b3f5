"""`bench data`: what status says, and fetch against a mirror on loopback that is good, bad or down."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.command import fault, output

from bench.cli.data import command
from bench.datasets.fetch import fetch
from bench.datasets.files import Remote
from bench.datasets.mnist import Mnist
from bench.errors import DataError

_CONTENT = np.random.default_rng(0).bytes(200_000)


@dataclass
class Mirror:
    """What the server sends for each path, and the requests that it had."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)  # the connection ends early, though the header says otherwise
    requests: list[str] = field(default_factory=list)
    address: str = ""


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    state = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            content = state.files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            if content:
                self.wfile.write(content[: len(content) // 2] if self.path in state.cut else content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_port}"
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No data and no proxy of this machine."""
    for name in ("BENCH_DATA", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))


def _remote(mirror: Mirror, *, content: bytes = _CONTENT, unpacks: str | None = None) -> Remote:
    urls = (f"{mirror.address}/one/file.bin", f"{mirror.address}/two/file.bin")
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    return Remote(name="file.bin", hash=digest, urls=urls, place="set", unpacks=unpacks)


def _get(remote: Remote, root: Path, mirror: str | None = None) -> Path:
    return fetch(remote, root, mirror=mirror, progress=lambda done, total: None, timeout=5)


def _files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_a_good_file_arrives_with_progress_and_is_not_fetched_twice(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/one/file.bin"] = _CONTENT
    seen: list[tuple[int, int]] = []
    remote = _remote(mirror)
    path = fetch(remote, tmp_path, mirror=None, progress=lambda done, total: seen.append((done, total)))
    assert path == tmp_path / "set" / "file.bin" and path.read_bytes() == _CONTENT
    assert seen[-1] == (len(_CONTENT), len(_CONTENT)) and len(seen) > 1
    _get(remote, tmp_path)
    assert mirror.requests == ["/one/file.bin"]


def test_the_next_mirror_is_tried_where_the_first_is_altered(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files = {"/one/file.bin": b"x" + _CONTENT[1:], "/two/file.bin": _CONTENT}
    assert _get(_remote(mirror), tmp_path).read_bytes() == _CONTENT
    assert mirror.requests == ["/one/file.bin", "/two/file.bin"]
    assert _files(tmp_path) == ["set/file.bin"]


def test_altered_and_truncated_files_leave_nothing_behind(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files = {"/one/file.bin": b"x" + _CONTENT[1:], "/two/file.bin": _CONTENT}
    mirror.cut = {"/two/file.bin"}
    with pytest.raises(DataError) as caught:
        _get(_remote(mirror), tmp_path)
    message = str(caught.value)
    assert "one/file.bin: truncated or altered, checksum differs" in message
    assert "two/file.bin: no connection" in message
    assert f"at {tmp_path / 'set' / 'file.bin'} by hand" in message and "\n" not in message
    assert _files(tmp_path) == []


def test_a_file_that_was_there_stays_until_a_good_one_has_arrived(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "file.bin").write_bytes(b"a subset")
    mirror.files["/one/file.bin"] = b"altered"
    with pytest.raises(DataError, match="status 404"):
        _get(_remote(mirror), tmp_path)
    assert (tmp_path / "set" / "file.bin").read_bytes() == b"a subset"


def test_another_mirror_replaces_the_published_addresses(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files["/mine/file.bin"] = _CONTENT
    _get(_remote(mirror), tmp_path, mirror=f"{mirror.address}/mine/")
    assert mirror.requests == ["/mine/file.bin"]
    with pytest.raises(DataError, match=r"must be an http or https address, got 'file:///"):
        _get(_remote(mirror), tmp_path / "other", mirror="file:///somewhere")


def test_a_server_that_is_down_is_one_line_with_the_way_by_hand(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    address = f"http://127.0.0.1:{server.server_port}"
    server.server_close()
    message = fault(command, "fetch", "mnist", "--mirror", address, "--data-dir", tmp_path, kind=DataError)
    assert message.startswith("train-images-idx3-ubyte.gz could not be had and nothing was kept")
    assert f"no connection); give --mirror, or put the file ({Mnist.remotes[0].hash}) at {tmp_path}" in message
    assert _files(tmp_path) == []


def _tar(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def test_an_archive_is_unpacked_whole_or_not_at_all(mirror: Mirror, tmp_path: Path) -> None:
    good = _tar({"inner/a": b"1", "inner/b": b"2"})
    mirror.files["/one/file.bin"] = good
    folder = _get(_remote(mirror, content=good, unpacks="inner"), tmp_path / "good")
    assert _files(folder) == ["a", "b"]
    outside = _tar({"inner/a": b"1", "../outside": b"2"})
    mirror.files["/one/file.bin"] = outside
    with pytest.raises(DataError, match="cannot be unpacked"):
        _get(_remote(mirror, content=outside, unpacks="inner"), tmp_path / "bad")
    assert _files(tmp_path / "bad") == ["set/file.bin"]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        link = tarfile.TarInfo("inner/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    mirror.files["/one/file.bin"] = packed.getvalue()
    with pytest.raises(DataError, match="inner/link is no plain file"):
        _get(_remote(mirror, content=packed.getvalue(), unpacks="inner"), tmp_path / "link")


def test_a_folder_that_cannot_be_written_is_named(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "set").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=f"{tmp_path / 'set'}: cannot be written"):
        _get(_remote(mirror), tmp_path)


def _mnist(count: int) -> dict[str, bytes]:
    """The four files with `count` training and test examples."""
    images = struct.pack(">4I", 0x803, count, 28, 28) + bytes(count * 784)
    labels = struct.pack(">2I", 0x801, count) + bytes(count)
    names = (remote.name for remote in Mnist.remotes)
    return {name: gzip.compress(images if "images" in name else labels) for name in names}


def test_fetch_puts_files_where_the_loader_finds_them(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = _mnist(12)
    mirror.files = {f"/{name}": content for name, content in files.items()}
    remotes = tuple(
        Remote(name=name, hash=f"md5:{hashlib.md5(content).hexdigest()}", urls=(), place="mnist")
        for name, content in files.items()
    )
    monkeypatch.setattr(Mnist, "remotes", remotes)
    monkeypatch.setattr("bench.datasets.mnist._WHOLE", (12, 12))
    monkeypatch.setattr(Mnist, "contents", (None,) * 4)
    arguments = ("fetch", "mnist", "--mirror", mirror.address, "--data-dir", tmp_path)
    text = output(command, *arguments)
    assert f"mnist: 12 training and 12 test examples, in {tmp_path / 'mnist'}" in text
    assert "mnist is there" in output(command, *arguments) and len(mirror.requests) == 4


def test_fetch_has_nothing_to_get_for_what_comes_with_scikit_learn_or_is_ones_own() -> None:
    assert "digits is there: 1347 training" in output(command, "fetch", "digits")
    assert "npz is your own data: there is nothing to fetch" in fault(command, "fetch", "npz")


def _status(folder: Path) -> dict[str, dict[str, Any]]:
    text = output(command, "status", "--json", "--data-dir", folder)
    return {row["name"]: row for row in json.loads(text)["datasets"]}


def test_status_tells_what_is_there_in_part_damaged_missing_or_ones_own(tmp_path: Path) -> None:
    for place, names in (("mnist", _mnist(12)), ("fashion-mnist", _mnist(12))):
        (tmp_path / place).mkdir()
        for name, content in names.items():
            (tmp_path / place / name).write_bytes(content[:20] if place == "fashion-mnist" else content)
    rows = _status(tmp_path)
    assert {name: row["state"] for name, row in rows.items() if name in _EXPECTED} == _EXPECTED
    assert rows["mnist"]["subset"] == "12 of 60000 training, 12 of 10000 test pictures"
    assert rows["mnist"]["where"][0] == str(tmp_path / "mnist" / "train-images-idx3-ubyte.gz")
    assert rows["cancer"]["training"] == 426 and len(rows["cancer"]["sha256"]) == 64
    assert rows["cifar10"]["remedy"] == "bench data fetch cifar10"
    assert "delete it and run `bench data fetch fashion-mnist`" in rows["fashion-mnist"]["message"]


_EXPECTED = {
    "adult": "missing",
    "cancer": "there",
    "cifar10": "missing",
    "cifar100": "missing",
    "digits": "there",
    "fashion-mnist": "damaged",
    "folder": "yours",
    "lfw": "missing",
    "mnist": "subset",
    "npz": "yours",
}


def test_the_table_shows_every_data_set_and_where_it_looked(tmp_path: Path) -> None:
    text = output(command, "status", "--data-dir", tmp_path)
    assert all(name in text for name in _EXPECTED)
    assert "bench data fetch lfw" in text and f"looked in {tmp_path}" in text


@pytest.mark.data
def test_status_of_the_real_packs(data_dir: Path) -> None:
    rows = _status(data_dir)
    assert "damaged" not in {row["state"] for row in rows.values()}
    assert all(rows[name]["training"] and rows[name]["where"] for name in ("mnist", "lfw", "adult"))
