"""Parts that solve for examples from the gradient of a fully connected first layer."""
