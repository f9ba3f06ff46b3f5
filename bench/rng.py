"""Random numbers: every draw has a generator whose key holds exactly the fields that the draw depends on.

There is no global seed and no order of draws.  A run can therefore be resumed, split and reordered with equal numbers,
and two cells that differ in a field share every draw that does not depend on this field.  Draws are made on the CPU by
NumPy's Philox, a counter-based generator with 128-bit keys; 32-bit seeds would collide.  Exception: a defense's noise
in training comes from a torch stream for each client and round, seeded by a key (`federated/draws.py`).
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence

Field = str | int | float | bool | None
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def generator(seed: int, purpose: str, *fields: Field) -> np.random.Generator:
    """Return a random generator with a key made from `seed`, `purpose` and `fields`: equal keys give equal numbers.
    `purpose` is a word for the kind of draw, such as "victims"; `fields` are the further values on which the draw
    depends, such as a client's number."""
    text = _ENCODER.encode([seed, purpose, *fields])
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.Philox(_PhiloxKey(digest[:16])))  # type: ignore[arg-type]


class _PhiloxKey(ISeedSequence):
    """A key in place of a seed: `Philox(key=…)` first draws a seed from the system, in five times the time."""

    def __init__(self, key: bytes) -> None:
        self._words = np.frombuffer(key, "<u8").astype(np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> Any:
        assert (n_words, dtype) == (2, np.uint64), "Philox has another key"
        return self._words


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The attacker's key for random draws. Each draw depends on the seed, and on the fields given to the method
    `generator`, such as the number of the reading (observed update)."""

    seed: int
    """Seed from which an attack cannot compute the choice of victims or the defense's noise."""

    @classmethod
    def of_attacker(cls, seed: int) -> "Key":
        """Return the attacker's key, made from a hash of the experiment's `seed`. With `seed` itself, an attack could
        compute the defense's noise."""
        digest = hashlib.sha256(f"attacker {seed}".encode()).digest()
        return cls(seed=int.from_bytes(digest[:8], "little"))

    def generator(self, purpose: str, *fields: Field) -> np.random.Generator:
        """Return a random generator for an attack's draws. `purpose` is a word for the kind of draw; `fields` are the
        further values on which the draw depends. Equal arguments give equal numbers."""
        return generator(self.seed, purpose, *fields)
