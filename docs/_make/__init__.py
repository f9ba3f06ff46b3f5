"""Makers for the documents, outside the wheel; `docs/generate.py` imports these modules."""
