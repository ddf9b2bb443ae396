"""BigQuery over HTTP and its Storage Read API over gRPC, called by Google's clients."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow
import pyarrow.ipc
import pytest
from google.api_core.exceptions import GoogleAPICallError
from google.cloud import bigquery
from google.cloud.bigquery_storage_v1 import BigQueryReadClient, types

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.network import Session
from tests.fakes.google import PROJECT, SUBMITTER, FakeGoogle
from tests.fakes.ready import grant

TABLE = f"{PROJECT}.sales.houses"
PATH = f"projects/{PROJECT}/datasets/sales/tables/houses"
COLUMNS = {"area": "INTEGER", "price": "NUMERIC", "sold": "TIMESTAMP"}
ROWS = [[n, f"{n}.5", "2026-03-01T10:00:00+00:00"] for n in range(250)]
ARROW = types.DataFormat.ARROW


@pytest.fixture
def client(google: FakeGoogle) -> bigquery.Client:
    google.bigquery.add_table(TABLE, COLUMNS, ROWS, datetime.now(UTC) - timedelta(days=1))
    credentials = Connection(PROJECT, "", google.endpoints).credentials
    options = {"api_endpoint": f"https://{google.endpoints['bigquery']}"}
    return bigquery.Client(PROJECT, credentials, Session(credentials), client_options=options)


@pytest.fixture
def reader(google: FakeGoogle, client: bigquery.Client) -> BigQueryReadClient:
    return BigQueryReadClient(client_options={"api_endpoint": google.endpoints["bigquerystorage"]})


def refusal(call: Callable[[], Any]) -> tuple[int | None, str]:
    with pytest.raises(GoogleAPICallError) as raised:
        call()
    return raised.value.code, raised.value.message


def session(reader: BigQueryReadClient, streams: int = 3, **about: Any) -> types.ReadSession:
    requested = types.ReadSession({"table": PATH, "data_format": ARROW, **about})
    return reader.create_read_session(parent=f"projects/{PROJECT}", read_session=requested, max_stream_count=streams)


def test_metadata(client: bigquery.Client) -> None:
    """A table has its fields, rows, bytes and times, numbers as text.

    Source (read): https://cloud.google.com/bigquery/docs/reference/rest/v2/tables
    """
    table = client.get_table(TABLE)
    assert [(field.name, field.field_type) for field in table.schema] == [*COLUMNS.items()]
    assert (table.num_rows, table.table_type) == (250, "TABLE")
    assert table.created == table.modified


def test_a_dry_run_has_the_bytes_and_the_columns_and_no_job(google: FakeGoogle, client: bigquery.Client) -> None:
    """Source (read): https://cloud.google.com/bigquery/docs/running-queries#dry-run"""
    job = client.query(f"SELECT area FROM `{TABLE}`", job_config=bigquery.QueryJobConfig(dry_run=True))
    assert job.total_bytes_processed == google.bigquery.tables[TABLE].bytes
    assert [field.name for field in job.schema] == ["area"]
    assert [str(table) for table in job.referenced_tables] == [TABLE]
    assert not google.bigquery.jobs


def test_a_query_over_its_limit_fails_as_a_job(client: bigquery.Client) -> None:
    """A query is billed for at least 10 MiB of each table.

    Source (reported): https://github.com/exmergo/dex/issues/320
    """
    config = bigquery.QueryJobConfig(maximum_bytes_billed=1_000_000)
    job = client.query(f"SELECT area FROM `{TABLE}`", job_config=config)
    while not job.done():
        pass
    assert job.error_result == {
        "reason": "bytesBilledLimitExceeded",
        "message": "Query exceeded limit for bytes billed: 1000000. 10485760 or higher required.",
    }


def test_queries_that_are_not_valid_or_denied(google: FakeGoogle, client: bigquery.Client) -> None:
    """Source (reported): https://github.com/GoogleCloudPlatform/vertex-ai-samples/issues/174"""
    status, text = refusal(lambda: client.query(f"SELECT aera FROM `{TABLE}`"))
    assert (status, "Unrecognized name: aera" in text) == (400, True)
    assert refusal(lambda: client.get_table(f"{TABLE}s"))[0] == 404
    google.world.owners.clear()
    status, text = refusal(lambda: client.query("SELECT 1"))
    assert status == 403
    denied = (
        f"Access Denied: Project {PROJECT}: User does not have bigquery.jobs.create permission in project {PROJECT}."
    )
    assert denied in text


