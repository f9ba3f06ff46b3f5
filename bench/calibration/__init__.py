"""Calibration: the weakest strength of a defense at which an attacker recognises no more than a level."""
