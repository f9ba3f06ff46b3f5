"""Weights files in a matrix, identified by content hash: the same file for all seeds, or a file for each seed."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cell import FileWeights
from bench.matrix.messages import Wrong, expected, quoted

SEED = "{seed}"  # in a file's name


@dataclass(frozen=True, slots=True)
class SeededFile:
    """Weights files, one for each weight seed, that a matrix gives as a single name with `{seed}`, such as
    `lenet-{seed}.npz`."""

    folder: Path
    """Folder of the files."""
    name: str
    """File name with `{seed}` in place of the seed."""

    def of(self, seed: int) -> FileWeights:
        """Return the weights file for the weight seed `seed`, with its hash; raises `Wrong` for a missing file."""
        weights = _read(self.folder, self.name.replace(SEED, str(seed)))
        return weights.model_copy(update={"series": self.name})


def weights_file(folder: Path, raw: Any) -> FileWeights | SeededFile:
    """Find the weights file that a matrix names in the axis `weights`. `raw` is the name, relative to `folder`; with
    `{seed}` in the name, the result stands for a file per seed. Raises `Wrong` for a missing file."""
    if not isinstance(raw, str) or not raw or "\0" in raw:
        raise Wrong(expected("a path", raw, '"w.safetensors"'))
    return SeededFile(folder, raw) if SEED in raw else _read(folder, raw)


def _read(folder: Path, name: str) -> FileWeights:
    folder = folder.resolve()
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise Wrong(f"{quoted(name)} lies outside the matrix's folder; copy it beside the matrix")
        if not path.is_file():
            raise Wrong(f"{quoted(name)} is not a file; mend the path, below {folder}")
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, RuntimeError) as error:  # not readable, a name too long, a circle of links
        raise Wrong(f"{quoted(name)} cannot be read ({error}); mend the path") from None
    return FileWeights(sha256=sha256, path=str(path))
