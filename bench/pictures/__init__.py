"""Images of records: reconstruction grid, trajectory, thumbnails."""
