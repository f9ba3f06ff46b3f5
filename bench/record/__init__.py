"""Records: what was measured, typed, and where it is kept."""
