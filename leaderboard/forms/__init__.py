"""Rows → text: terminal, Markdown, CSV, page, charts, figure."""
