"""Interception points: positions of an attacker in the pipeline of a round.

    stage order:  input → example → step → client → exchange → server → aggregate

`input` acts on examples and labels before the gradient, `example` on an example's gradient, `step` on the mean in a
local SGD step, `client` on the finished update, `exchange` on messages between clients, `server` on each arrived
update, `aggregate` on the mean.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bench.errors import BenchError

Stage = Literal["input", "example", "step", "client", "exchange", "server", "aggregate"]
STAGES: tuple[Stage, ...] = ("input", "example", "step", "client", "exchange", "server", "aggregate")

# Stages on gradients and updates: subject of a description, and visible at some point.
GRADIENT_STAGES: tuple[Stage, ...] = STAGES[1:]

# Stages on a client's whole update, in order: after the local training, before the mean.
UPDATE_STAGES: tuple[Stage, ...] = ("client", "exchange", "server")


class Scope(StrEnum):
    """Coverage of a reading: an example, a local step, a client's update, the mean over K updates."""

    EXAMPLE = "example"
    STEP = "step"
    UPDATE = "update"
    AGGREGATE = "aggregate"


@dataclass(frozen=True, slots=True)
class Point:
    """A tap in the pipeline."""

    name: str
    after: Stage
    """Last stage visible in a reading."""
    scope: Scope
    """Coverage of a reading."""
    source: str
    """Paper and section, with the meaning in words."""
    heading: str
    """Meaning in two or three words, for column heads."""

    def examples(self, *, batch: int, steps: int, senders: int) -> int:
        """Distinct examples behind a reading: `batch` per local step, `steps` steps, `senders` clients."""
        return (1, batch, batch * steps, batch * steps * senders)[list(Scope).index(self.scope)]

    @property
    def after_training(self) -> bool:
        """Whether a reading covers all local steps of a client: an update, or the mean over K."""
        return self.scope in (Scope.UPDATE, Scope.AGGREGATE)

    def sees(self, stage: Stage) -> bool:
        """Whether a reading shows the result of a stage."""
        return STAGES.index(stage) <= STAGES.index(self.after)


_TABLE = (
    Point("type-2", "example", Scope.EXAMPLE, "Fed-αCDP §3.1: one example's gradient inside a client", "one gradient"),
    Point("type-2-step", "step", Scope.STEP, "ours: the mean that a local step uses, after its noise", "a step's mean"),
    Point(
        "type-1", "client", Scope.UPDATE, "Fed-αCDP §3.1: a client's whole update before it leaves", "client's update"
    ),
    Point(
        "type-0",
        "server",
        Scope.UPDATE,
        "Fed-αCDP §3.1: the same update at the server, before aggregation",
        "at the server",
    ),
    Point(
        "aggregate",
        "aggregate",
        Scope.AGGREGATE,
        "ours: the mean over the clients of the round alone",
        "mean of clients",
    ),
)
# From inside the client outwards: the order of points in tables.
POINTS = {point.name: point for point in _TABLE}


def point(name: str) -> Point:
    """The point with this name; raises `BenchError` with all names."""
    if name not in POINTS:
        raise BenchError(f"unknown interception point {name!r}; there are {', '.join(POINTS)}")
    return POINTS[name]
