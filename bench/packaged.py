"""Files inside packages of other projects, such as pretrained weights: found by path, size and SHA-256, never
imported."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from bench.errors import DataError, MissingDataError


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A wheel of a package index."""

    name: str
    """Name in the index."""
    version: str
    """Version."""
    sha256: str
    """Hash of the wheel."""

    @property
    def requirement(self) -> str:
        """The package with its version, as `pip install` takes it."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedFile:
    """A file that a package ships."""

    package: Package
    """Package that ships the file."""
    path: str
    """Path inside the wheel, with `/`; its first part is the package's import name."""
    size: int
    """Size in bytes."""
    sha256: str
    """Hash of the content."""

    def find(self, folders: Sequence[Path]) -> Path:
        """Return the path of the checked file: below the first of `folders` that has it, or in the installed package.
        Raises `MissingDataError` for an absent file, and `DataError` for another content."""
        top, _, rest = self.path.partition("/")
        spec = find_spec(top)
        installed = [Path(place) / rest for place in spec.submodule_search_locations or ()] if spec else []
        for path in (*(folder / self.path for folder in folders), *installed):
            if path.is_file():
                self.check(path)
                return path
        raise MissingDataError(
            f"{self.path} is not there: looked below {', '.join(map(str, folders)) or 'no folder'}, and for the "
            f"installed package {self.package.requirement}"
        )

    def check(self, path: Path) -> None:
        """Raise `DataError` if the file `path` has another size or hash."""
        try:
            size = path.stat().st_size
            if size != self.size:
                raise DataError(f"{path}: truncated or altered: {size} bytes, published are {self.size}")
            actual = file_hash(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
        if actual != self.sha256:
            raise DataError(f"{path}: truncated or altered: sha256 {actual}, published is {self.sha256}")


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file's content, computed once for each size and time of change. Raises `OSError` for a
    file that cannot be read."""
    status = path.stat()
    return _sha256(path, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=16)  # a run asks for the same files in each cell
def _sha256(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
