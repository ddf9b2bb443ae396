"""BigQuery's services: metadata, dry runs and queries over REST, and rows through the Storage Read API over gRPC."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.policies import Resource, grant_command
from slipway.components.cloud.refusals import member_of, message_of, refusal
from slipway.components.cloud.retries import CONFLICT, paced, retried, status_of
from slipway.components.prepare_data.bigquery.names import QUERY, TableName
from slipway.components.prepare_data.settings import BigQuerySettings
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

SECTION = "data.bigquery"
PROJECT_VARIABLES = ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT")
SESSION_SECONDS = 60.0
# A stream that is read for longer, or stalls, is continued by another request.
STREAM_SECONDS = 600.0
POLL_SECONDS = 1.0
LABEL, LOAD_RETRIES = "slipway", 6
PARAMETER = "snapshot"
OVER_LIMIT = "bytesBilledLimitExceeded"
# Queries of others that slow down or are lost with a machine; the job can be run again.
TEMPORARY = ("backendError", "internalError", "jobBackendError", "jobInternalError", "rateLimitExceeded")
JOB_TRIES = 3
# The role with which data can be read, and the beginnings of the permissions that it has.
VIEWER, OF_DATA = "roles/bigquery.dataViewer", ("bigquery.tables.", "bigquery.datasets.")


class OverLimitError(Exception):
    """BigQuery would bill more for a query than its limit."""


class _Connection(Connection):
    """A connection to a service without regions, which errors name instead of Vertex AI."""

    def endpoint(self, service: str) -> str:
        return super().endpoint("bigquerystorage" if service == "aiplatform" else service)


@dataclass(frozen=True)
class Warehouse:
    """BigQuery as a project uses it, which is billed.

    Attributes:
        settings: The project and endpoints.
        owner: The project of the data, which is billed if no other one is known.
    """

    settings: BigQuerySettings
    owner: str = ""

    @cached_property
    def connection(self) -> Connection:
        """The connection of the billed project.

        Raises:
            UserError: No project is known.
        """
        named = (os.environ.get(name) for name in PROJECT_VARIABLES)
        project = self.settings.project or next(filter(None, named), None) or _project_of_credentials() or self.owner
        if not project:
            raise UserError(
                "It is not known which project BigQuery bills for the query.", setting=f"{SECTION}.project", value=None,
                fix=f"--set {SECTION}.project=PROJECT",
            )  # fmt: skip
        return _Connection(project, "", self.settings.endpoints, SECTION)

    @property
    def project(self) -> str:
        """The project that is billed."""
        return self.connection.project

    def table(self, name: TableName) -> JsonObject:
        """Return a table's metadata, which is free.

        Raises:
            UserError: It cannot be read.
            Exception: The answer 404.
        """
        with self._refusing(f"read the metadata of {name}", "bigquery.tables.get", name):
            metadata: JsonObject = retried(self._api.tables().get(**name.arguments).execute)
        return metadata

    def tables(self, name: TableName) -> list[str]:
        """Return the names of the tables in a table's dataset; none if they cannot be listed."""
        listed = self._api.tables().list(projectId=name.project, datasetId=name.dataset, maxResults=1000)
        try:
            answer = retried(listed.execute)
        except Exception as error:
            if status_of(error) is None:
                raise
            return []
        return [str(TableName(*name[:2], row["tableReference"]["tableId"])) for row in answer.get("tables", [])]

    def dry_run(self, text: str, at: datetime | None) -> JsonObject:
        """Return the statistics of a query that is not run, which is free.

        Raises:
            UserError: The caller may not run it.
            Exception: The answer 400 or 404 to a query that is not valid.
        """
        body = {"configuration": {"dryRun": True, "query": _query(text, at)}}
        insert = self._api.jobs().insert(projectId=self.project, body=body)
        with self._refusing("check the query", "bigquery.jobs.create"):
            statistics: JsonObject = retried(insert.execute)["statistics"]
        return statistics

    def query(self, text: str, at: datetime | None, limit: int) -> TableName:
        """Run a query that may be billed for at most `limit` bytes; return the temporary table with its rows.

        Raises:
            OverLimitError: It would cost more.
            UserError: It fails.
        """
        for attempt in range(JOB_TRIES):
            job = self._run(text, at, limit)
            error = job["status"].get("errorResult")
            if error is None:
                return TableName(**_named(job["configuration"]["query"]["destinationTable"]))
            if error.get("reason") == OVER_LIMIT:
                raise OverLimitError(error["message"])
            if error.get("reason") not in TEMPORARY or attempt + 1 == JOB_TRIES:
                break
        raise UserError(
            f"The query failed in BigQuery: {error['message'].rstrip('.')}.",
            fix=f"bq show --job {self.project}:{job['jobReference']['jobId']} says more",
        )

    def _run(self, text: str, at: datetime | None, limit: int) -> JsonObject:
        """Run a query to its end, which a signal to this process also is; return its job."""
        reference = {"projectId": self.project, "jobId": f"slipway_{uuid.uuid4().hex}"}
        configuration = {"query": {**_query(text, at), "maximumBytesBilled": str(limit)}, "labels": {"slipway": "data"}}
        body = {"jobReference": reference, "configuration": configuration}
        jobs = self._api.jobs()
        try:
            with self._refusing("run the query", "bigquery.jobs.create"):
                job: JsonObject = retried(lambda: self._inserted(body))
                where = {"jobId": reference["jobId"], "location": job["jobReference"].get("location")}
                events.phase(f"running the query in BigQuery: job {reference['jobId']}")
                while job["status"]["state"] != "DONE":
                    time.sleep(paced(POLL_SECONDS))
                    job = retried(jobs.get(projectId=self.project, **where).execute)
        except BaseException:
            with contextlib.suppress(Exception):
                self._api.jobs().cancel(projectId=self.project, jobId=reference["jobId"]).execute()
            raise
        return job

    def _inserted(self, body: JsonObject) -> JsonObject:
        """Insert a job; one with its id was inserted by an earlier attempt, whose answer was lost."""
        jobs = self._api.jobs()
        try:
            job: JsonObject = jobs.insert(projectId=self.project, body=body).execute()
        except Exception as error:
            if status_of(error) != CONFLICT:
                raise
            job = jobs.get(projectId=self.project, jobId=body["jobReference"]["jobId"]).execute()
        return job

    def session(self, name: TableName, columns: Sequence[str], at: datetime | None, streams: int) -> Any:
        """Create a session that reads columns of a table, which is free until rows are read.

        Raises:
            UserError: The caller may not read them.
            Exception: The answer 400 to a time at which the table cannot be read.
        """
        from google.cloud.bigquery_storage_v1 import types

        session = types.ReadSession(table=name.path, data_format=types.DataFormat.ARROW)
        session.read_options.selected_fields = list(columns)
        compression = types.ArrowSerializationOptions.CompressionCodec.LZ4_FRAME
        session.read_options.arrow_serialization_options.buffer_compression = compression
        if at is not None:
            session.table_modifiers = {"snapshot_time": at}
        request = types.CreateReadSessionRequest(
            parent=f"projects/{self.project}", read_session=session, max_stream_count=streams
        )
        reader = self.connection.table_reader
        with self._refusing(f"read {name}", "bigquery.readsessions.create", name):
            return retried(
                lambda: reader.create_read_session(request=request, retry=None, timeout=SESSION_SECONDS),
                service="BigQuery",
            )

    def responses(self, stream: str) -> Iterator[Any]:
        """Yield the responses of a stream; one that breaks off is continued after the last row."""
        reading = _Stream(self.connection.table_reader, stream)
        with self._refusing("read the rows", "bigquery.readsessions.getData"):
            while (response := retried(reading.following, service="BigQuery")) is not None:
                yield response

    def load(self, path: Path, name: TableName, label: str, *, replaces: bool) -> int:
        """Load a Parquet file as a table; return its number of rows. Loading is free.

        Args:
            path: The file.
            name: The table.
            label: The value of the table's label `slipway`, if it is new.
            replaces: Whether the table exists and its rows are replaced; otherwise, it must not exist or be empty.

        Raises:
            UserError: The caller may not write it, or BigQuery refuses the file.
        """
        from google.cloud import bigquery

        from slipway.components.cloud.network import Session

        credentials = self.connection.credentials
        options = {"api_endpoint": f"https://{self.connection.endpoint('bigquery')}"}
        client = bigquery.Client(self.project, credentials, Session(credentials), client_options=options)
        configuration = {
            "sourceFormat": "PARQUET",
            "parquetOptions": {"enableListInference": True},
            "writeDisposition": "WRITE_TRUNCATE" if replaces else "WRITE_EMPTY",
            "destinationTableProperties": {"labels": {LABEL: label}},
        }
        config = bigquery.LoadJobConfig.from_api_repr({"load": configuration})
        table = bigquery.TableReference.from_api_repr(name.arguments)
        try:
            with self._refusing(f"write {name}", "bigquery.jobs.create"), path.open("rb") as file:
                job = client.load_table_from_file(file, table, job_config=config, num_retries=LOAD_RETRIES)
                job.result()
        except Exception as error:
            if isinstance(error, UserError) or status_of(error) is None:
                raise
            raise UserError(
                f"BigQuery did not load {name}: {message_of(error)}.", setting="--output", value=f"bigquery:{name}",
                fix=f"bq ls {name.project}:{name.dataset} lists the tables of the dataset",
            ) from error  # fmt: skip
        return int(job.output_rows)

    def close(self) -> None:
        """Close the connection that rows are read through, before processes are forked."""
        self.connection.table_reader.transport.close()

    @property
    def _api(self) -> Any:
        return self.connection.api("bigquery", "v2")

    @contextlib.contextmanager
    def _refusing(self, action: str, needs: str, name: TableName | None = None) -> Iterator[None]:
        """Convert answers to UserError, except 400 and 404, which are about what was asked for."""
        try:
            yield
        except Exception as error:
            if status_of(error) in (400, 404):
                raise
            refused = refusal(error, self.connection, action, needs)
            text = message_of(error)
            if status_of(error) == 403 and name is not None and any(start in text for start in OF_DATA):
                connection = replace(self.connection, project=name.project)
                grant = grant_command(Resource("project", name.project), member_of(connection), VIEWER)
                refused.setting, refused.value = "data.source", f"bigquery:{name}"
                refused.fix = (
                    f"an owner grants it, for the project: {grant}; or for the table alone: bq add-iam-policy-binding "
                    f"--member={member_of(connection)} --role={VIEWER} --table=true "
                    f"{name.project}:{name.dataset}.{name.table}"
                )
            elif (refused.fix or "").startswith("slipway doctor"):
                refused.fix = "try again; https://cloud.google.com/bigquery/docs/error-messages explains errors"
            raise refused from error


