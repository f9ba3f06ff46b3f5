"""Inputs from users with a federated loop: arrays, models, files."""
