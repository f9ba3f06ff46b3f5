"""Regression gate on defense strength."""
