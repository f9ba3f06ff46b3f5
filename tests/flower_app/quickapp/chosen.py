"""Mods and strategy; the tests write this file anew for each app."""

MODS = []


def strategy(plain):
    return plain
