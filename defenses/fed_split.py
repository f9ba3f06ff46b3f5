"""Separate noise at both levels: on example gradients inside clients, and on client updates."""

from dataclasses import dataclass, replace

from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.fed_cdp import FedCdp
from bench.defenses.fed_sdp import FedSdp
from bench.defenses.strength import Strength
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSplit(Defense):
    """Add noise at two levels: Fed-CDP noise N(0, σ²C²) on each batch mean of example gradients clipped to C, and
    Fed-SDP noise N(0, σ_u²C_u²/K²) on the mean of K client updates clipped to C_u. Both levels have separate noise. The
    defense is the baseline for joint accounting (Bayesian DP §V-C, figure 2), in which the first noise counts for both
    levels. ε is example-level."""

    reference = "Bayesian DP §V-C (split accounting; Triastcyn & Faltings 2019)"
    stages = ("example", "step", "server", "aggregate")
    strength = Strength("sigma", 1e-3, 1e2)

    clip: float = parameter(1.0, "C, bound on the norm of an example's gradient", source="ours", above=0)
    sigma: float = parameter(1.0, "σ, noise multiplier inside clients", source="ours", low=0)
    update_clip: float = parameter(1.0, "C_u, bound on the norm of an update", source="ours", above=0)
    update_sigma: float = parameter(1.0, "σ_u, noise multiplier on updates", source="ours", low=0)

    def transforms(self, setting: Setting) -> StageTransforms:
        return {**self._inside().transforms(setting), **self._outside().transforms(setting)}

    def mechanism(self, setting: Setting) -> Mechanism:
        """Return the noise and sensitivity from which accountants compute the example-level ε. `setting`: the federated
        setting. The noise of other clients in the mean does not count, because its scale is unknown."""
        inside = self._inside().mechanism(setting)
        return replace(inside, rows={**inside.rows, "aggregate": inside.rows["server"]})

    def _inside(self) -> FedCdp:
        return FedCdp(clip=self.clip, sigma=self.sigma, noise="batch", clipping="flat")

    def _outside(self) -> FedSdp:
        return FedSdp(clip=self.update_clip, sigma=self.update_sigma, noise="mean")
