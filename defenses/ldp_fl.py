"""LDP-FL: clients report each weight as either of two values, and the server cannot link a client's parameters."""

from dataclasses import dataclass
from typing import Literal

from bench.defenses.accounting.mechanism import Reports
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.arrival import DropLate
from bench.defenses.transforms.shuffle import ShuffleCoordinates
from bench.defenses.transforms.two_point import TwoPoint
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class LdpFl(Defense):
    """Randomise each weight inside the client for local privacy: a weight in c ± r becomes a random report, c + rκ or c
    - rκ with κ = (e^ε + 1)/(e^ε - 1); the server averages the reports.

    - `range` = "adaptive" takes (c, r) for each tensor from the server's weights; "fixed" uses the same (c, r) for all
      tensors, and clips weights outside.
    - `sending` = "split" sends each parameter separately: the server (type-0) cannot assemble a client's vector.
      "whole" sends anonymous vectors, which hide the sender but not the vector. "named" hides neither.
    - `latency` = 0 sends a client's parameters at one moment, so that the server links them as under "whole".
    - Stragglers drop the reports scheduled before they are ready; the server divides by the expected number of reports.

    An attacker at the client's upload (type-1) always sees a client's whole vector of reports."""

    reference = "Sun, Qian, Chen 2021 (LDP-FL), §3, eq. 2, algorithms 1 to 3"
    stages = ("client", "exchange")
    strength = Strength("epsilon", 1e3, 1e-3)

    epsilon: float = parameter(1.0, "ε of one report of one weight", source="LDP-FL §5 (MNIST)", above=0)
    range: Literal["adaptive", "fixed"] = parameter("adaptive", "source of c and r", source="LDP-FL")
    centre: float = parameter(0.0, "c, of a fixed range", unit="of a weight", source="LDP-FL §5")
    radius: float = parameter(
        0.075,
        "r, of a fixed range: .075 MNIST, .015 Fashion-MNIST, 1 CIFAR-10",
        unit="of a weight",
        source="LDP-FL §5",
        above=0,
    )
    sending: Literal["split", "whole", "named"] = parameter(
        "split", "links visible to the server", source="LDP-FL algorithm 3"
    )

    latency: float = parameter(
        1.0, "T, longest random latency of a report", unit="of time", source="LDP-FL algorithm 3", low=0, added=True
    )
    stragglers: float = parameter(
        0.0, "share of clients later than T_S in a round", source="ours", low=0, high=1, added=True
    )
    lag: float = parameter(0.5, "longest lag of a straggler", unit="as `latency`", source="ours", low=0, added=True)

    def transforms(self, setting: Setting) -> StageTransforms:
        report = TwoPoint(
            epsilon=self.epsilon, centre=self.centre, radius=None if self.range == "adaptive" else self.radius
        )
        split = self._sending == "split"
        if self.stragglers and not split:
            raise ValueError('stragglers drop single reports; give sending="split" and a latency above 0')
        late = DropLate(latency=self.latency, stragglers=self.stragglers, lag=self.lag) if self.stragglers else None
        if not split:
            return {"client": (report,)}
        return {"client": (report,), "exchange": (late, ShuffleCoordinates()) if late else (ShuffleCoordinates(),)}

    def mechanism(self, setting: Setting) -> Reports:
        return Reports(epsilon=self.epsilon, sending=self._sending)

    @property
    def _sending(self) -> Literal["split", "whole", "named"]:
        return "whole" if self.sending == "split" and not self.latency else self.sending
