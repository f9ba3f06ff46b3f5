"""Mods and strategy; the tests write this file anew for each app."""

MODS: list = []


def strategy(plain):
    return plain
