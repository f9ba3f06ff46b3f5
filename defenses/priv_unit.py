"""PrivUnit: a client reports the direction of its update by a random unit vector, which is ε-locally private."""

from dataclasses import dataclass

from bench.defenses.accounting.mechanism import Reports
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.priv_unit import UnitReports
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivUnit(Defense):
    """Replace a client's update x by C·v/m, whose mean is C·x/‖x‖. The unit vector v is uniform on a cap around x/‖x‖
    with probability p, else uniform on the rest of the sphere; m is the mean of ⟨v, x/‖x‖⟩. The report is ε-locally
    private for a client's whole update: ε = log of p(1 - P)/((1 - p)P), exactly, with the cap's share P of the sphere.

    Departures: p and the cap's size have the least variance at ε, where the paper bounds ε by inequalities. Reports
    have the same length: the paper's second report of ‖x‖ is left out. An attacker with many coordinates needs ε near
    their number for a useful report."""

    reference = "Bhowmick et al. 2018, §4.1, algorithm 1, theorem 1 (PrivUnit_2)"
    stages = ("client",)
    strength = Strength("epsilon", 1e4, 1e-2)

    epsilon: float = parameter(
        500.0, "ε of a client's report, for its whole update", source="Bhowmick et al. 2018", above=0
    )
    length: float = parameter(1.0, "C, length of a report's mean", unit="of the update", source="ours", above=0)

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (UnitReports(epsilon=self.epsilon, length=self.length),)}

    def mechanism(self, setting: Setting) -> Reports:
        return Reports(epsilon=self.epsilon, sending="named", whole=True)
