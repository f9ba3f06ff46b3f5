"""Names → classes, lazily."""
