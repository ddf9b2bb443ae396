"""BigQuery: the source `bigquery:`, for tables and queries."""

from slipway.extensions import Extension

EXTENSION = Extension(
    "bigquery",
    packages=("slipway.components.prepare_data.bigquery",),
    requires=("google",),
    sources=(
        "slipway.components.prepare_data.bigquery.kinds:QUERY_FILE",
        "slipway.components.prepare_data.bigquery.kinds:TABLE",
    ),
    inputs={"bigquery:": "slipway.pipelines.bigquery.inputs:fetch"},
    outputs={"bigquery:": "slipway.pipelines.bigquery.predictions:open_table"},
    checks=("slipway.pipelines.bigquery.checks:CHECKS",),
)
