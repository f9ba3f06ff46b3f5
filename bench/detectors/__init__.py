"""Detectors: an honest client's tests for weights that an attack may have chosen."""
