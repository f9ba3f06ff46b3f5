"""IDX, the file format for MNIST and similar data sets: a magic number, big-endian sizes, unsigned bytes."""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.datasets.files import check_md5, read
from bench.errors import DataError

_UNSIGNED_BYTE = 0x08


def read_idx(path: Path, *, item: tuple[int, ...], whole: int, known_md5: str | None = None) -> NDArray[np.uint8]:
    """Read an IDX file (MNIST's format): an array (example, *`item`), with at most `whole` examples of the shape
    `item`. `known_md5` is the checksum after decompression, checked for files with `whole` examples; None for no check.
    Raises `DataError` if the header does not fit `item`, or the length does not fit the header."""
    start = 4 * (2 + len(item))
    size = int(np.prod(item, dtype=np.int64))
    content = read(path, limit=start + whole * size)
    if len(content) < start:
        raise DataError(f"{path}: truncated: {len(content)} bytes are no IDX header")
    magic, count, *rest = struct.unpack(f">{2 + len(item)}I", content[:start])
    if magic != _UNSIGNED_BYTE << 8 | 1 + len(item) or tuple(rest) != item:
        raise DataError(
            f"{path}: not an IDX file of unsigned bytes with items {item}: magic {magic:#010x}, items {tuple(rest)}"
        )
    if len(content) != start + count * size:
        raise DataError(
            f"{path}: truncated or altered: its header says {count} items, {start + count * size} bytes; "
            f"it holds {len(content)}"
        )
    if known_md5 is not None and count == whole:
        check_md5(path, content, known_md5)
    return np.frombuffer(bytearray(content), np.uint8, offset=start).reshape(count, *item)
