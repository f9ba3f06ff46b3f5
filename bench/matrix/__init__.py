"""Matrix files: TOML, checked against models, becomes the cells of a run."""
