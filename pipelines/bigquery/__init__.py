"""BigQuery: a source of tables, its check, and what reads and writes tables with models."""
