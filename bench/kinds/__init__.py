"""Kinds of data (images, tables): a `Kind` value holds all that differs between them."""
