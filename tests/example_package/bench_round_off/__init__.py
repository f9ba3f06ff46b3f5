"""A defense and an attack for gradient-leakage-bench, as a worked example."""
