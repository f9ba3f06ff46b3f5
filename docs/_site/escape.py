"""`(reading, *shape)` in a docstring is an axis, not Markdown's emphasis: the star is escaped outside code."""

import re
from typing import Any

import griffe

CODE_OR_STAR = re.compile(r"(?P<code>^    .*$|`[^`]*`)|\*(?=[a-z])", re.MULTILINE)


class EscapeStars(griffe.Extension):
    """Escape stars in every docstring as it is collected."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = CODE_OR_STAR.sub(lambda match: match["code"] or r"\*", obj.docstring.value)
