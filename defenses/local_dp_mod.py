"""Flower's LocalDpMod: clip a client's update, and add Gaussian noise for a stated sensitivity."""

from dataclasses import dataclass, replace

from bench.defenses.accounting.composition import classic
from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.fed_sdp import of_updates
from bench.defenses.strength import Strength
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.noise import GaussianNoise
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDpMod(Defense):
    """Clip each client's weight difference to `clipping_norm` over all tensors, and add Gaussian noise to every
    coordinate, as in Flower's LocalDpMod. The standard deviation of the noise is `sensitivity`·√(2
    ln(1.25/`delta`))/`epsilon`.

    The library takes `sensitivity` on trust. A replaced client changes its clipped update by up to 2·`clipping_norm`,
    and the harness computes ε from this change. The defaults are those of the hospital platform FLIP: noise of 4.8e-5,
    and ε = 8.5e8 at a client's update, in place of the stated 10. With the sensitivity 2·`clipping_norm`, the stated ε
    holds below 1; from 1 on, the formula of the noise has no proof."""

    reference = "Flower 1.42, flwr/clientapp/mod/localdp_mod.py; Dwork & Roth 2014, theorem A.1"
    stages = ("client",)
    strength = Strength("epsilon", 1e2, 1e-4)

    clipping_norm: float = parameter(
        1.0, "bound on the norm of a weight difference", unit="of the weight difference", source="FLIP", above=0
    )
    sensitivity: float = parameter(
        1e-4, "change of an update on which the noise counts", unit="of the weight difference", source="FLIP", low=0
    )
    epsilon: float = parameter(10.0, "stated ε of a round", source="FLIP", above=0)
    delta: float = parameter(1e-5, "stated δ", source="FLIP", above=0, high=1)

    def transforms(self, setting: Setting) -> StageTransforms:
        unit = setting.weight_step
        noise = GaussianNoise(deviation=self.deviation / unit)
        return {"client": (Clip(bound=self.clipping_norm / unit, per="flat"), noise)}

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise on each coordinate, in units of the weight difference."""
        return self.sensitivity * classic(self.epsilon, self.delta)

    def mechanism(self, setting: Setting) -> Mechanism:
        stated = f"stated by the library: ε = {self.epsilon:g} at δ = {self.delta:g}"
        if self.sensitivity < 2 * self.clipping_norm:
            stated += (
                f", for a sensitivity of {self.sensitivity:g}; a replaced client changes its update by up to "
                f"{2 * self.clipping_norm:g}"
            )
        sigmas = (self.deviation / self.clipping_norm,) * setting.rounds
        found = of_updates(sigmas, setting, at="client", noise="each", paper=False, caveats=(stated,))
        return replace(found, stated=self.epsilon)
