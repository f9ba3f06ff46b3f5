"""Components that infer labels from the last layer's gradient."""
