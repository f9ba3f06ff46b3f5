"""Fed-SDP: client-level differential privacy, by noise at the server or on each client."""

import math
from dataclasses import dataclass
from typing import Literal

from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.clip import Clip
from bench.defenses.transforms.noise import GaussianNoise
from bench.parameters import parameter
from bench.points import UPDATE_STAGES, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class FedSdp(Defense):
    """Clip each client's update (all tensors together) to C, and add Gaussian noise with multiplier σ. Noise has three
    placements, for K clients in a round:

    - `share`: N(0, σ²C²/K) on each update. The sum carries N(0, σ²C²), both at the server and at clients (Fed-αCDP:
      equal accuracy and ε).
    - `each`: N(0, σ²C²) on each update.
    - `mean`: N(0, σ²C²/K²) on the mean of clipped updates (McMahan et al. 2018). A single update, at type-1 or type-0,
      is only clipped.

    With `at` = "server" (Geyer et al. 2017) clients trust the server until it has clipped the update and added noise.
    """

    reference = "Fed-αCDP §4.2 (after Geyer et al. 2017; McMahan et al. 2018)"
    stages = ("client", "server", "aggregate")
    strength = Strength("sigma", 1e-3, 1e2)

    at: Literal["server", "client"] = parameter("server", "place of sanitising", source="Fed-αCDP §4.2")
    clip: float = parameter(
        4.0, "C, bound on the norm of an update", unit="of the update", source="Fed-αCDP §7", above=0
    )
    sigma: float = parameter(6.0, "σ, noise multiplier", source="Fed-αCDP §7", low=0)
    noise: Literal["share", "each", "mean"] = parameter("share", "noise placement", source="ours")

    def transforms(self, setting: Setting) -> StageTransforms:
        clip, whole = Clip(bound=self.clip, per="flat"), self.sigma * self.clip
        if self.noise == "mean":
            return {self.at: (clip,), "aggregate": (GaussianNoise(deviation=whole / setting.per_round),)}
        deviation = whole / math.sqrt(setting.per_round) if self.noise == "share" else whole
        return {self.at: (clip, GaussianNoise(deviation=deviation))}

    def mechanism(self, setting: Setting) -> Mechanism:
        return of_updates((self.sigma,) * setting.rounds, setting, at=self.at, noise=self.noise)


def of_updates(
    sigmas: tuple[float, ...],
    setting: Setting,
    *,
    at: Literal["server", "client"],
    noise: Literal["share", "each", "mean"],
    paper: bool = True,
    caveats: tuple[str, ...] = (),
) -> Mechanism:
    """Return the noise and sensitivity from which accountants compute ε, for clipped and noised client updates.

    - `sigmas`: noise multipliers σ_t, an entry for each round.
    - `setting`: the federated setting, with the number K of clients in a round.
    - `at`: place at which updates are clipped to C.
    - `noise`: placement. The sum of K clipped updates has noise deviation σC if the updates share the noise or the
      noise is on the mean, and √K·σC for noise on `each` update.
    - `paper`: True if Fed-αCDP's accounting applies; `caveats`: limits of ε, in words.

    Replacing an update moves the sum by 2C."""
    many = setting.per_round**0.5
    on_sum, alone = {"share": (1.0, 1 / many), "each": (many, 1.0), "mean": (1.0, 0.0)}[noise]
    after: tuple[Stage, ...] = UPDATE_STAGES if at == "client" else ("server",)
    rows: dict[Stage, float] = dict.fromkeys(after, alone / 2) if alone else {}
    trusted = ("the server is trusted until it has sanitised an update",) if at == "server" else ()
    return Mechanism(
        unit="client",
        sigmas=sigmas,
        released=on_sum,
        rows={**rows, "aggregate": on_sum / 2},
        paper=paper,
        caveats=(*trusted, *caveats),
    )
