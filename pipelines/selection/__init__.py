"""Runs as they are listed: selected, sorted and compared by their settings and metrics."""
