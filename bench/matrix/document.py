"""Matrix files: path by name or preset, and TOML content, with checks of size and values."""

import re
import tomllib
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any

from bench.matrix.messages import Errors, nearest

PRESETS = Path(__file__).parents[1] / "presets"
LARGEST_FILE = 2**20
DEEPEST = 16


def preset_names(folder: Path = PRESETS) -> tuple[str, ...]:
    """Return the names of the presets (matrix files that ship with the bench) in `folder`; a name includes the
    subfolder, such as `paper/table-3`."""
    return tuple(sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml")))


def located(source: str | Path, errors: Errors, folder: Path = PRESETS) -> Path:
    """Return the path of a matrix file (a run's experiments). `source` is a `Path`, a text that ends in `.toml`, or
    the name of a preset in `folder`. `errors` collects the error lines. Raises `MatrixError` for a missing file or an
    unknown preset."""
    if isinstance(source, Path) or source.endswith(".toml"):
        try:
            if Path(source).is_file():
                return Path(source)
        except (OSError, ValueError):  # a name too long, a null character
            pass
        errors.add("", "there is no such file", "give a TOML file or the name of a preset")
    else:
        names = preset_names(folder)
        if source in names:
            return folder / f"{source}.toml"
        remedy = nearest(source, names, "the presets are")
        errors.add("", "unknown preset", f"{remedy}; a file's name ends in .toml")
    raise errors.error()


def document(path: Path, errors: Errors, text: bytes | None = None) -> dict[str, Any]:
    """Return the content of a TOML file as key → value.

    - `path`: the file.
    - `errors`: collects the error lines.
    - `text`: content to parse in place of the file; None reads the file.

    Raises `MatrixError` for invalid TOML, and for too large files or values."""
    table: dict[str, Any] = {}
    try:
        with path.open("rb") if text is None else BytesIO(text) as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            errors.add("", f"larger than {LARGEST_FILE} bytes", "split the matrix into several files")
        else:
            table = tomllib.loads(content.decode())
    except OSError as error:
        errors.add("", f"cannot be read ({error.strerror})", "mend the path or its permissions")
    except UnicodeDecodeError as error:
        errors.add("", f"not UTF-8 at byte {error.start}", "save it as UTF-8")
    except RecursionError:
        errors.add("", "nested too deeply", "flatten it")
    except ValueError as error:
        errors.add(*_syntax(str(error)))
    _check_values(errors, table)
    errors.raise_any()
    return table


def _syntax(message: str) -> tuple[str, str, str]:
    """Split tomllib's message, such as `Invalid value (at line 1, column 5)`, into key, message and remedy."""
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    what = message[: place.start()] if place else message
    where = f"line {place[1]}, column {place[2]}" if place and place[1] else "end of file" if place else ""
    return where, f"not TOML: {what[:1].lower()}{what[1:]}", "mend the line"


def _check_values(errors: Errors, table: dict[str, Any]) -> None:
    stack: list[tuple[str, Any, int]] = [("", table, 0)]
    while stack:
        key, value, depth = stack.pop()
        if depth > DEEPEST:
            errors.add(key, f"nested deeper than {DEEPEST} levels", "flatten it")
        elif isinstance(value, dict):
            stack += [(f"{key}.{k}" if key else k, v, depth + 1) for k, v in reversed(value.items())]
        elif isinstance(value, list):
            stack += [(f"{key}[{i}]", v, depth + 1) for i, v in reversed(list(enumerate(value)))]
        elif isinstance(value, float) and not isfinite(value):
            errors.add(key, f"expected a number, got {value}", "give a finite one")
        elif isinstance(value, int) and abs(value) >= 2**63:
            errors.add(key, "a number of more than 63 bits", "give a smaller one")
