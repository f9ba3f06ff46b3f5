"""A revision of the git repository around the working folder: files as this revision holds them."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.sanitize import LONG, sanitize


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """A commit of the repository around the working folder."""

    ref: str
    """The commit as the user typed it."""
    commit: str
    """Hash of the commit."""
    root: Path
    """The repository's root folder."""

    def content(self, path: str | Path) -> bytes | None:
        """Return the content of the file at `path` (relative to the working folder) in this revision; None if the
        revision has no such file. Raises `BenchError` for a path outside the repository."""
        inside = within(self.root, path)
        if inside is None:
            raise BenchError(f"{path}: outside the repository {self.root}, so {self.ref} does not hold it; move it in")
        name = f"{self.commit}:{inside}"
        if _git("cat-file", "-e", name).returncode:
            return None
        return _checked("cat-file", "blob", name)

    def is_ahead(self) -> bool:
        """Return whether this revision has commits that the checkout does not have."""
        return _git("merge-base", "--is-ancestor", self.commit, "HEAD").returncode != 0


def at(ref: str) -> Revision:
    """Return the commit `ref` (as typed, such as `origin/main`) of the repository around the working folder. Raises
    `BenchError` with the remedy without git, outside a repository, and for an unknown commit."""
    root = Path(os.fsdecode(_checked("rev-parse", "--show-toplevel")).strip())
    asked = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    if asked.returncode:
        shallow = _checked("rev-parse", "--is-shallow-repository").strip() == b"true"
        remedy = "give actions/checkout fetch-depth: 0, or run git fetch --unshallow"
        remedy = f"this clone is shallow: {remedy}" if shallow else "run git fetch, or name another revision"
        raise BenchError(f"--base {sanitize(ref)}: there is no such revision; {remedy}")
    return Revision(ref=ref, commit=asked.stdout.decode().strip(), root=root)


def root() -> Path | None:
    """Return the root of the repository around the working folder; None without git or outside a repository."""
    try:
        return Path(os.fsdecode(_checked("rev-parse", "--show-toplevel")).strip())
    except BenchError:
        return None


def within(top: Path, path: str | Path) -> str | None:
    """Return `path` relative to the folder `top`, with `/` between folders; None outside `top`."""
    real = Path(path).resolve()
    return real.relative_to(top.resolve()).as_posix() if real.is_relative_to(top.resolve()) else None


def is_dirty() -> bool:
    """Return whether a file under version control differs from the last commit. Raises `BenchError` without git or
    outside a repository."""
    return bool(_checked("status", "--porcelain", "--untracked-files=no").strip())


def head() -> tuple[str, str]:
    """Return the hash of the last commit and its time (ISO 8601, UTC). Raises `BenchError` without git, outside a
    repository, and before the first commit."""
    environment = {"TZ": "UTC"}
    line = _checked("log", "-1", "--format=%H %cd", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", environment=environment)
    commit, _, time = line.decode().strip().partition(" ")
    return commit, time


def _checked(*arguments: str, environment: dict[str, str] | None = None) -> bytes:
    done = _git(*arguments, environment=environment)
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise BenchError(
            f"git {arguments[0]}: {sanitize(lines[0], LONG)}; run bench gate inside the project's checkout"
        )
    return done.stdout


def _git(*arguments: str, environment: dict[str, str] | None = None) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            ["git", "--literal-pathspecs", *arguments],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
        )
    except FileNotFoundError:
        raise BenchError("git: not installed, and --base and --history read the repository; install git") from None
    except (OSError, ValueError) as error:  # a null character
        raise BenchError(f"git: cannot run ({sanitize(error)})") from None
