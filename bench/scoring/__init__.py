"""Scores of each example and each cell, with confidence intervals."""
