"""Loaders: each real format in small, damage in each of them, one's own data, and the real packs."""

import gzip
import hashlib
import io
import pickle
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import fetch_lfw_people, load_breast_cancer
from sklearn.preprocessing import MinMaxScaler

from bench.datasets import cifar, pretrained
from bench.datasets.adult import Adult
from bench.datasets.base import Dataset, Raw, hold_out, split
from bench.datasets.batches import read_batch
from bench.datasets.cancer import Cancer
from bench.datasets.cifar import Cifar10, Cifar100
from bench.datasets.digits import Digits
from bench.datasets.files import md5
from bench.datasets.lfw import Lfw
from bench.datasets.loading import load, read
from bench.datasets.mnist import FashionMnist, Mnist
from bench.datasets.own import NpzPack, PictureFolder
from bench.errors import BenchError, DataError, MissingDataError, NotApplicable
from bench.folders import folders
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.mobilenet import FILE
from bench.models.mobilenet import MobileNetTail
from bench.record.npz import read_npz
from bench.registry import entries as registry

_RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_data_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BENCH_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SCIKIT_LEARN_DATA", str(tmp_path / "sklearn"))


def _bytes(*shape: int) -> NDArray[np.uint8]:
    return _RNG.integers(0, 256, shape, np.uint8)


# Files in each real format, in small.


def _idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">{1 + array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.tobytes()


def _idx_set(folder: Path, *, compressed: bool = True) -> dict[str, NDArray[np.uint8]]:
    arrays = {
        "train-images-idx3-ubyte": _bytes(60, 28, 28),
        "train-labels-idx1-ubyte": (np.arange(60) % 10).astype(np.uint8),
        "t10k-images-idx3-ubyte": _bytes(20, 28, 28),
        "t10k-labels-idx1-ubyte": (np.arange(20) % 10).astype(np.uint8),
    }
    folder.mkdir(parents=True)
    for name, array in arrays.items():
        if compressed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(_idx(array)))
        else:
            (folder / name).write_bytes(_idx(array))
    return arrays


def _old_text(text: bytes) -> bytes:
    return b"T" + struct.pack("<I", len(text)) + text


def _old_batch(pictures: NDArray[np.uint8], key: str, labels: list[int]) -> bytes:
    """The opcodes that Python 2's pickle and an old numpy wrote for {"data": …, key: [...]}."""

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows = pictures.reshape(len(pictures), -1)
    dtype = (
        b"cnumpy\ndtype\n("
        + _old_text(b"u1")
        + number(0)
        + number(1)
        + b"tR"
        + b"("
        + number(3)
        + _old_text(b"|")
        + b"NNN"
        + number(-1)
        + number(-1)
        + number(0)
        + b"tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n("
        + number(0)
        + b"t"
        + _old_text(b"b")
        + b"\x87R"
        + b"("
        + number(1)
        + b"("
        + number(rows.shape[0])
        + number(rows.shape[1])
        + b"t"
        + dtype
        + b"I00\n"
        + _old_text(rows.tobytes())
        + b"tb"
    )
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + _old_text(b"data") + array + _old_text(key.encode()) + listed + b"u."


def _cifar_batches(folder: Path, dataset: type[Any], monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.uint8]]:
    folder.mkdir(parents=True)
    parts, known = [], {}
    for name in dataset.batches:
        pictures = _bytes(10, 3, 32, 32)
        content = _old_batch(pictures, dataset.label, list(range(10)))
        (folder / name).write_bytes(content)
        parts.append(pictures)
        known[name] = md5(content)
    monkeypatch.setattr(dataset, "batches", known)
    return parts


