"""Reading files: what is saved comes back; what is not data, or too much, is refused before it is read."""

import io
import json
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.errors import RecordError
from bench.own import files as reading_files
from bench.own.files import Meta

META = Meta(shape=(1, 8, 8), classes=10)
VALUES = {"0.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "0.bias": np.ones(2, np.float32)}


def meta_array(**fields: Any) -> np.ndarray:
    return np.frombuffer(json.dumps({"shape": [4], "classes": 2} | fields).encode(), np.uint8)


def npy(array: np.ndarray, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    meta = Meta(shape=(4,), classes=3, batch=2, steps=5, rate=0.1, unit=0.1, value_range=(-1.0, 1.0))
    path = tmp_path / "below" / "a.npz"
    reading_files.save(path, VALUES, meta, weights={"0.bias": np.zeros(2)}, labels=[1, 2])
    content = reading_files.load(path)
    assert content.meta == meta
    assert content.values.keys() == VALUES.keys()
    assert all(np.array_equal(content.values[name], VALUES[name]) for name in VALUES)
    assert content.values["0.weight"].dtype == np.float32
    assert list(content.weights) == ["0.bias"]
    assert content.labels is not None and content.labels.tolist() == [1, 2]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("as_text", [True, False])
def test_numpys_own_files_are_read(tmp_path: Path, save: Any, as_text: bool) -> None:
    text = json.dumps({"shape": [1, 8, 8], "classes": 10, "batch": 3})
    meta = np.array(text) if as_text else np.frombuffer(text.encode(), np.uint8)
    save(tmp_path / "a.npz", **{"value/fc.weight": np.asfortranarray(VALUES["0.weight"]), "meta": meta})
    content = reading_files.load(tmp_path / "a.npz")
    assert content.meta == Meta(shape=(1, 8, 8), classes=10, batch=3)
    assert content.values["fc.weight"].tolist() == VALUES["0.weight"].tolist()
    assert (content.labels, content.weights) == (None, {})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"meta": meta_array()}, r"no array value/<parameter>; save each"),
        ({"value/w": np.ones(2)}, r"no array 'meta'; save with"),
        ({"value/w": np.ones(2), "meta": meta_array(), "inputs": np.ones(1)}, r"unknown array 'inputs'; it takes"),
        ({"value/w": np.array([1, np.nan]), "meta": meta_array()}, r"value/w has values that are not finite"),
        ({"value/w": np.ones(2), "meta": meta_array(batch=0)}, r"meta: batch: .* greater than or equal to 1"),
        ({"value/w": np.ones(2), "meta": meta_array(truth=1)}, r"meta: truth: unexpected keyword"),
        ({"value/w": np.ones(2), "meta": meta_array(shape=[])}, r"meta: shape: "),
        ({"value/w": np.ones(2), "meta": meta_array(rate=1e999)}, r"meta: rate: "),
        ({"value/w": np.ones(2), "meta": meta_array(value_range=[1, 0])}, r"meta: value_range: .*\(low, high\)"),
        ({"value/w": np.ones(2), "meta": np.array([255], np.uint8)}, r"meta is not text .*; it is a JSON object"),
        ({"value/w": np.ones(2), "meta": np.zeros(70000, np.uint8)}, r"meta has 70000 bytes, at most 65536"),
        ({"value/w": np.array(["text"]), "meta": meta_array()}, r"value/w holds <U4, not numbers; save it as"),
        ({"value/../w": np.ones(2), "meta": meta_array()}, r"'value/../w.npy' is no array's name; save"),
        ({"/etc/w": np.ones(2), "meta": meta_array()}, r"is no array's name"),
        ({"below/w": np.ones(2), "meta": meta_array()}, r"'below/w.npy' is no array's name"),
    ],
)
def test_a_fault_names_file_key_and_remedy(tmp_path: Path, arrays: Any, message: str) -> None:
    path = archive(tmp_path / "a.npz", {f"{name}.npy": npy(array) for name, array in arrays.items()})
    with pytest.raises(RecordError, match=rf"a\.npz: .*{message}"):
        reading_files.load(path)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    hostile = npy(np.array([print], dtype=object), allow_pickle=True)
    path = archive(tmp_path / "a.npz", {"value/w.npy": hostile})
    with pytest.raises(RecordError, match="dtype object is not read; store numbers"):
        reading_files.load(path)


def test_a_size_beyond_the_limit_is_refused_before_reading(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.npz", {"x.npy": npy(np.zeros(1000))})
    with pytest.raises(RecordError, match=r"declares 8128 bytes, more than the 1000"):
        reading_files.load_arrays(path, limit=1000)
    assert reading_files.load_arrays(path, limit=10000)["x"].shape == (1000,)


def test_a_header_that_declares_more_than_there_is_makes_no_room(tmp_path: Path) -> None:
    """numpy would allocate what the header says: here 8 TB."""
    header = npy(np.zeros(10)).replace(b"(10,), }" + b" " * 12, b"(1000000000000,), }".ljust(20))
    assert b"1000000000000" in header
    path = archive(tmp_path / "a.npz", {"x.npy": header})
    with pytest.raises(RecordError, match=r"says \(1000000000000,\) of float64, which is not what"):
        reading_files.load_arrays(path)


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", npy(np.zeros(1)))
        with pytest.warns(UserWarning, match="Duplicate name"):
            file.writestr("x.npy", npy(np.ones(1)))
    with pytest.raises(RecordError, match="holds an array twice"):
        reading_files.load_arrays(tmp_path / "a.npz")


def test_no_file_and_no_npz(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"a\.npz: no such file; give an \.npz"):
        reading_files.load(tmp_path / "a.npz")
    (tmp_path / "a.npz").write_text("hello")
    with pytest.raises(RecordError, match=r"a\.npz: truncated, altered or no \.npz"):
        reading_files.load(tmp_path / "a.npz")
    with pytest.raises(RecordError, match="no plain file"):
        reading_files.load(tmp_path)


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 10**6), value=st.integers(0, 255), length=st.integers(0, 10**6))
def test_a_damaged_file_is_refused_or_still_sound(
    tmp_path_factory: pytest.TempPathFactory, place: int, value: int, length: int
) -> None:
    """Any byte changed, or the end cut off, never raises anything but `RecordError`."""
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    reading_files.save(path, VALUES, META)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    for damaged in (bytes(content), path.read_bytes()[: length % len(content)]):
        path.write_bytes(damaged)
        with suppress(RecordError):
            reading_files.load(path)
