"""Texts from elsewhere, made fit for one line of a report."""

SHORT = 160


def harmless(text: object, most: int = SHORT) -> str:
    """`text` on one line: what does not print (controls, direction marks, lone surrogates) becomes �, and
    what is long is cut."""
    shown = str(text)
    cut = shown if len(shown) <= most else shown[: most - 1] + "…"
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in cut)


def first_line(error: BaseException) -> str:
    """What an error says, harmless and short; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return harmless(lines[0] if lines else type(error).__name__)
