"""CLDP: a client reports each coordinate of its update by a near grid value, by the exponential mechanism."""

from dataclasses import dataclass

from bench.defenses.accounting.mechanism import Reports
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.exponential import ExponentialReports
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Cldp(Defense):
    """Clip each coordinate x of a client's update to ±r, and report a grid value y with probability ∝ exp(-α|x - y|/2).
    A report is α-CLDP: the log probabilities under x and x' differ by at most α|x - x'|. On the whole range the report
    is ε-locally private, with ε = 2αr; d coordinates cost d·ε. A mean report lies between x and 0, because the range is
    limited. The paper's clients also send only some layers in a round; here a client sends all."""

    reference = "Truex et al. 2020 (LDP-Fed), EdgeSys, §4 (α-CLDP-Fed); Gursoy et al. 2019 (CLDP), ordinal"
    stages = ("client",)
    strength = Strength("epsilon", 1e3, 1e-2)

    epsilon: float = parameter(1.0, "ε of a coordinate's report, 2αr", source="ours, as ldp-fl", above=0)
    radius: float = parameter(
        0.05, "r, limit of a coordinate's magnitude", unit="of the update", source="ours", above=0
    )
    levels: int = parameter(21, "n, values of the grid from -r to r", source="ours", low=2)

    def transforms(self, setting: Setting) -> StageTransforms:
        return {"client": (ExponentialReports(epsilon=self.epsilon, radius=self.radius, levels=self.levels),)}

    def mechanism(self, setting: Setting) -> Reports:
        return Reports(epsilon=self.epsilon, sending="named")
