"""Scores per example and per cell, and their intervals."""
