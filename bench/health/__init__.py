"""The checks behind `bench doctor`: plain functions that return findings."""
