"""Reference results shipped with bench: published defenses on the standard suite, as compact records."""
