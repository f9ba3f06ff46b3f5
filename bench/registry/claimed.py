"""A defense's stages, read from its class attribute `stages` in the source text, without importing the class."""

from bench.errors import BenchError
from bench.registry import entries as registry


def stages(defense: str) -> tuple[object, ...]:
    """Return the stages (places in the federated round) at which the defense with the name `defense` acts, from the
    class attribute `stages` in the source text, without import; empty for an unknown defense."""
    try:
        claimed = registry.literals("defenses", defense).get("stages")
    except BenchError:
        return ()
    return tuple(claimed) if isinstance(claimed, tuple | list) else ()
