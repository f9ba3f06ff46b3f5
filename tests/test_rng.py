"""Random numbers by key."""

import hashlib
import pickle

import numpy as np

from bench.rng import generator


def test_draws_are_philoxs_under_the_hash_of_the_fields() -> None:
    text = b'[3,"defense",0,"client",1.5,null,true]'
    key = int.from_bytes(hashlib.sha256(text).digest()[:16], "little")
    expected = np.random.Generator(np.random.Philox(key=key))
    drawn = generator(3, "defense", 0, "client", 1.5, None, True)
    again = pickle.loads(pickle.dumps(generator(3, "defense", 0, "client", 1.5, None, True)))
    first = drawn.integers(2**63, size=9).tolist()
    assert first == expected.integers(2**63, size=9).tolist() == again.integers(2**63, size=9).tolist()
    assert drawn.standard_normal() == expected.standard_normal()
