"""Makers of the documents: `docs/generate.py` imports these modules, the wheel does not have them."""
