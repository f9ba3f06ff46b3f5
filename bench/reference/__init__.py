"""The reference results that ship with bench: every published defense on the standard suite, as compact records."""
