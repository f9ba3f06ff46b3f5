"""The command line, with a file for each command."""
