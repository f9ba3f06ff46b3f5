"""Parts that find a reading's examples among the candidates of a gallery."""
