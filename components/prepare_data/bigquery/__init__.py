"""The source `bigquery:`: a table of BigQuery at a snapshot time, or the rows of a query.

The Storage Read API returns rows in streams, which are written to one Parquet file; the rest is the source `parquet:`.
"""
