"""Kinds of data (images, tables, texts): a `Kind` value holds all that differs between them."""