def test_streams_have_all_rows_and_continue_at_an_offset(reader: BigQueryReadClient) -> None:
    """A stream is read from any row on, and a batch has no schema.

    Source (read): https://cloud.google.com/bigquery/docs/reference/storage/rpc/google.cloud.bigquery.storage.v1
    """
    made = session(reader)
    schema = pyarrow.ipc.read_schema(pyarrow.py_buffer(made.arrow_schema.serialized_schema))
    assert [str(kind) for kind in schema.types] == ["int64", "decimal128(38, 9)", "timestamp[us, tz=UTC]"]

    def read(stream: str, offset: int = 0) -> list[int]:
        batches = [
            pyarrow.ipc.read_record_batch(pyarrow.py_buffer(answer.arrow_record_batch.serialized_record_batch), schema)
            for answer in reader.read_rows(stream, offset)
        ]
        return [row for batch in batches for row in batch.column(0).to_pylist()]

    whole = [read(stream.name) for stream in made.streams]
    assert sorted(row for rows in whole for row in rows) == [*range(250)]
    assert read(made.streams[0].name, 10) == whole[0][10:]
    assert [read(stream.name) for stream in session(reader).streams] != whole


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"data_format": 0}, "request failed: data format unspecified"),
        ({"read_options": {"selected_fields": ["aera"]}}, "request failed: The following selected fields do not exist"),
        (
            {"table_modifiers": {"snapshot_time": datetime(2020, 1, 1, tzinfo=UTC)}},
            "request failed: Invalid time travel",
        ),
        (
            {"table_modifiers": {"snapshot_time": datetime(2099, 1, 1, tzinfo=UTC)}},
            "request failed: Invalid time travel",
        ),
    ],
)
def test_sessions_that_are_refused(reader: BigQueryReadClient, about: dict[str, Any], message: str) -> None:
    """Source (reported): https://github.com/googleapis/python-bigquery-storage/issues/264"""
    status, text = refusal(lambda: session(reader, **about))
    assert (status, text.startswith(message)) == (400, True)


def test_only_tables_are_read(google: FakeGoogle, reader: BigQueryReadClient) -> None:
    """Source (read): https://cloud.google.com/bigquery/docs/reference/storage#limitations"""
    google.bigquery.tables[TABLE].kind = "VIEW"
    expected = (400, "request failed: non-table entities cannot be read with the storage API")
    assert refusal(lambda: session(reader)) == expected


def test_permissions_of_sessions(google: FakeGoogle, reader: BigQueryReadClient) -> None:
    """Source (reported): https://github.com/PostHog/posthog/pull/99792"""
    google.world.owners.clear()
    text = f"request failed: the user does not have 'bigquery.readsessions.create' permission for 'projects/{PROJECT}'"
    assert refusal(lambda: session(reader)) == (403, text)
    grant(google, f"projects/{PROJECT}", "roles/bigquery.readSessionUser", SUBMITTER)
    text = f"request failed: the user does not have 'bigquery.tables.getData' permission for '{PATH}'"
    assert refusal(lambda: session(reader)) == (403, text)


def test_an_api_that_is_not_enabled(google: FakeGoogle, reader: BigQueryReadClient) -> None:
    """Source (read): https://cloud.google.com/bigquery/docs/reference/storage#enabling_the_api"""
    google.world.projects[PROJECT].services.discard("bigquerystorage.googleapis.com")
    status, text = refusal(lambda: session(reader))
    assert (status, text.startswith("BigQuery Storage API has not been used in project")) == (403, True)


def test_a_load_job_creates_a_table_with_a_label_and_replaces_it(google: FakeGoogle, client: bigquery.Client) -> None:
    """Labels are those of the job that created the table.

    Source (read): https://cloud.google.com/bigquery/docs/reference/rest/v2/Job#DestinationTableProperties
    """
    import io

    import pyarrow.parquet

    def load(disposition: str, label: str) -> bigquery.LoadJob:
        file = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2]}), file)
        file.seek(0)
        load = {
            "sourceFormat": "PARQUET", "parquetOptions": {"enableListInference": True},
            "writeDisposition": disposition, "destinationTableProperties": {"labels": {"slipway": label}},
        }  # fmt: skip
        config = bigquery.LoadJobConfig.from_api_repr({"load": load})
        return client.load_table_from_file(file, f"{PROJECT}.sales.loaded", job_config=config)

    assert load("WRITE_EMPTY", "first").result().output_rows == 2
    assert refusal(lambda: load("WRITE_EMPTY", "second").result())[0] == 409
    load("WRITE_TRUNCATE", "third").result()
    assert client.get_table(f"{PROJECT}.sales.loaded").labels == {"slipway": "first"}
