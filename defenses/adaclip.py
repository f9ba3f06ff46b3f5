"""AdaClip: clip and noise each coordinate by a learned mean and scale."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.fed_cdp import of_examples
from bench.defenses.fed_sdp import of_updates
from bench.defenses.strength import Strength
from bench.defenses.transforms.adaptive import AdaptiveClip
from bench.parameters import parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaClip(Defense):
    """Clip and add noise on a learned scale: normalise each coordinate by a learned mean and scale, clip to norm 1, add
    noise, and undo the normalisation. Means and scales come only from noised gradients, so they cost no ε. Clipped rows
    are the updates of a round's clients, or the example gradients of a batch.

    - `noise` = "share": each of n rows gets noise with multiplier σ/√n, so that the sum has multiplier σ.
    - `noise` = "each": each row gets noise with multiplier σ.
    - `variant` = "as-cited" follows the repository cited by Fed-αCDP, including its errors."""

    reference = "Pichapati et al. 2019; Fed-αCDP §7.6"
    stages = ("example", "client", "server")
    strength = Strength("sigma", 1e-3, 1e2)

    at: Literal["server", "client", "example"] = parameter("client", "place of clipping", source="ours")
    sigma: float = parameter(6.0, "σ, noise multiplier", source="Fed-αCDP §7.6", above=0)
    variant: Literal["paper", "as-cited"] = parameter(
        "paper", "Pichapati et al.'s, or the cited repository's update of the scales", source="Pichapati et al. 2019"
    )
    noise: Literal["share", "each"] = parameter("share", "noise placement", source="ours")

    def transforms(self, setting: Setting) -> StageTransforms:
        rows = setting.batch if self.at == "example" else setting.per_round
        cited = self.variant == "as-cited"
        low, high = (1e-5, 1e-3) if cited else (1e-12, 10.0)
        return {
            self.at: (
                AdaptiveClip(
                    owner="client" if self.at == "example" else "server",
                    multiplier=self.sigma / math.sqrt(rows) if self.noise == "share" else self.sigma,
                    low=low,
                    high=high,
                    as_cited=cited,
                ),
            )
        }

    def mechanism(self, setting: Setting) -> Mechanism | None:
        if self.variant == "as-cited":
            return None  # its noise does not have the deviation that σ states
        return of_rows((self.sigma,) * setting.rounds, setting, at=self.at, noise=self.noise)


def of_rows(
    sigmas: tuple[float, ...],
    setting: Setting,
    *,
    at: Literal["server", "client", "example"],
    noise: Literal["share", "each"],
) -> Mechanism:
    """Return the noise and sensitivity from which accountants compute ε, for a defense that clips rows (client updates
    or example gradients).

    - `sigmas`: noise multipliers σ_t, an entry for each round.
    - `setting`: the federated setting; gives the numbers of clients and examples.
    - `at`: place of clipping: updates at the server or at the client, or example gradients.
    - `noise`: place of the noise with deviation σ_t·C, for rows clipped to norm C: on the sum of rows ("share") or on
      each row ("each")."""
    if at != "example":
        return of_updates(sigmas, setting, at=at, noise=noise)
    if noise == "each":
        return of_examples(sigmas, setting, noise="per-example", per_tensor=False)
    on_sum = of_examples(sigmas, setting, noise="code", per_tensor=False)
    return replace(on_sum, rows={**on_sum.rows, "example": 0.5 / setting.batch**0.5})
