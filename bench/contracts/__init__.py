"""Contracts under test for everything registered; a plug-in's own tests can call them (`run.py`)."""
