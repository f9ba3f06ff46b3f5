"""Defenses, each built from shared transforms in a few lines (import name `bench.defenses`)."""
