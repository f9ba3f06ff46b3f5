"""Values passed between a cell's steps, hidden from attacks: checks, observation, reconstruction with cost."""

from dataclasses import dataclass, field

import numpy as np

from bench.record.schema import AttackConditions, Distortion, Privacy, SelfCheck
from bench.trip import READING, ByReading, Reading, Reconstruction


def finite(value: float) -> float | None:
    """Return the value, or None for infinity and NaN, which records cannot hold."""
    return value if np.isfinite(value) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis(ByReading):
    """Checks of the readings (observed updates) of a cell (an experiment) before the attack: effect of the defense on
    the readings, the attack's objective at the true examples, conditions, ε."""

    snr_db: tuple[float | None, ...] = field(metadata=READING)
    """(reading,): signal-to-noise ratio in dB; the undefended reading is the signal."""
    cosine: tuple[float | None, ...] = field(metadata=READING)
    """(reading,): cosine between the defended and the undefended reading."""
    self_check: SelfCheck
    """The attack's objective at the true examples and at public examples, over all readings."""
    conditions: AttackConditions
    """Conditions of the attack, over all readings."""
    privacy: Privacy
    """ε at the interception point."""
    places: tuple[int, ...] | None = field(default=None, metadata=READING)
    """(reading,): rank of the true example among the gallery's candidates by likelihood, from 0
    (`bench.answer.decoder.decoder_places`); None without a rank."""
    reference_db: float | None = None
    """Median PSNR in dB of a linear-Gaussian estimate, linearised at the true examples: a reference for the PSNR of
    attacks (`bench.answer.checks.reference`). None if not computed."""

    @property
    def distortion(self) -> Distortion:
        """Effect of the defense on the readings (observed updates): medians of SNR (dB) and cosine, and the least SNR;
        each is None if a reading lacks the value."""
        snr, cosine = (np.array(each, np.float64) for each in (self.snr_db, self.cosine))
        return Distortion(
            snr_db_median=finite(float(np.median(snr))),
            snr_db_least=finite(float(np.min(snr))),
            cosine_median=finite(float(np.median(cosine))),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The result of observing the round of a cell (an experiment): the attacker's readings (observed updates), and
    their checks."""

    reading: Reading
    """The attacker's readings; in a cascade only readings with an example not yet leaked."""
    diagnosis: Diagnosis
    """Checks on the same readings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attack's reconstruction, with its cost."""

    reconstruction: Reconstruction
    """Reconstructed examples."""
    seconds: float = 0.0
    """Wall-clock seconds in the attack."""
    simulations: int | None = None
    """Number of simulated rounds; None without a simulator."""
    simulation_seconds: float | None = None
    """Wall-clock seconds in simulated rounds; None without a simulator."""
    reused_from: str | None = None
    """Id of an earlier cell with an equal reading and attack, whose reconstruction is reused; None for a new attack."""
    company: tuple[str, ...] = ()
    """Ids of the other cells attacked in the same batch."""
    earlier_wall: float = 0.0
    """Wall-clock seconds spent in a batch with other cells before this cell's turn."""
    earlier_cpu: float = 0.0
    """CPU seconds spent in a batch with other cells before this cell's turn."""
