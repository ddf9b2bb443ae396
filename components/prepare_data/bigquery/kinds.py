"""The rows of the source `bigquery:` in the table of sources."""

from slipway.components.prepare_data.sources import SourceKind

_OPENS = "slipway.components.prepare_data.bigquery.source:open_bigquery"
_DESCRIBED = "slipway.components.prepare_data.bigquery.source:described"
QUERY_FILE = SourceKind(
    "bigquery", "bigquery:FILE.sql (a query)", "bigquery:houses.sql", _OPENS, pending=_DESCRIBED,
    argument="FILE.sql", endings=(".sql",), mounted=True, location="source",
)  # fmt: skip
TABLE = SourceKind(
    "bigquery", "bigquery:PROJECT.DATASET.TABLE", "bigquery:my-project.sales.houses", _OPENS, pending=_DESCRIBED,
    argument="PROJECT.DATASET.TABLE",
)  # fmt: skip
