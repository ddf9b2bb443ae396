"""BigQuery over HTTP: metadata, and jobs that query and load tables.

What is measured or recorded, with its source, is so marked; other texts are in the same form.

- Access to jobs: "Access Denied: Project P: User does not have bigquery.jobs.create permission in project P."
  (GoogleCloudPlatform/vertex-ai-samples#174)
- Access to sessions: "request failed: the user does not have 'PERMISSION' permission for 'RESOURCE'"
  (PostHog/posthog#99792)
- Queries over their limit fail as jobs, by the bytes that are billed, of which each table has at least 10 MiB
  (exmergo/dex#320): "Query exceeded limit for bytes billed: LIMIT. NEEDED or higher required."
- "request failed: data format unspecified" (googleapis/python-bigquery-storage#264)
- Views: "request failed: non-table entities cannot be read with the storage API"
- Times before the window or the table: "request failed: Invalid time travel timestamp MS for table P:D.T@MS. Cannot
  read before MS."; https://cloud.google.com/bigquery/docs/restore-deleted-tables
"""

from __future__ import annotations

from typing import Any

import pyarrow
import pyarrow.parquet

from tests.fakes.bigquery.queries import run_query
from tests.fakes.bigquery.reads import TableReads
from tests.fakes.bigquery.tables import (
    SERVICE,
    FakeTable,
    Tables,
    field_of,
    joined,
    kind_of_arrow,
    legacy,
    now,
    reference,
)
from tests.fakes.errors import ServiceError
from tests.fakes.grpc_service import GrpcServer
from tests.fakes.http_service import HttpService, Raw, Request
from tests.fakes.world import World

BASE = "/bigquery/v2/projects/{project}"
# https://cloud.google.com/bigquery/docs/estimate-costs: a query bills at least 10 MiB of each table, in whole MiB.
FEWEST_BILLED, MEBIBYTE = 10 << 20, 1 << 20
DENIED = {400: "invalidQuery", 403: "accessDenied", 404: "notFound", 409: "duplicate"}


