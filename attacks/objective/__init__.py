"""Parts that compare candidate gradients with the reading."""
