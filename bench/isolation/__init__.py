"""Run plug-in code in separate processes."""
