"""Solvers: rows in parallel, state apart from configuration."""
