"""Shared transforms: pure functions of (tensors, context), written once."""
