"""Interception points: positions in a federated round at which the attacker observes gradients or updates.

    stage order:  input → example → step → client → exchange → server → aggregate

A defense at stage `input` acts on examples and labels before the gradient, at `example` on an example's gradient, at
`step` on a local SGD step's mean, at `client` on the finished update, at `exchange` on messages between clients, at
`server` on each arrived update, and at `aggregate` on the mean."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bench.errors import BenchError

Stage = Literal["input", "example", "step", "client", "exchange", "server", "aggregate"]
STAGES: tuple[Stage, ...] = ("input", "example", "step", "client", "exchange", "server", "aggregate")

# Stages on gradients and updates: a description covers them, and some point shows each.
GRADIENT_STAGES: tuple[Stage, ...] = STAGES[1:]

# Stages on gradients inside a local step: of each example, then of their mean.
STEP_STAGES: tuple[Stage, ...] = ("example", "step")

# Stages on a client's whole update, in order: after the local training, before the mean.
UPDATE_STAGES: tuple[Stage, ...] = ("client", "exchange", "server")


class Scope(StrEnum):
    """Part of a round whose gradients a reading (an observed update) combines: an example, a local step's batch, a
    client's update over all local steps, or the updates of K clients."""

    EXAMPLE = "example"
    STEP = "step"
    UPDATE = "update"
    AGGREGATE = "aggregate"


@dataclass(frozen=True, slots=True)
class Point:
    """An interception point: the attacker's position in a federated round, which determines the tensors in a reading
    (an observed update)."""

    name: str
    """Name: `type-2`, `type-2-step`, `type-1`, `type-0` or `aggregate`."""
    after: Stage
    """Last stage of the round whose result the reading shows."""
    scope: Scope
    """Part of a round that a reading combines."""
    source: str
    """Paper and section that define the point, with the point's meaning in words."""
    heading: str
    """The point's meaning in two or three words, for column heads."""

    def examples(self, *, batch: int, steps: int, senders: int) -> int:
        """Return the number of examples behind a reading (an observed update). The arguments are B = `batch` examples
        in a local step, L = `steps` local steps, and K = `senders` clients in a round."""
        return (1, batch, batch * steps, batch * steps * senders)[list(Scope).index(self.scope)]

    @property
    def after_training(self) -> bool:
        """True if a reading (an observed update) at this point is made after local training, from all local steps of a
        client: an update, or the mean over K clients."""
        return self.scope in (Scope.UPDATE, Scope.AGGREGATE)

    def sees(self, stage: Stage) -> bool:
        """Return whether a defense at `stage` changes the readings (observed updates) at this interception point: True
        if the stage is not later than the point in the round."""
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
# The order of points in tables: from inside the client outwards.
POINTS = {point.name: point for point in _TABLE}


def point(name: str) -> Point:
    """Return the interception point (the attacker's position in a round) called `name`, such as `type-1`; raises
    `BenchError`, with all known names, for an unknown name."""
    if name not in POINTS:
        raise BenchError(f"unknown interception point {name!r}; there are {', '.join(POINTS)}")
    return POINTS[name]
