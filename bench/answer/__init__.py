"""Steps that run a cell (an experiment configuration) and return its record (the result as JSON)."""
