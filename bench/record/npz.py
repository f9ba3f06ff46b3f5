"""Safe reading of `.npz` files: no pickle, and every declared size is checked before reading."""

import io
import lzma
import math
import re
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from bench.errors import DataError
from bench.record.files import require_plain

LIMIT = 8 * 2**30  # bytes of all arrays of one file together
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\.npy")
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
_KINDS = "biufSU"  # numbers, booleans and plain text: no objects, no structures
_DAMAGE = (
    ValueError,
    SyntaxError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)
Arrays = dict[str, NDArray[Any]]


def read_npz(
    path: Path, *, limit: int = LIMIT, names: re.Pattern[str] = _PLAIN, content: bytes | None = None
) -> Arrays:
    """Read an `.npz` file from a stranger as name → array, without pickle, so that no code in the file runs.

    - `limit`: largest total size in bytes.
    - `names`: pattern of the allowed array names.
    - `content`: the file's bytes; None reads `path`.

    Raises `DataError` for a missing file, a damaged archive, a name that does not match, a repeated name, object
    arrays, and wrong declared sizes or more than `limit` bytes."""
    try:
        if content is None:
            require_plain(path)
        with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
            return _arrays(archive, path, limit, names)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; give an .npz") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); give an .npz") from None
    except _DAMAGE as error:
        raise DataError(f"{path}: truncated, altered or no .npz ({error}); save it again with numpy.savez") from None


def _arrays(archive: zipfile.ZipFile, path: Path, limit: int, allowed: re.Pattern[str]) -> Arrays:
    members = archive.infolist()
    names = [member.filename for member in members]
    wrong = next((name for name in names if not allowed.fullmatch(name)), None)
    if wrong is not None:
        raise DataError(f"{path}: {wrong!r:.200} is no array's name; save it again with plain names")
    if len(set(names)) != len(names):
        raise DataError(f"{path}: holds an array twice; save it again with different names")
    total = sum(member.file_size for member in members)
    if total > limit:
        raise DataError(f"{path}: declares {total} bytes, more than the {limit} that it may hold; save less in it")
    arrays = {}
    for member in members:
        with archive.open(member) as file:
            arrays[member.filename.removesuffix(".npy")] = _array(file, member, path)
    return arrays


def _array(file: IO[bytes], member: zipfile.ZipInfo, path: Path) -> NDArray[Any]:
    where = f"{path}: {member.filename}"
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise DataError(f"{where}: npy version {version} is not read; save it again with numpy.savez")
    shape, fortran, dtype = _HEADERS[version](file)
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise DataError(f"{where}: dtype {dtype} is not read; store numbers (or plain text for names)")
    size = math.prod(shape) * dtype.itemsize
    # The header against the archive, before a byte is read: numpy would allocate what the header says.
    if min(shape, default=0) < 0 or size != member.file_size - file.tell():
        raise DataError(f"{where}: its header says {shape} of {dtype}, which is not what the archive holds")
    content = bytearray()
    while chunk := file.read(2**24):  # to the end, so that the archive's checksum is checked as well
        content += chunk
    if len(content) != size:
        raise DataError(f"{where}: truncated: {len(content)} of {size} bytes")
    flat = np.frombuffer(content, dtype) if size else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if fortran else "C")
