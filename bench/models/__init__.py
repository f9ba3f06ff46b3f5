"""The papers' models, each with its paper's initialisation."""
