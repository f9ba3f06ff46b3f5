"""Assessment of a user's federated client: what comes back from its update, and what would help."""
