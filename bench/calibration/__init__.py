"""Calibration: search the weakest strength of a defense at which an attacker recognises at most a given share of
examples."""
