"""Limits for a comparison with attacks: an upper bound on every attacker's success, and the error of an ideal
estimate."""
