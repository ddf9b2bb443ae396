"""BigQuery: tables, jobs over HTTP, and rows over gRPC."""
