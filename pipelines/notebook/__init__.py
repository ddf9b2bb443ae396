"""Functions from a notebook's cells, captured as modules of the project."""
