"""Matrix files: TOML, checked against pydantic models, then expanded to the cells of a run."""
