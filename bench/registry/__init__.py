"""Find registered classes by name and load them on request."""