class FakeBigQuery(Tables):
    """The tables, the jobs by id, and the streams of read sessions."""

    def __init__(self, service: HttpService, world: World, server: GrpcServer) -> None:
        super().__init__(world)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.polls = 1  # after which a job is done
        self._uploads: dict[str, dict[str, Any]] = {}
        self.reads = TableReads(self, world, server)
        service.error_body = lambda error: error.as_older_json(DENIED)

        @service.route("GET", f"{BASE}/datasets/{{dataset}}/tables/{{table}}")
        def get_table(request: Request) -> Any:
            return self._metadata(self._named(request), request.caller)

        @service.route("GET", f"{BASE}/datasets/{{dataset}}/tables")
        def list_tables(request: Request) -> Any:
            dataset = f"{request.parts['project']}.{request.parts['dataset']}."
            self.require(request.caller, "bigquery.tables.list", f"{dataset}*")
            names = sorted(name for name in self.tables if name.startswith(dataset))
            return {"tables": [{"tableReference": reference(name)} for name in names], "totalItems": len(names)}

        @service.route("POST", f"{BASE}/jobs")
        def insert(request: Request) -> Any:
            return self._insert(request.parts["project"], request.json, request.caller)

        @service.route("POST", f"/upload{BASE}/jobs")
        def begin_upload(request: Request) -> Any:
            if request.query.get("uploadType") != "resumable":
                raise ServiceError(501, "Only resumable uploads are imitated.")
            self._require_jobs(request.parts["project"], request.caller)
            identity = str(world.number())
            self._uploads[identity] = request.json
            location = f"https://{request.headers['Host']}{request.path}?uploadType=resumable&upload_id={identity}"
            return Raw(b"", 200, {"Location": location})

        @service.route("PUT", f"/upload{BASE}/jobs")
        def upload(request: Request) -> Any:
            body = self._uploads.pop(request.query["upload_id"])
            return self._load(request.parts["project"], body, request.body, request.caller)

        @service.route("GET", f"{BASE}/jobs/{{job}}")
        def get_job(request: Request) -> Any:
            job = self._job(request.parts["job"])
            job["polls"] -= 1
            return self._shown(job)

        @service.route("POST", f"{BASE}/jobs/{{job}}/cancel")
        def cancel(request: Request) -> Any:
            job = self._job(request.parts["job"])
            job["cancelled"] = True
            return {"kind": "bigquery#jobCancelResponse", "job": self._shown(job)}

    def _named(self, request: Request) -> str:
        return ".".join(request.parts[part] for part in ("project", "dataset", "table"))

    def _metadata(self, name: str, caller: str) -> dict[str, Any]:
        self.require(caller, "bigquery.tables.get", name)
        table = self.table(name)
        fields = [field_of(column, kind) for column, kind in table.fields.items()]
        return {
            "kind": "bigquery#table",
            "id": legacy(name),
            "tableReference": reference(name),
            "schema": {"fields": fields},
            "numBytes": str(table.bytes),
            "numRows": str(len(table.newest)),
            "creationTime": str(table.created),
            "lastModifiedTime": str(max(table.versions)),  # milliseconds; all numbers of 64 bits are text
            "type": table.kind,
            "location": "EU",
            **({"labels": table.labels} if table.labels else {}),
            **({"streamingBuffer": {"estimatedRows": "1"}} if table.is_streamed else {}),
        }

    def _require_jobs(self, project: str, caller: str) -> None:
        self._world.require_service(self._world.project(project), SERVICE)
        self._world.require(
            caller,
            "bigquery.jobs.create",
            f"projects/{project}",
            message=f"Access Denied: Project {project}: User does not have bigquery.jobs.create permission in project "
            f"{project}.",
        )

    def _load(self, project: str, body: dict[str, Any], data: bytes, caller: str) -> dict[str, Any]:
        """Load a Parquet file: https://cloud.google.com/bigquery/docs/reference/rest/v2/Job#JobConfigurationLoad."""
        load = body["configuration"]["load"]
        if load["sourceFormat"] != "PARQUET" or not load["parquetOptions"]["enableListInference"]:
            raise ServiceError(501, "Only Parquet files with lists are imitated.")
        name, present = joined(load["destinationTable"]), now()
        self.require(caller, "bigquery.tables.updateData" if name in self.tables else "bigquery.tables.create", name)
        if name not in self.tables:
            try:
                self.table(name)
            except ServiceError as error:
                if "Dataset" in error.message:
                    raise
        content = pyarrow.parquet.read_table(pyarrow.BufferReader(data))
        error = None
        if load["writeDisposition"] == "WRITE_EMPTY" and name in self.tables and len(self.tables[name].newest):
            error = {"reason": "duplicate", "message": f"Already Exists: Table {legacy(name)}"}
        else:
            labels = load["destinationTableProperties"]["labels"]  # of a new table alone
            labels = self.tables[name].labels if name in self.tables else labels
            fields = {field.name: kind_of_arrow(field.type) for field in content.schema}
            self.tables[name] = FakeTable(fields, {present: content}, created=present, labels=labels)
        about_job = {"location": "EU", **body["jobReference"]}
        self.jobs[about_job["jobId"]] = {
            "reference": about_job, "configuration": body["configuration"], "table": name,
            "statistics": {"load": {"outputRows": str(len(content))}}, "error": error, "polls": 0, "cancelled": False,
        }  # fmt: skip
        return self._shown(self.jobs[about_job["jobId"]])

    def _insert(self, project: str, body: dict[str, Any], caller: str) -> dict[str, Any]:
        self._require_jobs(project, caller)
        configuration = body["configuration"]
        if set(configuration) - {"query", "dryRun", "labels"} or "query" not in configuration:
            raise ServiceError(501, f"Jobs with {sorted(configuration)} are not imitated.")
        if configuration["query"].get("useLegacySql", True):
            raise ServiceError(501, "Legacy SQL is not imitated.")
        statistics, content = run_query(self, configuration["query"], caller)
        about_job = {"projectId": project, "location": "EU", **body.get("jobReference", {})}
        if configuration.get("dryRun"):
            about_job.pop("jobId", None)
            status = {"state": "DONE"}
            return {
                "jobReference": about_job,
                "configuration": configuration,
                "statistics": statistics,
                "status": status,
            }
        if about_job["jobId"] in self.jobs:
            raise ServiceError(409, f"Already Exists: Job {project}:EU.{about_job['jobId']}")
        limit = configuration["query"].get("maximumBytesBilled")
        tables = statistics["query"]["referencedTables"]
        billed = sum(
            max(FEWEST_BILLED, -(-self.tables[joined(table)].bytes // MEBIBYTE) * MEBIBYTE) for table in tables
        )
        error = None
        if limit is not None and billed > int(limit):
            text = f"Query exceeded limit for bytes billed: {limit}. {billed} or higher required."
            error = {"reason": "bytesBilledLimitExceeded", "message": text}
        name = f"{project}._0123456789abcdef.anon{len(self.jobs):08x}"
        fields = {entry["name"]: entry["type"] for entry in statistics["query"]["schema"]["fields"]}
        present = now()
        self.tables[name] = FakeTable(fields, {present: content}, created=present)
        self.jobs[about_job["jobId"]] = {
            "reference": about_job, "configuration": configuration, "statistics": statistics, "table": name,
            "error": error, "polls": self.polls, "cancelled": False,
        }  # fmt: skip
        return self._shown(self.jobs[about_job["jobId"]])

    def _job(self, identity: str) -> dict[str, Any]:
        if identity not in self.jobs:
            raise ServiceError(404, f"Not found: Job {identity}")
        return self.jobs[identity]

    def _shown(self, job: dict[str, Any]) -> dict[str, Any]:
        error = {"reason": "stopped", "message": "Job execution was cancelled"} if job["cancelled"] else job["error"]
        is_done = job["polls"] <= 0 or job["cancelled"]
        configuration = dict(job["configuration"])
        if "query" in configuration:
            configuration["query"] = {**configuration["query"], "destinationTable": reference(job["table"])}
        return {
            "jobReference": job["reference"],
            "configuration": {**configuration, "jobType": "QUERY" if "query" in configuration else "LOAD"},
            "statistics": job["statistics"],
            "status": {
                "state": "DONE" if is_done else "RUNNING",
                **({"errorResult": error} if is_done and error else {}),
            },
        }
