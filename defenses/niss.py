"""NISS: clients split their noise into shares, and neighbours cancel the shares in the mean."""

from dataclasses import dataclass

from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.accounting.shares import (
    aggregate_variance,
    conditional_variance,
    least_factor_variance,
    upload_variance,
)
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.shares import NoiseShares
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Niss(Defense):
    """Add noise to each client's update such that the clients' noises cancel in the mean. Each update is clipped to C.
    A client adds v independent pieces of noise, each N(0, σ²C²/v), and sends each piece, negated, to another of v
    neighbours. A neighbour multiplies a received piece by a factor N(1, σ_r²), and adds the product to its upload.

    The noise variance of an upload is then (2 + σ_r²)·σ²C². In the mean over clients, the noise variance is σ_r² times
    its value without the exchange: 0 at σ_r = 0. Clients exchange pieces at stage `exchange`, so the update that leaves
    a client (type-1) is only clipped. All clients must have equal weights in the mean, and all neighbours must be in
    the round of K clients: v ≤ K - 1.

    With `devices` the neighbours of a client are devices of the same owner, and none colludes (§V-C). Then the owner's
    noise cancels in the mean over the owner's devices, which the server can compute."""

    reference = "Wang, Li, Zhou et al. 2021 (NISS), §IV, algorithm 2, theorems 2 and 3"
    stages = ("client", "exchange")
    strength = Strength("sigma", 1e-3, 1e2)

    clip: float = parameter(1.0, "C, bound on the norm of an update", unit="of the update", source="ours", above=0)
    sigma: float = parameter(1.0, "σ, noise multiplier of one client", source="ours", low=0)
    shares: int = parameter(10, "v, shares of a client's noise", source="ours", low=1)
    factor_variance: float = parameter(0.0, "σ_r², of the factor on a received share", source="NISS §V", low=0)
    devices: int = parameter(
        0,
        "devices of an owner, who exchange shares only with each other; 0: neighbours from the whole round",
        source="NISS §V-C",
        low=0,
        added=True,
    )

    def transforms(self, setting: Setting) -> StageTransforms:
        noise = NoiseShares(
            deviation=self.sigma * self.clip,
            shares=self._shares(setting),
            factor_variance=self.factor_variance,
            group=self.devices,
        )
        return {"client": (Clip(bound=self.clip, per="flat"),), "exchange": (noise,)}

    def mechanism(self, setting: Setting) -> Mechanism:
        rho, q, shares = self.factor_variance, 0.0 if self.devices else setting.colluders, self._shares(setting)
        variance = conditional_variance(rho, clients=self._ring(setting), shares=shares, q=q)
        on_sum = (setting.per_round * aggregate_variance(rho)) ** 0.5
        known = f", {q:.0%} of the neighbours telling" if q else ""
        return Mechanism(
            unit="client",
            sigmas=(self.sigma,) * setting.rounds,
            released=on_sum,
            paper=False,
            rows={"exchange": variance**0.5 / 2, "server": variance**0.5 / 2, "aggregate": on_sum / 2},
            caveats=(
                f"noise on an upload, over a client's own variance{known}: {upload_variance(rho, q):.3g} read alone, "
                f"{variance:.3g} given all other clients' parameters, which is what counts (best linear estimate)",
                f"theorem 3 asks for σ_r² ≥ {least_factor_variance(q):.3g}, of uploads read alone, on average",
                "products of normals are taken as normal",
            ),
        )

    def _ring(self, setting: Setting) -> int:
        if setting.per_round < 2:
            raise ValueError("there are no neighbours in a round of one client; give the round two at least")
        if not self.devices:
            return setting.per_round
        if self.devices < 2 or setting.per_round % self.devices:
            raise ValueError(
                f"{setting.per_round} clients in a round are no groups of {self.devices} devices; give 2 or more, "
                "and rounds of whole groups"
            )
        return self.devices

    def _shares(self, setting: Setting) -> int:
        return min(self.shares, self._ring(setting) - 1)
