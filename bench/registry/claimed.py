"""A defense's claimed stages: the class literal `stages`, read without importing the class."""

from bench.errors import BenchError
from bench.registry import entries as registry


def stages(defense: str) -> tuple[object, ...]:
    """Return the stages that a defense claims; empty for an unknown defense."""
    try:
        claimed = registry.literals("defenses", defense).get("stages")
    except BenchError:
        return ()
    return tuple(claimed) if isinstance(claimed, tuple | list) else ()