def _pack(path: Path, **arrays: NDArray[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, allow_pickle=True, **arrays)
    return path


_ADULT_ROW = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"  # noqa: E501


def _adult_set(folder: Path) -> None:
    folder.mkdir(parents=True)
    rows = [
        _ADULT_ROW,
        _ADULT_ROW.replace("39,", "17,").replace("State-gov", "?"),
        _ADULT_ROW.replace("<=50K", ">50K").replace("39,", "90,"),
    ]
    (folder / "adult.data").write_text("\n".join(rows * 4) + "\n\n")
    (folder / "adult.test").write_text("|1x3 Cross validator\n" + "".join(f"{row}.\n" for row in rows) + "\n")


def _lfw_pictures(folder: Path) -> None:
    for person, count in (("Ann_Bell", 20), ("Carl_Dee", 21), ("Rare_Face", 3)):
        (folder / person).mkdir(parents=True)
        for number in range(1, count + 1):
            # Smooth, as faces are, so that JPEG keeps them.
            small = Image.fromarray(_bytes(5, 5, 3)).resize((250, 250))
            small.save(folder / person / f"{person}_{number:04}.jpg")


# Where it looks.


def test_folders_are_the_given_one_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "gradient-leakage-bench"
    assert folders(None) == (cache,)
    monkeypatch.setenv("BENCH_DATA", str(tmp_path / "b"))
    assert folders(tmp_path / "a") == (tmp_path / "a", tmp_path / "b", cache)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10", "cifar100", "lfw", "adult"])
def test_what_is_missing_is_said_with_places_and_remedy(name: str, tmp_path: Path) -> None:
    dataset = registry.instance("datasets", name, {})
    message = f"^{name}: not there: .*{tmp_path}.*; run `bench data fetch {name}`$"
    with pytest.raises(MissingDataError, match=message):
        load(dataset, name, tmp_path)


def test_an_incomplete_folder_is_named_and_a_complete_one_further_on_is_used(tmp_path: Path) -> None:
    _idx_set(tmp_path / "a" / "mnist")
    (tmp_path / "a" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingDataError, match="a/mnist lacks t10k-labels-idx1-ubyte"):
        Mnist().load((tmp_path / "a",))
    _idx_set(tmp_path / "b" / "mnist")
    assert Mnist().load((tmp_path / "a", tmp_path / "b")).sources[0].is_relative_to(tmp_path / "b")


# Each format.


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    ("dataset", "place"),
    [
        (Mnist(), "mnist"),
        (Mnist(), "MNIST/raw"),
        (FashionMnist(), "fashion-mnist"),
        (FashionMnist(), "FashionMNIST/raw"),
    ],
)
def test_idx_files_are_read_in_every_place(dataset: Dataset, place: str, compressed: bool, tmp_path: Path) -> None:
    arrays = _idx_set(tmp_path / place, compressed=compressed)
    raw = dataset.load((tmp_path,))
    assert np.array_equal(raw.train_inputs[:, 0], arrays["train-images-idx3-ubyte"])
    assert np.array_equal(raw.test_labels, arrays["t10k-labels-idx1-ubyte"])
    assert raw.subset == "60 of 60000 training, 20 of 10000 test pictures"
    assert raw.train_labels.dtype == np.int64


@pytest.mark.parametrize(("dataset", "place"), [(Cifar10, "cifar-10-batches-py"), (Cifar100, "cifar-100-python")])
def test_torchvisions_batches_are_read_without_pickles_power(
    dataset: type[Any], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = _cifar_batches(tmp_path / place, dataset, monkeypatch)
    raw = dataset().load((tmp_path,))
    assert np.array_equal(raw.train_inputs, np.concatenate(parts[:-1]))
    assert np.array_equal(raw.test_inputs, parts[-1])
    assert raw.test_labels.tolist() == list(range(10))


@pytest.mark.slow
def test_torchvision_reads_the_same_from_the_same_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torchvision = pytest.importorskip("torchvision")
    _cifar_batches(tmp_path / "cifar-10-batches-py", Cifar10, monkeypatch)
    meta = pickle.dumps({"label_names": list(Cifar10.class_names)}, 2)
    (tmp_path / "cifar-10-batches-py" / "batches.meta").write_bytes(meta)
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda *_: True)
    ours = Cifar10().load((tmp_path,))
    with warnings.catch_warnings():  # newer numpy warns of the old file's numbers for booleans
        warnings.simplefilter("ignore")
        theirs = torchvision.datasets.CIFAR10(tmp_path, train=True)
    assert np.array_equal(ours.train_inputs, theirs.data.transpose(0, 3, 1, 2))
    assert ours.train_labels.tolist() == theirs.targets


@pytest.mark.parametrize(
    ("dataset", "place", "label_bytes"), [(Cifar10(), "cifar-10-batches-bin", 1), (Cifar100(), "cifar-100-binary", 2)]
)
def test_the_binary_version_is_read(dataset: Any, place: str, label_bytes: int, tmp_path: Path) -> None:
    (tmp_path / place).mkdir()
    pictures = _bytes(8, 3072)
    labels = np.stack([np.full(8, 77)] * (label_bytes - 1) + [np.arange(8)], 1).astype(np.uint8)
    for name in dataset.batches:
        (tmp_path / place / f"{name}.bin").write_bytes(np.hstack([labels, pictures]).tobytes())
    raw = dataset.load((tmp_path,))
    assert np.array_equal(raw.test_inputs, pictures.reshape(8, 3, 32, 32))
    assert raw.test_labels.tolist() == list(range(8))
    assert raw.subset == f"{8 * (len(dataset.batches) - 1)} of 50000 training, 8 of 10000 test pictures"


