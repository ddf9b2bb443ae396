"""Migration from AI Platform Training: its jobs go in, run configurations come out."""

from slipway.pipelines.migrate.migration import Migration, from_arguments, migrate

__all__ = ["Migration", "from_arguments", "migrate"]
