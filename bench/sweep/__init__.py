"""Scheduling of many cells: remaining work, order, workers, and progress in the run folder."""
