"""Contracts: promises tested for every registered entry; a plug-in's tests can call them through `run.py`."""
