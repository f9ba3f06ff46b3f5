"""Plug-ins' code in processes of its own: what a worker calls there, and what it reads of the answers."""
