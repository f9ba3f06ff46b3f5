"""Tables and figures for readers, computed from a run's records only (import name `bench.leaderboard`)."""
