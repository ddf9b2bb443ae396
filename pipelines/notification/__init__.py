"""Notify people and programs of the outcome of runs."""
