"""Scores per picture and per cell, and their intervals."""
