"""Values between a cell's stages, for the harness only: observation, diagnosis, attempt."""

from dataclasses import dataclass, field

import numpy as np

from bench.record.schema import AttackConditions, Distortion, Privacy, SelfCheck
from bench.trip import READING, ByReading, Reading, Reconstruction


def finite(value: float) -> float | None:
    """The value, or None for infinity and NaN."""
    return value if np.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(ByReading):
    """The harness's checks on a cell's readings."""

    snr_db: tuple[float | None, ...] = field(metadata=READING)
    """(reading,): defended against undefended reading."""
    cosine: tuple[float | None, ...] = field(metadata=READING)
    """(reading,): defended against undefended reading."""
    self_check: SelfCheck
    """The attack's objective at the truth, over all readings."""
    conditions: AttackConditions
    """Circumstances, over all readings."""
    privacy: Privacy
    """ε at the point."""
    places: tuple[int, ...] | None = field(default=None, metadata=READING)
    """(reading,): rank by likelihood, see `bench.answer.decoder.decoder_places`."""
    reference_db: float | None = None
    """Median PSNR by the linear-Gaussian reference."""

    @property
    def distortion(self) -> Distortion:
        """Medians and minimum over the readings; None if a reading has no figure."""
        snr, cosine = (np.array(each, np.float64) for each in (self.snr_db, self.cosine))
        return Distortion(
            snr_db_median=finite(float(np.median(snr))),
            snr_db_least=finite(float(np.min(snr))),
            cosine_median=finite(float(np.median(cosine))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The defended round, observed."""

    reading: Reading
    """The attacker's part: readings left by earlier cells in the cascade."""
    diagnosis: Diagnosis
    """The harness's part, for the same readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attack's claim, with its cost."""

    reconstruction: Reconstruction
    """The claim."""
    seconds: float = 0.0
    """Time in the attack."""
    simulations: int | None = None
    """Simulations used; None without a simulator."""
    simulation_seconds: float | None = None
    """Time in simulations; None without a simulator."""
    reused_from: str | None = None
    """Id for an earlier cell with an equal reading and attack."""
    company: tuple[str, ...] = ()
    """Ids for cells attacked in the same batch."""
    earlier_wall: float = 0.0
    """Wall time spent before the cell's turn, in company."""
    earlier_cpu: float = 0.0
    """CPU time spent before the cell's turn, in company."""
