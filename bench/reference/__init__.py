"""Shipped reference results: published defenses on the standard suite, as compact records."""
