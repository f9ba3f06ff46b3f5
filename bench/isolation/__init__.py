"""Plug-in code in separate processes."""
