"""Limits to compare attacks with: an upper bound on every attacker's success, and the error of an ideal estimate."""
