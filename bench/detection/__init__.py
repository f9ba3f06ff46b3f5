"""Detection: how often an honest client catches weights that an attack has chosen."""
