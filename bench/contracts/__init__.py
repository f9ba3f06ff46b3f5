"""Contracts, tested for every registered entry; a plug-in's tests can call them (`run.py`)."""
