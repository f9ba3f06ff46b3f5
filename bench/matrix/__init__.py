"""What a matrix file holds: its TOML, its blocks, each value of its axes, its faults, its combinations."""
