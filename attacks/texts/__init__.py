"""Parts of attacks on texts."""
