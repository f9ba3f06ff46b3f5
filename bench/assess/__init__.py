"""Assessment of a user's federated client: how much leaks from its update, and defenses that would help."""