def test_a_cifar_pack_is_read_with_channels_first(tmp_path: Path) -> None:
    x = _bytes(12, 32, 32, 3)
    y = np.arange(12) % 10
    _pack(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    raw = Cifar10().load((tmp_path,))
    assert np.array_equal(raw.train_inputs[:, 2], x[..., 2])
    assert raw.subset == "12 of 50000 training, 3 of 10000 test pictures"


def test_cifars_first_pictures_are_the_same_from_every_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a row measured on a whole copy stands beside the reference, which is of a part."""
    monkeypatch.setattr(cifar, "_FIRST", (12, 3))
    x, y = _bytes(20, 32, 32, 3), np.arange(20) % 10
    for name, training, test in (("whole", 20, 6), ("exact", 12, 3), ("less", 10, 3)):
        (tmp_path / name).mkdir()
        pack: dict[str, NDArray[Any]] = {
            "x_train": x[:training],
            "y_train": y[:training],
            "x_test": x[:test],
            "y_test": y[:test],
        }
        _pack(tmp_path / name / "cifar10.npz", **pack)
    whole, exact, less = (
        registry.instance("datasets", "cifar10-10k", {}).load((tmp_path / name,)) for name in ("whole", "exact", "less")
    )
    for field in ("train_inputs", "train_labels", "test_inputs", "test_labels"):
        assert np.array_equal(getattr(whole, field), getattr(exact, field))
    assert (whole.subset, exact.subset) == (None, None)
    assert less.subset == "10 of 12 training, 3 of 3 test pictures"


def test_adult_has_105_features_that_say_what_they_are(tmp_path: Path) -> None:
    _adult_set(tmp_path / "adult")
    raw = Adult().load((tmp_path,))
    inputs = np.concatenate([raw.train_inputs, raw.test_inputs])
    assert inputs.shape == (15, 105)
    assert [c for group in raw.groups for c in group.columns] == list(range(105))
    assert sum(not group.categorical for group in raw.groups) == 6
    sums = {g.name: inputs[:, g.columns].sum(1) for g in raw.groups if g.categorical}
    assert sorted(sums["workclass"]) == [0] * 5 + [1] * 10, "'?' is no category"
    assert all((total == 1).all() for name, total in sums.items() if name != "workclass")
    assert set(np.unique(inputs[:, raw.groups[0].columns[0]])) <= {0, np.float32(22 / 73), 1}
    assert raw.subset == "12 of 32561 training, 3 of 16281 test rows, pooled"
    assert sorted(np.concatenate([raw.train_labels, raw.test_labels])) == [0] * 10 + [1] * 5


def test_lfw_pictures_are_cut_and_reduced_as_scikit_learn_does(tmp_path: Path) -> None:
    home = tmp_path / "lfw_home"
    _lfw_pictures(home / "lfw_funneled")
    for name in ("pairsDevTrain.txt", "pairsDevTest.txt", "pairs.txt"):
        (home / name).touch()
    raw = Lfw().load((tmp_path,))
    cut = slice(61, 189)
    theirs = fetch_lfw_people(
        data_home=tmp_path,
        min_faces_per_person=20,
        color=True,
        slice_=(cut, cut),
        resize=0.25,
        download_if_missing=False,
    )
    assert raw.class_names == ("Ann_Bell", "Carl_Dee")
    assert raw.subset == "41 of 3023 pictures, 2 of 62 people"
    ours = np.concatenate([raw.train_inputs, raw.test_inputs]).transpose(0, 2, 3, 1) / 255
    assert len(raw.test_inputs) == 11
    nearest = np.abs(ours[:, None] - theirs.images[None]).reshape(41, 41, -1).max(2)
    assert nearest.min(1).max() < 1e-6
    labels = np.concatenate([raw.train_labels, raw.test_labels])
    assert np.array_equal(labels, theirs.target[nearest.argmin(1)])


def test_cancer_is_scaled_by_its_training_part_alone() -> None:
    raw = Cancer().load(())
    assert (len(raw.train_labels), len(raw.test_labels)) == (426, 143)
    low, high = raw.train_inputs.min(0), raw.train_inputs.max(0)
    assert np.array_equal(low, np.zeros(30)) and np.array_equal(high, np.ones(30))
    assert raw.test_inputs.min() >= 0 and raw.test_inputs.max() <= 1
    source = load_breast_cancer().data
    train, test = hold_out(569, "cancer")
    oracle = MinMaxScaler(clip=True).fit(source[train])
    assert np.allclose(raw.train_inputs, oracle.transform(source[train]), atol=1e-6)
    assert np.allclose(raw.test_inputs, oracle.transform(source[test]), atol=1e-6)
    assert raw.groups[3].mean == pytest.approx(float(raw.train_inputs[:, 3].mean()), abs=1e-6)
    assert raw.groups[3].deviation == pytest.approx(float(raw.train_inputs[:, 3].std()), abs=1e-6)


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    bunch, raw = load_digits(), Digits().load(())
    levels = np.concatenate([raw.train_inputs, raw.test_inputs]).reshape(-1, 64) * (16 / 255)
    rows = np.column_stack([levels.round(), np.concatenate([raw.train_labels, raw.test_labels])])
    theirs = np.column_stack([bunch.data, bunch.target])
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, theirs.tolist()))


def test_digits_keep_their_17_levels() -> None:
    raw = Digits().load(())
    assert raw.train_inputs.shape == (1347, 1, 8, 8) and raw.test_inputs.shape == (450, 1, 8, 8)
    assert len(np.unique(raw.train_inputs)) == 17


def test_an_order_by_key_is_the_same_every_time_and_covers_all() -> None:
    first, second = load(Digits(), "digits"), load(Digits(), "digits")
    assert first.sha256 == second.sha256
    assert np.array_equal(first.training.inputs, second.training.inputs)
    parts = (first.training, first.public, first.tuning, first.gallery)
    assert sum(map(len, parts)) == 1347


# Damage: an error that names the file and the remedy, in each format.


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("damage", [_truncate, _flip])
@pytest.mark.parametrize("file", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_a_damaged_idx_archive_is_named(damage: Callable[[Path], None], file: str, tmp_path: Path) -> None:
    _idx_set(tmp_path / "mnist")
    damage(tmp_path / "mnist" / f"{file}.gz")
    with pytest.raises(DataError, match=f"^mnist: .*{file}.gz: truncated or altered.*bench data fetch mnist"):
        load(Mnist(), "mnist", tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated: 0 bytes are no IDX header"),
        (struct.pack(">4I", 0x803, 5, 28, 28) + bytes(784), "its header says 5 items"),
        (struct.pack(">4I", 0x803, 1, 28, 28) + bytes(785), "its header says 1 items"),
        (struct.pack(">4I", 0x803, 1, 32, 32) + bytes(1024), "not an IDX file of unsigned bytes"),
        (struct.pack(">4I", 0xD03, 1, 28, 28) + bytes(784), "magic 0x00000d03"),
        (struct.pack(">4I", 0x803, 2**31, 28, 28) + bytes(784), "its header says 2147483648 items"),
    ],
)
def test_a_false_idx_header_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    _idx_set(tmp_path / "mnist", compressed=False)
    (tmp_path / "mnist" / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match=message):
        Mnist().load((tmp_path,))


def test_a_small_archive_that_grows_without_end_is_stopped(tmp_path: Path) -> None:
    _idx_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(2**22)))
    with pytest.raises(DataError, match="it holds more than the 60008 bytes"):
        Mnist().load((tmp_path,))


def test_different_counts_of_pictures_and_labels_are_named(tmp_path: Path) -> None:
    _idx_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(np.zeros(59, np.uint8))))
    with pytest.raises(DataError, match="mnist: training has 60 examples and 59 labels"):
        load(Mnist(), "mnist", tmp_path)


def test_whole_fashion_labels_must_be_balanced(tmp_path: Path) -> None:
    _idx_set(tmp_path / "fashion-mnist")
    labels = (np.arange(10000) % 10).astype(np.uint8)
    labels[0] = 1
    place = tmp_path / "fashion-mnist"
    (place / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(labels)))
    (place / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(_idx(np.zeros((10000, 28, 28), np.uint8))))
    with pytest.raises(DataError, match="expected 1000 examples in each of 10 classes, got 999 to 1001"):
        FashionMnist().load((tmp_path,))


@pytest.mark.parametrize("damage", [_truncate, _flip])
def test_a_damaged_batch_is_not_unpickled(
    damage: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cifar_batches(tmp_path / "cifar-10-batches-py", Cifar10, monkeypatch)
    damage(tmp_path / "cifar-10-batches-py" / "data_batch_3")
    message = r"cifar10: .*data_batch_3: truncated or altered: md5 .*bench data fetch cifar10"
    with pytest.raises(DataError, match=message):
        load(Cifar10(), "cifar10", tmp_path)


class _Malicious:
    """Unpickled, it would raise ZeroDivisionError, which no test here expects."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (eval, ("1 / 0",))


def test_a_batch_with_another_name_than_numpys_is_refused_even_with_the_right_checksum(tmp_path: Path) -> None:
    content = pickle.dumps({"data": _Malicious(), "labels": []}, 2)
    (tmp_path / "batch").write_bytes(content)
    with pytest.raises(DataError, match="is not allowed"):
        read_batch(tmp_path / "batch", known_md5=md5(content), label="labels")


def test_a_truncated_binary_batch_is_named(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in Cifar10.batches:
        (tmp_path / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(bytes(3073 * 2 - 1))
    with pytest.raises(DataError, match=r"data_batch_1.bin: truncated or altered: 6145 bytes"):
        Cifar10().load((tmp_path,))


def test_labels_of_another_set_are_named(tmp_path: Path) -> None:
    x = _bytes(5, 32, 32, 3)
    _pack(tmp_path / "cifar10.npz", x_train=x, y_train=np.full(5, 10), x_test=x, y_test=np.zeros(5, int))
    with pytest.raises(DataError, match=r"training labels must lie in 0..9, got 10 to 10"):
        load(Cifar10(), "cifar10", tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\n\n", "\n", "truncated: the source ends in an empty line"),
        (", United-States, <=50K\n", "\n", "row 1: truncated or altered: 13 values, expected 15"),
        ("State-gov", "Stategov", "row 1: altered: workclass is 'Stategov'"),
        ("2174", "-2174", "row 1: altered: capital-gain is '-2174'"),
        ("<=50K", "50K", "row 1: altered: the class is '50K'"),
    ],
)
def test_damage_to_adult_is_named_by_row(old: str, new: str, message: str, tmp_path: Path) -> None:
    _adult_set(tmp_path / "adult")
    path = tmp_path / "adult" / "adult.data"
    path.write_text(path.read_text().replace(old, new, 1))
    remedy = "; delete it and run `bench data fetch adult`"
    with pytest.raises(DataError, match=f"^adult: .*adult.data: {message}.*{remedy}"):
        load(Adult(), "adult", tmp_path)


# One's own packs: hostile ones, then honest ones.


def _member(path: Path, name: str, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return path


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def _header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": dtype, "fortran_order": False, "shape": shape})
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x_train.npy", _npy(np.array([_Malicious()], object)), "dtype object is not read"),
        ("../x_train.npy", _npy(np.zeros(3)), "is no array's name"),
        ("/x_train.npy", _npy(np.zeros(3)), "is no array's name"),
        ("x_train.txt", b"", "is no array's name"),
        ("x_train.npy", _header((2**40,)) + bytes(10), "not what the archive holds"),
        ("x_train.npy", _header((-1, 4)) + bytes(10), "truncated, altered or no|not what the archive holds"),
        ("x_train.npy", _header((10,)) + bytes(11), "not what the archive holds"),
        ("x_train.npy", _header((2,), "<c16") + bytes(32), "dtype complex128 is not read"),
        ("x_train.npy", b"\x93NUMPY\x09\x00rest of it", "npy version"),
        ("x_train.npy", b"junk", "truncated, altered or no .npz"),
    ],
)
def test_a_hostile_pack_is_refused(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    path = _member(tmp_path / "p.npz", name, content)
    with pytest.raises(DataError, match=message):
        read_npz(path)
    assert sorted(tmp_path.iterdir()) == [path], "nothing was written"


def test_a_pack_that_declares_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = _member(tmp_path / "bomb.npz", "x.npy", _npy(np.zeros(2**20, np.uint8)))
    assert path.stat().st_size < 2**12
    with pytest.raises(DataError, match="declares 1048704 bytes, more than the 65536"):
        read_npz(path, limit=2**16)


@pytest.mark.parametrize("damage", [_truncate, _flip])
def test_a_damaged_pack_is_named(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path = _pack(tmp_path / "p.npz", x_train=_bytes(50, 8, 8), y_train=np.arange(50))
    damage(path)
    with pytest.raises(DataError, match=r"p\.npz: "):
        read_npz(path)


def test_a_pack_keeps_values_order_and_axes(tmp_path: Path) -> None:
    x = np.asfortranarray(_bytes(4, 5, 6, 3))
    names = np.array(["a", "bé"])
    found = read_npz(_pack(tmp_path / "p.npz", x=x, names=names, empty=np.empty((0, 3), np.float32), one=np.array(2.0)))
    assert np.array_equal(found["x"], x) and found["names"].tolist() == names.tolist()
    assert found["empty"].shape == (0, 3) and found["one"] == 2


@pytest.mark.parametrize(
    ("shape", "layout", "expected"),
    [
        ((9, 7), "HWC", (1, 9, 7)),
        ((9, 7, 3), "HWC", (3, 9, 7)),
        ((3, 9, 7), "CHW", (3, 9, 7)),
        ((9, 7, 1), "HWC", (1, 9, 7)),
    ],
)
def test_own_pictures_become_channels_first(
    shape: tuple[int, ...], layout: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    path = _pack(tmp_path / "own.npz", x_train=_bytes(24, *shape), y_train=np.arange(24) % 3)
    data = load(NpzPack(path=str(path), layout=layout), "npz")
    assert data.shape == expected and data.kind == IMAGE and data.classes == 3 and data.private
    assert len(data.test) == 6, "a quarter is set aside"


def test_own_rows_are_a_table_and_a_path_may_be_below_a_data_folder(tmp_path: Path) -> None:
    rows = _RNG.random((30, 4))
    _pack(tmp_path / "own.npz", x_train=rows, y_train=np.arange(30) % 2, x_test=rows[:5], y_test=np.ones(5, int))
    data = load(NpzPack(path="own.npz"), "npz", tmp_path)
    assert (data.kind, data.shape, len(data.test)) == (TABLE, (4,), 5)
    assert [group.columns for group in data.groups] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": np.zeros((4, 2))}, "lacks y_train; it holds x_train"),
        ({"x_train": np.full((4, 2), 1.5), "y_train": np.zeros(4, int)}, r"must lie in \[0, 1\], got 1.5"),
        ({"x_train": np.full((4, 2), np.nan), "y_train": np.zeros(4, int)}, r"must lie in \[0, 1\], got nan"),
        ({"x_train": np.zeros((4, 2)), "y_train": np.zeros(4)}, "y_train must be one integer"),
        ({"x_train": np.zeros((4, 2)), "y_train": -np.ones(4, int)}, "y_train must be one integer"),
        ({"x_train": np.zeros((4, 2)), "y_train": np.zeros(3, int)}, "x_train has 4 examples, y_train 3"),
        ({"x_train": np.zeros((4, 2), int), "y_train": np.zeros(4, int)}, "must be uint8 or floats"),
        ({"x_train": np.zeros((4, 3, 8, 8)), "y_train": np.zeros(4, int)}, "got 8 with layout HWC; give the"),
        ({"x_train": np.zeros((4, 2)), "y_train": np.zeros(4, int), "x_test": np.zeros((4, 2))}, "lacks y_test"),
    ],
)
def test_a_pack_that_does_not_fit_says_why(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = _pack(tmp_path / "own.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load(NpzPack(path=str(path)), "npz")


# One's own pictures.


def _save(path: Path, picture: Image.Image) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)


def _own_pictures(root: Path) -> None:
    for number in range(8):
        _save(root / "cat" / f"{number}.png", Image.fromarray(_bytes(32, 32, 3)))
        _save(root / "dog" / f"{number}.jpg", Image.fromarray(_bytes(40, 60)))


def test_own_pictures_keep_their_pixels_where_the_size_is_theirs(tmp_path: Path) -> None:
    _own_pictures(tmp_path / "own")
    raw = PictureFolder(path=str(tmp_path / "own")).load(())
    everything = np.concatenate([raw.train_inputs, raw.test_inputs])
    labels = np.concatenate([raw.train_labels, raw.test_labels])
    assert raw.class_names == ("cat", "dog") and everything.shape == (16, 3, 32, 32)
    truth = {np.asarray(Image.open(tmp_path / "own/cat" / f"{n}.png")).tobytes() for n in range(8)}
    assert {picture.transpose(1, 2, 0).tobytes() for picture in everything[labels == 0]} == truth
    grey = PictureFolder(path="own", size=(16, 24), colour=False).load((tmp_path,))
    assert grey.train_inputs.shape == (12, 1, 16, 24)


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (None, "truncated or no picture"),
        (Image.fromarray(_bytes(8, 8).astype(np.uint16) * 200), "mode I;16 is not read"),
        (Image.new("1", (8000, 8000)), "8000×8000 pixels; at most 50000000"),
    ],
)
def test_pictures_that_cannot_be_read_are_named(picture: Image.Image | None, message: str, tmp_path: Path) -> None:
    _own_pictures(tmp_path)
    path = tmp_path / "cat" / "3.png"
    if picture is None:
        _truncate(path)
    else:
        _save(path, picture)
    with pytest.raises(DataError, match=rf"cat/3\.png: {message}"):
        PictureFolder(path=str(tmp_path)).load(())
    path.write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"cat/3\.png: truncated or no picture"):
        PictureFolder(path=str(tmp_path)).load(())


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    _own_pictures(tmp_path / "own")
    _save(tmp_path / "secret.png", Image.fromarray(_bytes(8, 8)))
    (tmp_path / "own" / "cat" / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(DataError, match=r"link\.png: leads out of"):
        PictureFolder(path=str(tmp_path / "own")).load(())


def test_pictures_are_read_in_every_common_format_and_at_every_depth(tmp_path: Path) -> None:
    _own_pictures(tmp_path)
    for suffix in ("webp", "bmp", "gif", "tif", "JPEG", "jfif"):
        colour = suffix in ("webp", "jfif")
        picture = Image.fromarray(_bytes(9, 9, 3) if colour else _bytes(9, 9))
        path = tmp_path / "cat" / "more" / f"a.{suffix}"
        path.parent.mkdir(exist_ok=True)
        picture.save(path, "JPEG" if suffix == "jfif" else None)
    raw = PictureFolder(path=str(tmp_path)).load(())
    assert raw.class_names == ("cat", "dog") and len(raw.train_labels) + len(raw.test_labels) == 22


@pytest.mark.parametrize(
    "place",
    [
        ".git/objects/x.png",
        ".ipynb_checkpoints/1.png",
        "__MACOSX/cat/._1.png",
        "cat/._1.png",
        "cat/.ipynb_checkpoints/1.png",
        ".DS_Store",
    ],
)
def test_hidden_files_and_folders_are_no_class_and_no_picture(place: str, tmp_path: Path) -> None:
    _own_pictures(tmp_path)
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"no picture")
    raw = PictureFolder(path=str(tmp_path)).load(())
    assert raw.class_names == ("cat", "dog") and len(raw.train_labels) + len(raw.test_labels) == 16


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["cat/1.heic", "cat/deep/2.heic", "dog/labels.csv"], r"cat: 2 images in a format that is not read \(\.heic\)"),
        (["train/cat/1.png", "test/cat/1.png"], "test, train: parts of a data set, not classes"),
    ],
)
def test_what_is_not_read_is_counted(files: list[str], message: str, tmp_path: Path) -> None:
    _own_pictures(tmp_path)
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(DataError, match=message):
        PictureFolder(path=str(tmp_path)).load(())


