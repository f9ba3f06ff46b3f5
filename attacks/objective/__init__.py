"""Components that compare candidates' gradients with the reading."""
