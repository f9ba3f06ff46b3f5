"""All kinds of data by name, and the kind inferred from an array's shape."""

from bench.errors import BenchError
from bench.kinds.base import Kind
from bench.kinds.images import IMAGE
from bench.kinds.tables import TABLE
from bench.kinds.texts import TEXT

KINDS = {kind.name: kind for kind in (IMAGE, TABLE, TEXT)}
INFERRED = (IMAGE, TABLE)  # numbers in [0, 1], told apart by their axes; any other kind has to be named


def named(name: str) -> Kind:
    """Return the kind of data (image, table or text) with this name. Raises `BenchError` for an unknown name."""
    if name not in KINDS:
        raise BenchError(f"unknown kind of data {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]


def of_shape(shape: tuple[int, ...], name: str | None = None, *, integers: str = "") -> Kind:
    """Return the kind of data (image, table or text) of a user's examples.

    - `shape`: shape of an example.
    - `name`: name of the kind; None: the kind is inferred from the number of axes.
    - `integers`: name of the user's array if it holds integers. On a single axis these may be columns or token ids, so
      the user must name the kind.

    Raises `BenchError` with the remedy."""
    if name is not None:
        kind = named(name)
        if len(shape) != len(kind.axes):
            raise BenchError(f"shape {shape} is not {kind.shape_text}, the axes of {kind.article}; give another kind=")
        return kind
    found = [kind for kind in INFERRED if len(kind.axes) == len(shape)]
    if not found:
        expected = " nor ".join(kind.shape_text for kind in INFERRED)
        hint = f"; give (1, {shape[0]}, {shape[1]}) for a picture of one channel" if len(shape) == 2 else ""
        raise BenchError(f"shape {shape} is neither {expected}{hint}")
    if integers and not found[0].spatial:
        raise BenchError(
            f"{integers} holds integers: columns of {found[0].article}, or the ids of a sequence; "
            f'give kind="{found[0].name}", or floats'
        )
    return found[0]
