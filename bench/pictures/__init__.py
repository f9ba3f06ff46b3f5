"""Pictures of records: the reconstruction grid, the trajectory, thumbnails."""
