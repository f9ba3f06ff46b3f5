"""Submissions: a run's records in a single file, to export, check, import and verify (docs/SUBMISSIONS.md)."""
