"""Defenses: each a few lines over shared transforms (import name `bench.defenses`)."""
