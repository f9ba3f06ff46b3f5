"""Randomness: every draw has a key of exactly the fields that it depends on.

There is no global seed and no order of draws.  So a run can be resumed, split and reordered without changing a
number, and two cells that differ in one field share all draws that do not depend on it.  Draws are made on the CPU by
numpy's Philox: a counter-based generator with a 128-bit key, so that keys do not collide as 32-bit seeds would.  The
exception is a defense's noise in training: a stream of torch for each client and round, seeded by a key
(`federated/draws.py`).
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

Field = str | int | float | bool | None


def generator(seed: int, purpose: str, *fields: Field) -> np.random.Generator:
    """The generator of one draw, keyed by `seed`, its purpose, and the fields that it depends on."""
    text = json.dumps([seed, purpose, *fields], separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The attacker's key: a seed, and nothing of the truth; fields are added at each draw."""

    seed: int

    @classmethod
    def of_attacker(cls, seed: int) -> "Key":
        """The attacker's key under a cell's seed, by a hash: with the cell's seed itself an attack could repeat the
        draws of the defense's noise."""
        digest = hashlib.sha256(f"attacker {seed}".encode()).digest()
        return cls(seed=int.from_bytes(digest[:8], "little"))

    def generator(self, purpose: str, *fields: Field) -> np.random.Generator:
        return generator(self.seed, purpose, *fields)
