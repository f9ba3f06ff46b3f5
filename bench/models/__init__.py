"""The models used in the papers, each with its paper's initialisation."""
