"""Solvers for many minimisations in parallel; state is separate from configuration."""
