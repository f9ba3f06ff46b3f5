"""Parts for attacks on texts."""
