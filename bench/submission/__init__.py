"""Submissions: results as a single file, to export, check, import and verify (docs/SUBMISSIONS.md)."""
