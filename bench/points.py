"""Interception points: where in the pipeline an attacker reads, as a table of values.

    stage order:  input → example → step → client → exchange → server → aggregate

`input` acts on examples and labels before a gradient is computed, `example` on one example's gradient, `step` on the
mean that the local SGD step uses, `client` on the finished update, `exchange` on what clients send one another,
`server` on each update as it arrives, `aggregate` on the mean.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bench.errors import BenchError

Stage = Literal["input", "example", "step", "client", "exchange", "server", "aggregate"]
STAGES: tuple[Stage, ...] = ("input", "example", "step", "client", "exchange", "server", "aggregate")

# The stages that act on gradients and updates: what a description is about, and where one can listen.
GRADIENT_STAGES: tuple[Stage, ...] = STAGES[1:]

# The stages, in order, that act on one client's whole update: after its local training, before the mean of all.
UPDATE_STAGES: tuple[Stage, ...] = ("client", "exchange", "server")


class Scope(StrEnum):
    """How much of a round one reading covers: an example, a local step, a client's update, the mean of K updates."""

    EXAMPLE = "example"
    STEP = "step"
    UPDATE = "update"
    AGGREGATE = "aggregate"


@dataclass(frozen=True, slots=True)
class Point:
    """A tap: it shows what has passed every stage up to and including `after`."""

    name: str
    after: Stage
    scope: Scope
    source: str

    def examples(self, *, batch: int, steps: int, senders: int) -> int:
        """Distinct examples behind one reading: `batch` examples a local step, `steps` steps, `senders` clients."""
        return (1, batch, batch * steps, batch * steps * senders)[list(Scope).index(self.scope)]

    @property
    def after_training(self) -> bool:
        """Whether a reading covers all local steps of a client: an update, or the mean of K."""
        return self.scope in (Scope.UPDATE, Scope.AGGREGATE)

    def sees(self, stage: Stage) -> bool:
        """Whether this point shows the result of a stage."""
        return STAGES.index(stage) <= STAGES.index(self.after)


_TABLE = (
    Point("type-2", "example", Scope.EXAMPLE, "Fed-αCDP §3.1: one example's gradient inside a client"),
    Point("type-2-step", "step", Scope.STEP, "ours: the mean that a local step uses, after its noise"),
    Point("type-1", "client", Scope.UPDATE, "Fed-αCDP §3.1: a client's whole update before it leaves"),
    Point("type-0", "server", Scope.UPDATE, "Fed-αCDP §3.1: the same update at the server, before aggregation"),
    Point("aggregate", "aggregate", Scope.AGGREGATE, "ours: the mean over the clients of the round alone"),
)
POINTS = {point.name: point for point in _TABLE}


def point(name: str) -> Point:
    """The point of that name; raises `BenchError` with all names."""
    if name not in POINTS:
        raise BenchError(f"unknown interception point {name!r}; there are {', '.join(POINTS)}")
    return POINTS[name]
