"""Kinds of data, a value for each: all differences between images, tables and later kinds."""
