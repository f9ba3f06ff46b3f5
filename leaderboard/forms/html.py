"""Elements of a page: what enters them as text stays text.

All text from records is text of strangers.  It enters a page through `tag`, which escapes it, or through
`json_block`, out of which no script can break.
"""

import json
from collections.abc import Iterable
from html import escape
from typing import Any


class Html(str):
    """Text that is HTML already."""


def tag(name: str, *inside: str | None, **attributes: str | int | bool | None) -> Html:
    """An element; what is not `Html` is escaped, `class_` is the class, `data_x` is `data-x`, None is left out."""
    given = "".join(
        f" {key.strip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in ("img", "br", "input"):
        return Html(f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(inside)}</{name}>")


def join(parts: Iterable[str | None]) -> Html:
    """Elements and texts one after the other."""
    return Html(
        "".join(part if isinstance(part, Html) else escape(part) for part in parts if part is not None)
    )


def json_block(value: Any, name: str) -> Html:
    """Data for a script: no `<` in it, so it cannot end its element, and no line that JavaScript alone ends."""
    text = json.dumps(value, allow_nan=False)  # ASCII: U+2028 and U+2029 are escaped with the rest
    text = text.replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{name}">{text}</script>')
