"""A result as one file: written, checked as a stranger's, imported; docs/SUBMISSIONS.md."""
