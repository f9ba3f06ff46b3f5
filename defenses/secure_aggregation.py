"""Secure aggregation: clients mask their uploads, and the server can read only the sum."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.transforms.ring import MaskInRing, ReadSum, Ring
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureAggregation(Defense):
    """Hide single updates from the server, which learns only the sum over a round's clients. Each coordinate is rounded
    to 2^b steps in [-c, c], and a mask is added modulo R; a round's masks sum to 0. An upload is uniform among the
    integers modulo R: a client's update reveals no information, neither on its way (type-1) nor at the server (type-0),
    and the description says so. At `aggregate` the mean over K updates is exact up to rounding, and only averaging
    protects a client. No ε: the rounding noise on the sum is not calibrated, and masks hide an update only from
    observers of single uploads. With `at` = "exchange" masks are added after type-1, which then shows the bare update.

    Departures: R is the least power of two that holds the sum instead of 2^32, since readings have 24 bits in single
    precision (`transforms/ring.py` has the error). Clients have equal weights. No client drops out, and keys and key
    shares are not simulated. The server follows the protocol, and no client reveals a mask."""

    reference = "Bonawitz et al. 2017, CCS, §4; quantisation of Flower's SecAgg+ (Bell et al. 2020, CCS)"
    stages = ("client", "exchange", "aggregate")

    clip: float = parameter(
        8.0,
        "c, bound on a coordinate's magnitude",
        unit="of the update",
        source="Flower SecAggPlusWorkflow, clipping_range",
        above=0,
    )
    bits: int = parameter(
        22, "b, log₂ of the steps in [-c, c]", source="Flower SecAggPlusWorkflow, quantization_range", low=1
    )
    at: Literal["client", "exchange"] = parameter(
        "client", "masking point: before an update leaves, or after type-1", source="ours"
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        ring = Ring(clip=self.clip, bits=self.bits, clients=setting.per_round, dummies=setting.dummies)
        return {self.at: (MaskInRing(ring=ring),), "aggregate": (ReadSum(ring=ring),)}
