"""Records: typed results, and their storage."""
