"""Runs over many cells: which cells remain, in which order, on which workers, with progress in the run folder."""