def test_too_few_examples_for_every_split_are_a_line(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _save(tmp_path / name / "0.png", Image.fromarray(_bytes(8, 8)))
    with pytest.raises(DataError, match="folder: 1 training examples leave the split public empty; give 30 or more"):
        load(PictureFolder(path=str(tmp_path)), "folder")


def test_a_class_without_pictures_and_a_size_out_of_bounds_are_named(tmp_path: Path) -> None:
    _own_pictures(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="none in empty"):
        PictureFolder(path=str(tmp_path)).load(())
    with pytest.raises(BenchError, match="size must be 1 to 1024 pixels"):
        registry.instance("datasets", "folder", {"size": [0, 32]})


@pytest.mark.parametrize(
    "dataset", [NpzPack(), PictureFolder(), NpzPack(path="nowhere"), PictureFolder(path="nowhere")]
)
def test_own_data_without_a_file_say_so(dataset: Dataset) -> None:
    with pytest.raises(MissingDataError, match=r"given: name it with path|nowhere: no such"):
        read(dataset, "own", None)


# The real packs.


@pytest.mark.data
@pytest.mark.parametrize(
    ("dataset", "counts", "shape", "classes", "subset"),
    [
        (Mnist(), (60000, 10000), (1, 28, 28), 10, None),
        (FashionMnist(), (5000, 1000), (1, 28, 28), 10, "5000 of 60000 training, 1000 of 10000 test pictures"),
        (Cifar10(), (10000, 1000), (3, 32, 32), 10, "10000 of 50000 training, 1000 of 10000 test pictures"),
        (Cifar100(), (1500, 300), (3, 32, 32), 100, "1500 of 50000 training, 300 of 10000 test pictures"),
        (Lfw(), (2267, 756), (3, 32, 32), 62, None),
        (Adult(), (36631, 12211), (105,), 2, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Dataset) else "",
)
def test_the_real_packs(
    dataset: Dataset, counts: tuple[int, int], shape: tuple[int, ...], classes: int, subset: str | None, data_dir: Path
) -> None:
    raw: Raw = dataset.load((data_dir,))
    if raw.subset != subset:
        pytest.skip(f"{data_dir} holds another part of it: {raw.subset or 'the whole'}")
    assert (len(raw.train_labels), len(raw.test_labels)) == counts
    assert raw.train_inputs.shape[1:] == shape and len(raw.class_names) == classes
    data = load(dataset, "real", data_dir)
    assert sum(map(len, (data.training, data.public, data.tuning, data.gallery))) == counts[0]


@pytest.mark.data
def test_whole_mnist_splits_as_the_design_says_and_an_altered_pixel_is_found(data_dir: Path, tmp_path: Path) -> None:
    data = load(Mnist(), "mnist", data_dir)
    sizes = [len(part) for part in (data.training, data.test, data.public, data.tuning, data.gallery)]
    assert sizes == [50000, 10000, 5000, 2000, 3000]
    shutil.copytree(data_dir / "mnist", tmp_path / "mnist")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[5000] ^= 1
    path.chmod(0o644)
    path.write_bytes(gzip.compress(bytes(content), 1))
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.gz: truncated or altered: md5"):
        load(Mnist(), "mnist", tmp_path)


@pytest.mark.data
def test_adults_groups_are_one_hot_and_its_unknown_values_are_where_the_source_has_them(data_dir: Path) -> None:
    raw = Adult().load((data_dir,))
    inputs = np.concatenate([raw.train_inputs, raw.test_inputs])
    empty = {g.name: int((inputs[:, g.columns].sum(1) == 0).sum()) for g in raw.groups if g.categorical}
    assert {name: count for name, count in empty.items() if count} == {
        "workclass": 2799,
        "occupation": 2809,
        "native-country": 857,
    }
    known = np.all([inputs[:, g.columns].sum(1) == 1 for g in raw.groups if g.categorical], axis=0)
    assert known.sum() == 45222
    assert (inputs.max(0) > 0).all(), "no column is empty"


def test_class_names_are_the_published_ones() -> None:
    names = Cifar100.class_names
    assert len(set(names)) == 100 and list(names) == sorted(names)
    assert cifar.Cifar10.class_names[3] == "cat"


@pytest.fixture(scope="module")
def mobilenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights of MobileNetV2 drawn at random, and a small pack of CIFAR-10."""
    import torch
    from torchvision.models import mobilenet_v2

    folder = tmp_path_factory.mktemp("frozen")
    torch.manual_seed(0)
    torch.save(mobilenet_v2().state_dict(), folder / FILE)
    x = _bytes(12, 32, 32, 3)
    _pack(folder / "cifar10.npz", x_train=x, y_train=np.arange(12) % 10, x_test=x[:3], y_test=np.arange(3))
    return folder


@pytest.fixture
def drawn(mobilenet: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The network with these weights, whose file counts as torchvision's."""
    import torch
    from torchvision.models import mobilenet_v2

    weights = mobilenet / FILE
    monkeypatch.setattr("bench.mobilenet.SHA256", hashlib.sha256(weights.read_bytes()).hexdigest())
    network = mobilenet_v2()
    network.load_state_dict(torch.load(weights, weights_only=True))
    return network.eval()


def _expected(network: Any, mobilenet: Path) -> Any:
    """Logits of the whole network for the pack's images."""
    import torch

    pictures = torch.from_numpy(Cifar10().load((mobilenet,)).train_inputs).float() / 255
    mean, deviation = (torch.tensor(each)[:, None, None] for each in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        return network((torch.nn.functional.interpolate(pictures, (64, 64), mode="bilinear") - mean) / deviation)


def test_features_are_the_inputs_of_the_networks_own_head(drawn: Any, mobilenet: Path, tmp_path: Path) -> None:
    import torch

    cache = tmp_path / "cache"
    raw = pretrained.Cifar10MobileNet().load((mobilenet, cache))
    with torch.no_grad():
        ours = drawn.classifier(6 * torch.from_numpy(raw.train_inputs))
    expected = _expected(drawn, mobilenet)
    assert raw.train_inputs.shape == (12, 1280) and raw.train_inputs.std(0).max() > 0
    assert torch.allclose(ours, expected, atol=1e-5)
    assert np.allclose(raw.test_inputs, raw.train_inputs[:3], atol=1e-6)
    (kept,) = cache.iterdir()
    again = pretrained.Cifar10MobileNet().load((mobilenet, cache))
    assert np.array_equal(again.train_inputs, raw.train_inputs)
    kept.write_bytes(kept.read_bytes()[:1000])
    mended = pretrained.Cifar10MobileNet().load((mobilenet, cache))
    assert np.array_equal(mended.train_inputs, raw.train_inputs), "a damaged copy is made again"


def test_features_before_the_last_block_and_the_fine_tuned_tail_are_the_network(
    drawn: Any, mobilenet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from torch.func import functional_call

    with torch.no_grad():
        norm, before = drawn.features[18][1], drawn.features[17].conv[3]
        outputs: list[Any] = []
        handle = before.register_forward_pre_hook(lambda layer, arguments: outputs.append(arguments[0]))
        _expected(drawn, mobilenet)
        handle.remove()
        before.running_mean.copy_(outputs[0].mean((0, 2, 3)))  # so that features differ, within ±3
        before.running_var.copy_(outputs[0].var((0, 2, 3)))
        before.weight.copy_(0.3 * (1 + before.eps / before.running_var).sqrt())
        for name in ("weight", "bias", "running_mean", "running_var"):
            getattr(norm, name).copy_(torch.rand(1280) + 0.5)
        torch.save(drawn.state_dict(), mobilenet / "other.pth")
    monkeypatch.setattr("bench.mobilenet.FILE", "other.pth")
    monkeypatch.setattr("bench.mobilenet.SHA256", hashlib.sha256((mobilenet / "other.pth").read_bytes()).hexdigest())
    monkeypatch.setenv("BENCH_DATA", str(mobilenet))
    raw = pretrained.Cifar10MobileNet(cut="block").load((mobilenet,))
    tail = MobileNetTail()
    module = tail.build(raw.train_inputs.shape[1:], 10)
    weights = tail.initial(module, seed=1) | {
        f"8.{key}": value for key, value in drawn.classifier[1].state_dict().items()
    }
    weights["8.weight"], weights["8.bias"] = weights["8.weight"][:10], weights["8.bias"][:10]
    with torch.no_grad():
        ours = functional_call(module, weights, (torch.from_numpy(raw.train_inputs),))
    assert raw.train_inputs.std() > 0 and sum(value.numel() for value in weights.values()) == 422410
    torch.testing.assert_close(ours, _expected(drawn, mobilenet)[:, :10], rtol=1e-4, atol=1e-4)
    with pytest.raises(NotApplicable, match="reads 1280 features, an example has 784"):
        tail.build((784,), 10)
    monkeypatch.setenv("BENCH_DATA", str(mobilenet / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(mobilenet / "none"))
    with pytest.raises(
        MissingDataError, match=r"^mobilenet-tail: not there: .* run `bench data fetch cifar10-mobilenet`"
    ):
        tail.build((1280,), 10)


def test_computed_features_are_known_by_their_source(drawn: Any, mobilenet: Path) -> None:
    """The last digits differ between machines; cells and splits must not."""
    raw = pretrained.Cifar10MobileNet().load((mobilenet,))
    inputs = np.tile(np.asarray(raw.train_inputs, np.float32), (4, 1))
    many = replace(raw, train_inputs=inputs, train_labels=np.tile(raw.train_labels, 4), kind="table")
    other = replace(many, train_inputs=np.nextafter(inputs, np.float32(0.5)))
    first, second = (split(each, name="x", private=False) for each in (many, other))
    assert first.sha256 == second.sha256
    assert np.array_equal(first.training.labels, second.training.labels)
    assert split(replace(other, source_sha256=None), name="x", private=False).sha256 != first.sha256


def test_without_the_networks_weights_or_with_others_the_remedy_is_said(mobilenet: Path, tmp_path: Path) -> None:
    entry = pretrained.Cifar10MobileNet()
    with pytest.raises(MissingDataError, match=r"mobilenet_v2-b0353104\.pth.*bench data fetch cifar10-mobilenet"):
        read(entry, "cifar10-mobilenet", tmp_path)
    with pytest.raises(DataError, match=r"pth: truncated or altered: sha256 .*delete it and run `bench data fetch"):
        read(entry, "cifar10-mobilenet", mobilenet)
