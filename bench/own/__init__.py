"""Inputs from users who have a federated training loop: their arrays, models and files."""
