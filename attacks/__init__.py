"""Attackers: each a small composition of parts (import name `bench.attacks`)."""
