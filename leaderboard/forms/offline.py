"""HTML pages as single files that open offline.

Untrusted text enters only through templates, which escape it, and through JSON blocks that no script can leave. The
security policy of a page runs only its own scripts, by hash, and loads no file."""

import gzip
import hashlib
from base64 import b64encode
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def environment() -> Environment:
    """Return a Jinja environment for the page templates in this folder. Text is escaped, and an undefined name is an
    error."""
    made = Environment(
        loader=FunctionLoader(_file), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.policies["json.dumps_kwargs"] = {"allow_nan": False}
    return made


def render(
    templates: Environment, name: str, *, script: str | None = None, images: str = "data:", **values: Any
) -> str:
    """Return an HTML page that opens offline, from a template with variables and the shared style.

    - `templates`: the environment with the templates; `name`: file of the template.
    - `script`: file with the page's own script, placed behind the shared script; None gives a page without scripts.
    - `images`: permitted sources of pictures: `data:` for the page itself, `'self' file:` for files next to the page.
    - `values`: the template's variables."""
    source = None if script is None else f"{_file('shared.js')}\n{_file(script)}"
    page = templates.get_template(name).render(
        policy=_policy([] if source is None else [source], images),
        style=Markup(_file("page.css")),
        source=source and Markup(source),
        **values,
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # half a surrogate pair cannot be written


def packed(source: str) -> str:
    """Compress a JavaScript library for an HTML page that opens offline: return the text `source`, compressed by gzip,
    as base64. The page unpacks it."""
    packed = bytearray(gzip.compress(source.encode(), mtime=0))
    packed[9] = 3  # the operating system (RFC 1952), for which some versions of Python write 255
    return b64encode(packed).decode()


def _file(name: str) -> str:
    return files("bench.leaderboard.forms").joinpath(name).read_text("utf-8")


def _policy(scripts: Iterable[str], images: str) -> str:
    """Return the page's content security policy, which browsers enforce. Allowed are the given `scripts` (by hash), the
    page's style and `images`; no other file is loaded."""
    hashes = [f"'sha256-{b64encode(hashlib.sha256(own.encode()).digest()).decode()}'" for own in scripts]
    allowed = " ".join([*hashes, "blob:"]) if hashes else "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src {images}; "
        "base-uri 'none'; form-action 'none'"
    )
