"""Upload of a run's records to MLflow, by a separate process during or after the bench run."""
