"""Randomness: every draw comes from a key made of just those fields that it concerns.

Nothing else may draw: no global seed, no order, so that a run can be resumed, split and
reordered without changing a number, and two cells that differ in one field meet the same
draws everywhere else.  Draws are made on the CPU by numpy's Philox (a counter-based
generator with a 128-bit key, so that keys do not collide as 32-bit seeds would).
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np

Field = str | int | float | bool | None


def generator(seed: int, purpose: str, *fields: Field) -> np.random.Generator:
    """The generator of one draw, keyed by `seed`, what it is for, and the fields it concerns."""
    text = json.dumps([seed, purpose, *fields], separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The attacker's key: a seed of its own and nothing of the truth; fields are added at each draw."""

    seed: int

    @classmethod
    def of_attacker(cls, seed: int) -> "Key":
        """The attacker's key under a cell's seed: derived one way, so that its draws are nobody else's
        (with the cell's own seed it could draw the defense's noise again)."""
        digest = hashlib.sha256(f"attacker {seed}".encode()).digest()
        return cls(seed=int.from_bytes(digest[:8], "little"))

    def generator(self, purpose: str, *fields: Field) -> np.random.Generator:
        return generator(self.seed, purpose, *fields)
