"""Tracking: views of records in MLflow, written by one process beside the run."""
