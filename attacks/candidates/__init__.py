"""Components that find a reading's examples in a gallery."""
