"""Audits: lower bounds of ε, measured on what a pipeline releases for two neighbouring data sets."""
