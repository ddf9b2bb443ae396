"""Convert AI Platform Training jobs to run configurations."""

from slipway.pipelines.migrate.migration import Migration, from_arguments, migrate

__all__ = ["Migration", "from_arguments", "migrate"]
