"""The reader of the tables of the sources `csv:FILE` and `parquet:FILE`."""
