"""Text from records as Markdown shows it: as it is, on one line."""

import re


def cell(text: str) -> str:
    """Text for a cell of a table: nothing in it is markup, a link or another column."""
    escaped = re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", " ".join(text.split()))
    # a backslash before < leaves some renderers' HTML alone, and not others'
    return escaped.replace(r"\<", "&lt;").replace(r"\>", "&gt;")
