"""Many cells: what is left to do, in which order, by whom, and what a run folder says of it."""
