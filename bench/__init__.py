"""A benchmark harness for gradient leakage in federated learning."""

__version__ = "0.1.0"
PROTOCOL = 3  # the rules of evaluation; records of different protocols are never ranked together
