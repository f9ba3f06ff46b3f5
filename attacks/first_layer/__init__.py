"""Components that solve for examples in the gradient of a fully connected first layer."""
