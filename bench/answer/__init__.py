"""The steps that turn a cell (an experiment's configuration) into its record."""
