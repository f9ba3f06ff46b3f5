"""Tracking: records as MLflow runs, uploaded by a separate process during or after a bench run."""
