"""Quantile-based adaptive clipping: the norm bound follows a quantile of the norms, by default the median."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from bench.defenses.accounting.mechanism import Mechanism
from bench.defenses.adaclip import of_rows
from bench.defenses.base import Defense, Setting, StageTransforms
from bench.defenses.strength import Strength
from bench.defenses.transforms.quantile import QuantileClip
from bench.parameters import parameter
from bench.points import UPDATE_STAGES, Stage

_SOURCE = "Andrew et al. 2021"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile(Defense):
    """Clip with an adaptive bound, and add noise: the bound C follows the γ-quantile of the rows' norms (γ =
    `quantile`). Rows are a round's K updates, or a batch's B example gradients; n is their number.

    - Bound: after each use, C ← C·exp(-η_C(b̃ - γ)) with the step η_C = `rate`. b̃ is the share of rows with a norm
      within C; this count of rows has noise with deviation σ_b = n/20.
    - Noise with multiplier z: `noise` = "share" gives each row N(0, z²C²/n), so the sum carries N(0, z²C²); "each"
      gives each row N(0, z²C²).
    - `correction` = "exact": z = (σ⁻² - (2σ_b)⁻²)^(-1/2) is larger than σ, so that both noises together have the ε of
      σ. z exists only for σ < n/10; a larger σ raises ValueError.
    - `correction` = "none": z = σ, and ε covers both noises."""

    reference = "Andrew et al. 2021; Fed-αCDP §7.6, per example as its table III suggests"
    stages = ("example", "client", "server")
    strength = Strength("sigma", 1e-3, 1e2)

    at: Literal["server", "client", "example"] = parameter("client", "place of clipping", source=_SOURCE)
    sigma: float = parameter(6.0, "σ, noise multiplier", source="Fed-αCDP §7.6", above=0)
    clip: float = parameter(
        4.0,
        "C_0, initial bound; .1 in Andrew et al.",
        unit="of the update or gradient",
        source="Fed-αCDP §7.6",
        above=0,
    )
    quantile: float = parameter(0.5, "γ, target share of norms within the bound", source=_SOURCE, low=0, high=1)
    rate: float = parameter(0.2, "η_C, step of the bound's logarithm", source=_SOURCE, above=0)
    correction: Literal["exact", "none"] = parameter(
        "exact", "raise the main noise to pay for the private count", source=f"{_SOURCE}, theorem 1"
    )
    noise: Literal["share", "each"] = parameter("share", "noise placement", source="ours")

    def transforms(self, setting: Setting) -> StageTransforms:
        rows = setting.batch if self.at == "example" else setting.per_round
        whole = self.main_multiplier(rows)
        return {
            self.at: (
                QuantileClip(
                    owner="client" if self.at == "example" else "server",
                    initial_bound=self.clip,
                    multiplier=whole / math.sqrt(rows) if self.noise == "share" else whole,
                    count_noise=rows / 20,
                    quantile=self.quantile,
                    rate=self.rate,
                ),
            )
        }

    def mechanism(self, setting: Setting) -> Mechanism:
        rows = setting.batch if self.at == "example" else setting.per_round
        # multiplier for the sum of rows with the noised count; noise on each row gives the sum √n times the multiplier
        root = math.sqrt(rows) if self.noise == "each" else 1.0
        both = ((root * self.main_multiplier(rows)) ** -2 + (rows / 10) ** -2) ** -0.5
        mechanism = of_rows((both / root,) * setting.rounds, setting, at=self.at, noise=self.noise)
        # a single row has only its main noise, and reveals no part of the count
        alone = self.main_multiplier(rows) / (1.0 if self.noise == "each" else math.sqrt(rows)) / 2
        single: tuple[Stage, ...] = ("example",) if self.at == "example" else UPDATE_STAGES
        return replace(
            mechanism, rows={k: alone * root / both if k in single else v for k, v in mechanism.rows.items()}
        )

    def main_multiplier(self, rows: int) -> float:
        """Return z, the noise multiplier for the sum of n = `rows` clipped rows (updates or example gradients). With z,
        the noise on this sum and the noise on the count of rows within the bound together have the ε of `sigma` (Andrew
        et al. 2021, theorem 1). With `correction` = "none", z is `sigma`. Raises `ValueError` if no multiplier exists.
        """
        if self.correction == "none":
            return self.sigma
        remaining = self.sigma**-2 - (rows / 10) ** -2
        if remaining <= 0:
            raise ValueError(
                f"sigma={self.sigma:g} leaves nothing for the main noise: the count of n={rows} rows has "
                f'multiplier n/10={rows / 10:g}; take sigma below it, or correction = "none" with its ε'
            )
        return float(remaining**-0.5)
