"""Components that minimise an objective over inputs: starts, priors, search spaces, stages."""