def warehouse_of(argument: str, settings: BigQuerySettings) -> Warehouse:
    """Return BigQuery for reading a table or a query, as data.source names it after its prefix."""
    is_query = argument.lower().endswith(QUERY)
    return Warehouse(settings, "" if is_query else argument.strip("`[").partition(".")[0])


class _Stream:
    """Reads the responses of a stream one after another."""

    def __init__(self, reader: Any, name: str) -> None:
        self._reader, self._name = reader, name
        self._offset = 0
        self._responses: Iterator[Any] | None = None

    def following(self) -> Any | None:
        """Return the next response; None after the last one. May be called again after an error."""
        if self._responses is None:
            request = {"read_stream": self._name, "offset": self._offset}
            self._responses = iter(self._reader.read_rows(request=request, retry=None, timeout=STREAM_SECONDS))
        try:
            response = next(self._responses, None)
        except Exception:
            self._responses = None
            raise
        self._offset += response.row_count if response is not None else 0
        return response


def _project_of_credentials() -> str | None:
    import google.auth
    from google.auth.exceptions import GoogleAuthError

    try:
        project: str | None = google.auth.default()[1]
    except GoogleAuthError:  # which the first call says
        return None
    return project


def _query(text: str, at: datetime | None) -> JsonObject:
    """Return the configuration of a query in GoogleSQL, with the parameter `snapshot` if it has a time."""
    query: JsonObject = {"query": text, "useLegacySql": False}
    if at is not None:
        parameter = {"type": {"type": "TIMESTAMP"}, "value": {"value": at.isoformat(" ", "microseconds")}}
        query["parameterMode"] = "NAMED"
        query["queryParameters"] = [
            {"name": PARAMETER, "parameterType": parameter["type"], "parameterValue": parameter["value"]}
        ]
    return query


def _named(reference: JsonObject) -> dict[str, str]:
    return {"project": reference["projectId"], "dataset": reference["datasetId"], "table": reference["tableId"]}
