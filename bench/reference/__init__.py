"""Reference results shipped with bench: records of published defenses on the standard suite, without arrays."""
