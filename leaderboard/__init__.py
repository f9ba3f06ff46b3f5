"""What a run leaves for people: tables, views of records only (import name `bench.leaderboard`)."""
