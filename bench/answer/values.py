"""Values passed between a cell's steps, hidden from attacks: checks, observation, reconstruction with cost."""

from dataclasses import dataclass, field

import numpy as np

from bench.record.schema import AttackConditions, Distortion, Privacy, SelfCheck
from bench.trip import READING, ByReading, Reading, Reconstruction


def finite(value: float) -> float | None:
    """Return `value` for a record; None for infinity and NaN, which JSON cannot hold."""
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
    """The attack's objective at the true examples and at public examples, as means over all readings."""
    conditions: AttackConditions
    """The model's state, gradient norms and the attacker's knowledge, for all readings together."""
    privacy: Privacy
    """ε at the interception point."""
    places: tuple[int, ...] | None = field(default=None, metadata=READING)
    """(reading,): rank of the first true example among the granted candidates by exact likelihood, from 0 (best); None
    if the likelihood decoder (`bench.answer.decoder`) gives no ranks."""
    reference_db: float | None = None
    """Reference for the PSNR of attacks, in dB: median PSNR of the best estimate if the gradient were linear around the
    true examples (`bench.answer.checks.reference`). None if not computed."""

    @property
    def distortion(self) -> Distortion:
        """Effect of the defense on the readings (observed updates), over all readings: median and least signal-to-noise
        ratio (dB), and median cosine with the undefended reading. Each is None if a reading lacks the value."""
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
    """Result of running an attack on a cell's readings (observed updates): the reconstruction, and its cost in time and
    simulated rounds for the record."""

    reconstruction: Reconstruction
    """Reconstructed examples for each reading."""
    seconds: float = 0.0
    """Wall-clock seconds that the attack took."""
    simulations: int | None = None
    """Number of rounds that a black-box attacker simulated; None for other attackers."""
    simulation_seconds: float | None = None
    """Wall-clock seconds in simulated rounds; None for other attackers."""
    reused_from: str | None = None
    """Id of an earlier cell with an equal reading and attack, whose reconstruction is reused; None for a new attack."""
    company: tuple[str, ...] = ()
    """Ids of the other cells attacked in the same batch."""
    earlier_wall: float = 0.0
    """Wall-clock seconds spent in a batch with other cells before this cell's turn."""
    earlier_cpu: float = 0.0
    """CPU seconds spent in a batch with other cells before this cell's turn."""
