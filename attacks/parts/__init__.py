"""Parts an attack is made of: distance, prior, start, labels."""
