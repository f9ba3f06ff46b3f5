"""A cell's way from configuration to record."""
