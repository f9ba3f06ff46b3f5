"""Attacks, defenses, data sets and models by name, loaded on request."""
