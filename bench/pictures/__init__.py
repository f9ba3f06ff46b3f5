"""Pictures made from records: reconstruction grid, trajectory, thumbnails."""
