"""A model as a chain of layers, and the inversion of its gradient layer by layer, from the logits to the input."""
