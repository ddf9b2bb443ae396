"""The check of what a run elsewhere reads in BigQuery; for a run on this machine, the check `data source` makes it."""

from __future__ import annotations

from slipway.components.cloud.settings import CloudSettings
from slipway.core.errors import UserError
from slipway.pipelines.platforms.base import Check, CheckWarning, Context, NotApplicableError

SOURCE = "bigquery:"
# In the error of a missing permission.
DENIED = " may not "


def readable(context: Context) -> str:
    """The source in BigQuery can be read, and is billed for no more than data.bigquery.max_bytes."""
    data = context.config.prepared
    if data is None or not data.source.startswith(SOURCE):
        raise NotApplicableError("the source is not in BigQuery")
    from slipway.components.prepare_data.sources import check_source

    section = getattr(context.config, context.platform.name, None)
    if isinstance(section, CloudSettings):
        data = section.reading(data)
    try:
        return check_source(data, context.config.task)
    except UserError as error:
        if DENIED not in error.message:
            raise
        raise CheckWarning(
            f"{error.message} The account of the run may have this permission.", error.fix or ""
        ) from None


def _imports(context: Context) -> tuple[str, ...]:
    """Return what reading imports; its client takes half a second."""
    data = context.config.prepared
    is_read = data is not None and data.source.startswith(SOURCE)
    return ("google.cloud.bigquery_storage_v1.services.big_query_read",) if is_read else ()


CHECKS = (Check("BigQuery", readable, of_run=True, remote=True, imports=_imports),)
