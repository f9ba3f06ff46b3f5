"""Components for an attack by a server which chooses the last layer."""
