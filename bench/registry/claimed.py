"""A defense's stages, read from its class attribute `stages` in the source text, without importing the class."""

from bench.errors import BenchError
from bench.registry import entries as registry


def stages(defense: str) -> tuple[object, ...]:
    """Return the stages (places in the federated round) at which a defense acts, without running the defense's code:
    the class attribute `stages` is read from the source text. `defense` is the name; empty for an unknown defense."""
    try:
        claimed = registry.literals("defenses", defense).get("stages")
    except BenchError:
        return ()
    return tuple(claimed) if isinstance(claimed, tuple | list) else ()
