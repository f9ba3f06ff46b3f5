"""Models of the papers, each with the initialisations its paper uses."""
