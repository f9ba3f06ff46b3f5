"""Records: the results of cells as typed values, and their files."""
