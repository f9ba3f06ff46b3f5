"""Mods and strategy; the tests write this file anew for each app."""

MODS: list[object] = []


def strategy(plain):
    return plain
