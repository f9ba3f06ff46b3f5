"""One cell, from its configuration to its record."""
