"""Claimed stages of a defense: the class literal `stages`, read without importing code."""

from bench.errors import BenchError
from bench.registry import entries as registry


def stages(defense: str) -> tuple[object, ...]:
    """Claimed stages; empty for an absent defense."""
    try:
        claimed = registry.literals("defenses", defense).get("stages")
    except BenchError:
        return ()
    return tuple(claimed) if isinstance(claimed, tuple | list) else ()
