"""Inputs from users with their training code: gradients or weights, examples, models and reading files."""
