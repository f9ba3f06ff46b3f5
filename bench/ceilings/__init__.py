"""Ceilings: limits for every attacker, and references for attackers with more knowledge than any real attacker."""
