"""Names → classes, loaded lazily."""
