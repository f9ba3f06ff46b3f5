"""Audits: lower bounds of ε, measured on the values that a pipeline releases for two neighbouring data sets."""
