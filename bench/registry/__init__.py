"""Attacks, defenses, data sets, models and detectors by name, loaded on request."""
