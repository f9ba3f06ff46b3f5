"""Attacks (import name `bench.attacks`): registered entries at the top, their parts in folders."""
