"""`.npz` packs from anywhere: read without pickle, with every declared size checked before reading."""

import io
import math
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bench.errors import DataError

LIMIT = 8 * 2**30  # bytes of all arrays of one pack together
_MEMBER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\.npy")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_pack(
    path: Path, *, limit: int = LIMIT, names: re.Pattern[str] = _MEMBER, content: bytes | None = None
) -> dict[str, NDArray[Any]]:
    """Every array of a pack, by name; where its `content` is at hand, `path` is only what it is called.

    Raises `DataError` for a damaged archive, members that are not plain `NAME.npy` (or as `names` has it),
    arrays of Python objects, and sizes that are false or, together, above `limit` bytes.
    """
    try:
        with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
            return _arrays(archive, path, limit, names)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (
        ValueError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise DataError(f"{path}: truncated, altered or no .npz pack ({error})") from None


def _arrays(
    archive: zipfile.ZipFile, path: Path, limit: int, allowed: re.Pattern[str]
) -> dict[str, NDArray[Any]]:
    names = archive.namelist()
    wrong = next((name for name in names if not allowed.fullmatch(name)), None)
    if wrong is not None or len(set(names)) != len(names):
        told = f"{wrong or names!r:.200}"
        raise DataError(f"{path}: members must be plain and different NAME.npy, got {told}")
    total = sum(info.file_size for info in archive.infolist())
    if total > limit:
        raise DataError(f"{path}: declares {total} bytes, more than the {limit} that a pack may hold")
    arrays = {}
    for info in archive.infolist():
        with archive.open(info) as file:
            arrays[info.filename.removesuffix(".npy")] = _array(file, info, path)
    return arrays


def _array(file: IO[bytes], info: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    where = f"{path}: {info.filename}"
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise DataError(f"{where}: npy version {version} is not read; save it again with numpy.savez")
    shape, fortran, dtype = _HEADERS[version](file)
    if dtype.hasobject or dtype.kind not in "biufU":
        raise DataError(f"{where}: dtype {dtype} is not read; store numbers (or plain text for names)")
    size = math.prod(shape) * dtype.itemsize
    # Checked before a byte is read: what the array says against what the archive says.
    if min(shape, default=0) < 0 or size != info.file_size - file.tell():
        raise DataError(f"{where}: its header says {shape} of {dtype}, which is not what the archive holds")
    content = bytearray()
    while chunk := file.read(2**24):  # to the end, so that the archive's checksum is checked as well
        content += chunk
    if len(content) != size:
        raise DataError(f"{where}: truncated: {len(content)} of {size} bytes")
    flat = np.frombuffer(content, dtype) if size else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")


def wanted(pack: dict[str, NDArray[Any]], path: Path, *names: str) -> list[NDArray[Any]]:
    """The arrays of these names; raises `DataError` naming what the pack lacks."""
    lacking = [name for name in names if name not in pack]
    if lacking:
        raise DataError(
            f"{path}: lacks {', '.join(lacking)}; it holds {', '.join(sorted(pack)) or 'nothing'}"
        )
    return [pack[name] for name in names]


def channels_first(pictures: NDArray[Any], path: Path, name: str) -> NDArray[np.uint8]:
    """uint8 (example, height, width, channel) → (example, channel, height, width), contiguous."""
    if pictures.dtype != np.uint8 or pictures.ndim != 4:
        raise DataError(f"{path}: {name} must be uint8 N×H×W×C, got {pictures.dtype} {pictures.shape}")
    return np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))


def whole_numbers(labels: NDArray[Any], path: Path, name: str) -> NDArray[np.int64]:
    """Labels (example,) as int64; raises `DataError` for anything but a row of integers ≥ 0."""
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or (labels.size and int(labels.min()) < 0):
        raise DataError(
            f"{path}: {name} must be one integer ≥ 0 an example, got {labels.dtype} {labels.shape}; "
            "number the classes from 0"
        )
    return labels.astype(np.int64)
