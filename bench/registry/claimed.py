"""The stages that a defense claims: its class's literal `stages`, read without its code."""

from bench.errors import BenchError
from bench.registry import entries as registry


def stages(defense: str) -> tuple[object, ...]:
    """The stages that it claims; none where it is not here."""
    try:
        claimed = registry.literals("defenses", defense).get("stages")
    except BenchError:
        return ()
    return tuple(claimed) if isinstance(claimed, tuple | list) else ()
