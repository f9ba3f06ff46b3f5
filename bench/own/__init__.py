"""What people with a federated loop of their own bring: arrays, models, files."""
