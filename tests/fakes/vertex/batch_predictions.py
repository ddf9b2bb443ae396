"""JobService: batch prediction jobs. The instances in the fake storage are sent to the model's own servers.

Sources: batch_prediction_job.proto and machine_resources.proto, whose comments are the docstrings of
google.cloud.aiplatform_v1.types; "page" is https://docs.cloud.google.com/gemini-enterprise-agent-platform/
machine-learning/predictions/get-batch-predictions. Messages without a source are not documented.
"""

from __future__ import annotations

import base64
import contextlib
import fnmatch
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from google.cloud import aiplatform_v1 as vertex
from google.cloud import aiplatform_v1beta1 as beta
from google.protobuf import empty_pb2, json_format, struct_pb2
from google.rpc import status_pb2

from tests.fakes.errors import ServiceError
from tests.fakes.filters import matcher
from tests.fakes.paging import page_of
from tests.fakes.storage import FakeStorage
from tests.fakes.vertex.endpoint_checks import check_machine, failed_precondition
from tests.fakes.vertex.models import ModelService
from tests.fakes.vertex.serving import POLL_SECONDS, ModelServer, Servers
from tests.fakes.vertex.shapes import (
    check_act_as,
    check_display_name,
    check_key,
    check_labels,
    invalid,
    project_of,
    resource_of,
)
from tests.fakes.world import World

State = vertex.JobState
ENDED = (State.JOB_STATE_SUCCEEDED, State.JOB_STATE_FAILED, State.JOB_STATE_CANCELLED)
# Model.supported_input_storage_formats and supported_output_storage_formats
INPUTS = ("jsonl", "csv", "tf-record", "tf-record-gzip", "file-list")
OUTPUTS = ("jsonl", "csv")
# The formats whose conversion is written below; the others are valid, and no test uses them.
READ = ("jsonl", "file-list", "tf-record")
# BatchDedicatedResources.max_replica_count, ManualBatchTuningParameters.batch_size
DEFAULT_REPLICAS = 10
DEFAULT_BATCH = 64
# "Exceeded retries: … retry=3": the troubleshooting page.
RETRIES = 3
PACIFIC = ZoneInfo("America/Los_Angeles")
MULTI_REGIONS = {"US": "us-", "EU": "europe-", "ASIA": "asia-"}
QUOTA_MESSAGE = (
    "Quota exhausted. Please reach out to ai-platform-unified-feedback@google.com for batch prediction quota increase."
)
NEVER_READY = (
    "Error: model server never became ready. Please validate that your model file or container configuration are valid."
)


@dataclass
class Preemption:
    """Kills a job's replicas after that many requests, if they are Spot VMs."""

    after: int
    times: int = 1


class BatchPredictions:
    """Batch prediction jobs by name; a job starts when it is first polled, and continues in a thread.

    Attributes:
        start_seconds: The time in which a container must become healthy.
        out_of_quota: Whether the next jobs fail for lack of quota.
        preemption: What happens to the next job on Spot VMs.
        on_spot: The names of the jobs on Spot VMs.
        preempted: How often replicas were lost.
    """

    def __init__(self, world: World, region: str, models: ModelService, servers: Servers, storage: FakeStorage) -> None:
        self.world = world
        self.region = region
        self.jobs: dict[str, vertex.BatchPredictionJob] = {}
        self.start_seconds = 120.0
        self.out_of_quota = False
        self.preemption: Preemption | None = None
        self.on_spot: set[str] = set()
        self.preempted = 0
        self._models, self._servers, self._storage = models, servers, storage
        self._threads: list[threading.Thread] = []

    def wait(self) -> None:
        """Wait until no job runs; those that wait for a server end when the servers are closed."""
        for thread in self._threads:
            thread.join()

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "CreateBatchPredictionJob": (vertex.CreateBatchPredictionJobRequest, self._create),
            "GetBatchPredictionJob": (vertex.GetBatchPredictionJobRequest, self._get),
            "ListBatchPredictionJobs": (vertex.ListBatchPredictionJobsRequest, self._list),
            "CancelBatchPredictionJob": (vertex.CancelBatchPredictionJobRequest, self._cancel),
        }

    def beta_methods(self) -> dict[str, tuple[Any, Any]]:
        """Return the methods of v1beta1, whose BatchDedicatedResources has `spot`."""
        return {"CreateBatchPredictionJob": (beta.CreateBatchPredictionJobRequest, self._create_beta)}

    def _create(self, request: vertex.CreateBatchPredictionJobRequest, caller: str) -> vertex.BatchPredictionJob:
        return self._add(request.parent, request.batch_prediction_job, caller, spot=False)

    def _create_beta(self, request: beta.CreateBatchPredictionJobRequest, caller: str) -> beta.BatchPredictionJob:
        given = request.batch_prediction_job
        job = vertex.BatchPredictionJob.deserialize(beta.BatchPredictionJob.serialize(given))
        made = self._add(request.parent, job, caller, spot=given.dedicated_resources.spot)
        return beta.BatchPredictionJob.deserialize(vertex.BatchPredictionJob.serialize(made))

    def _add(
        self, parent: str, job: vertex.BatchPredictionJob, caller: str, *, spot: bool
    ) -> vertex.BatchPredictionJob:
        project = project_of(self.world, parent, self.region)
        self.world.require(caller, "aiplatform.batchPredictionJobs.create", f"projects/{project.id}")
        check_display_name(job.display_name)
        check_labels(job.labels)
        check_key(self.world, project, job.encryption_spec.kms_key_name, self.region)
        if job.service_account:
            check_act_as(self.world, project, caller, job.service_account)
        if bool(job.model) == bool(job.unmanaged_container_model.artifact_uri):
            raise invalid("Exactly one of model and unmanaged_container_model must be set.")
        model = self._models.version(job.model, caller, "aiplatform.models.get")
        self._check_input(job)
        self._check_output(job)
        _check_resources(job.dedicated_resources, self.region)
        if job.manual_batch_tuning_parameters.batch_size < 0:
            raise invalid("manual_batch_tuning_parameters.batch_size must be positive.")
        with self.world.lock:
            made = vertex.BatchPredictionJob(job)
            made.name = f"projects/{project.number}/locations/{self.region}/batchPredictionJobs/{self.world.number()}"
            made.model, made.model_version_id = model.name, model.version_id
            made.create_time = made.update_time = datetime.now(UTC)
            made.state = State.JOB_STATE_PENDING
            made.manual_batch_tuning_parameters = job.manual_batch_tuning_parameters  # never absent
            self.jobs[made.name] = made
            if spot:
                self.on_spot.add(made.name)
            self.world.writes["batchPredictionJob"] += 1
            return vertex.BatchPredictionJob(made)

    def _check_input(self, job: vertex.BatchPredictionJob) -> None:
        given, how = job.input_config, job.instance_config
        if given.instances_format not in INPUTS:
            raise invalid(f"Unsupported instances_format {given.instances_format!r}.")
        if not given.gcs_source.uris:
            raise invalid("input_config.gcs_source.uris is required.")
        for uri in given.gcs_source.uris:
            self._check_place(uri)
        if how.key_field and given.instances_format == "file-list":
            # InstanceConfig.key_field: "The input must be JSONL with objects at each line, CSV, BigQuery or TfRecord."
            raise invalid("instance_config.key_field is not supported for the instances format file-list.")
        if how.included_fields and how.excluded_fields:
            raise invalid("Only one of included_fields and excluded_fields can be set.")
        if how.instance_type not in ("", "object", "array"):
            raise invalid(f"Unsupported instance_type {how.instance_type!r}.")

    def _check_output(self, job: vertex.BatchPredictionJob) -> None:
        if job.output_config.predictions_format not in OUTPUTS:
            raise invalid(f"Unsupported predictions_format {job.output_config.predictions_format!r}.")
        self._check_place(job.output_config.gcs_destination.output_uri_prefix)

    def _check_place(self, uri: str) -> None:
        """Check a bucket: "in the same region or multi-region as your model" (page)."""
        if not uri.startswith("gs://"):
            raise invalid(f"Invalid Cloud Storage URI {uri!r}.")
        name = uri.removeprefix("gs://").partition("/")[0]
        if name not in self.world.buckets:
            raise invalid(f"The bucket {name} does not exist.")
        place = self.world.buckets[name]["location"]
        if place.lower() != self.region and not self.region.startswith(MULTI_REGIONS.get(place, self.region + "-")):
            raise invalid(f"The bucket {name} is in {place}, the model in {self.region}.")

    def _get(self, request: vertex.GetBatchPredictionJobRequest, caller: str) -> vertex.BatchPredictionJob:
        job = self._named(request.name, caller, "aiplatform.batchPredictionJobs.get")
        with self.world.lock:
            if job.state == State.JOB_STATE_PENDING:
                job.state, job.start_time = State.JOB_STATE_RUNNING, datetime.now(UTC)
                thread = threading.Thread(target=self._work, args=(job,), daemon=True)
                self._threads.append(thread)
                thread.start()
            return vertex.BatchPredictionJob(job)

    def _list(
        self, request: vertex.ListBatchPredictionJobsRequest, caller: str
    ) -> vertex.ListBatchPredictionJobsResponse:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.batchPredictionJobs.list", f"projects/{project.id}")
        passes = matcher(request.filter)
        found = [
            job
            for job in reversed(self.jobs.values())
            if passes({"display_name": job.display_name, "state": job.state.name, "labels": dict(job.labels)})
        ]
        page, following = page_of(found, request.page_size, request.page_token)
        return vertex.ListBatchPredictionJobsResponse(batch_prediction_jobs=page, next_page_token=following)

    def _cancel(self, request: vertex.CancelBatchPredictionJobRequest, caller: str) -> Any:
        job = self._named(request.name, caller, "aiplatform.batchPredictionJobs.cancel")
        with self.world.lock:
            if job.state in ENDED:
                raise ServiceError(412, f"BatchPredictionJob {job.name} has ended and cannot be cancelled.")
            started = job.state == State.JOB_STATE_RUNNING
            job.state = State.JOB_STATE_CANCELLING if started else State.JOB_STATE_CANCELLED
        return empty_pb2.Empty()

    def _named(self, name: str, caller: str, permission: str) -> vertex.BatchPredictionJob:
        _, full = resource_of(self.world, self.region, name, "batchPredictionJobs", caller, permission)
        if full not in self.jobs:
            raise ServiceError(404, f"The BatchPredictionJob does not exist: {name}")
        return self.jobs[full]

    def _work(self, job: vertex.BatchPredictionJob) -> None:
        """Run a job to its end."""
        if self.out_of_quota:
            self._end(job, status_pb2.Status(code=8, message=QUOTA_MESSAGE))
            return
        versions = self._models.models[job.model]
        (model,) = (version for version in versions if version.version_id == job.model_version_id)
        resources = job.dedicated_resources
        count = resources.starting_replica_count or resources.max_replica_count or DEFAULT_REPLICAS
        servers: list[ModelServer] = []
        try:
            machine = resources.machine_spec
            servers += [self._servers.start(model, machine, lambda _line: None) for _ in range(min(count, 2))]
            if self._wait_until_healthy(job, servers):
                self._predict(job, model, servers)
            self._end(job)
        except ServiceError as error:
            self._end(job, status_pb2.Status(code=error.code.value[0], message=error.message))
        except Exception as error:
            self._end(job, status_pb2.Status(code=13, message=f"The fake failed: {error!r}"))  # not polled for ever
            raise
        finally:
            self._servers.stop(servers)

    def _wait_until_healthy(self, job: vertex.BatchPredictionJob, servers: list[ModelServer]) -> bool:
        """Return whether all servers became healthy; False if the job is cancelled meanwhile, or the servers closed."""
        deadline = time.monotonic() + self.start_seconds
        while not all(server.is_healthy() for server in servers):
            if job.state == State.JOB_STATE_CANCELLING or self._servers.is_closed:
                return False
            if time.monotonic() > deadline:
                raise failed_precondition(NEVER_READY)
            time.sleep(POLL_SECONDS)
        return True

    def _predict(self, job: vertex.BatchPredictionJob, model: vertex.Model, servers: list[ModelServer]) -> None:
        instances = self._instances(job)
        size = job.manual_batch_tuning_parameters.batch_size or DEFAULT_BATCH
        every = list(instances)
        results: list[str] = []
        failures: list[str] = []
        job.completion_stats.incomplete_count = len(every)
        remaining = iter(every)
        number = 0
        while batch := list(islice(remaining, size)):
            if job.state == State.JOB_STATE_CANCELLING:
                break
            server = servers[number % len(servers)]
            number += 1
            self._preempt(job, server, number)
            predictions, message = self._ask(server, [sent for _, sent in batch])
            with self.world.lock:
                job.completion_stats.incomplete_count -= len(batch)
                if predictions is None:
                    # Instances by message; the message is quoted on the troubleshooting page.
                    failures.append(repr((message, len(batch))))
                    job.completion_stats.failed_count += len(batch)
                else:
                    job.completion_stats.successful_count += len(batch)
                    for (shown, _), prediction in zip(batch, predictions, strict=True):
                        results.append(json.dumps({**shown, "prediction": prediction}))
        self._write(job, model, results, failures)

    def _preempt(self, job: vertex.BatchPredictionJob, server: ModelServer, number: int) -> None:
        planned = self.preemption
        if planned is not None and job.name in self.on_spot and number > planned.after and planned.times:
            planned.times -= 1
            self.preempted += 1
            server.kill()

    def _ask(self, server: ModelServer, instances: list[Any]) -> tuple[list[Any] | None, str]:
        """Return the predictions for a request, or None and the reason."""
        body = json.dumps({"instances": instances}).encode()
        began = time.monotonic()
        reason = ""
        for _ in range(RETRIES + 1):
            try:
                answer = server.predict(body, seconds=600)
            except OSError as error:
                reason = f"503 ({error})"
                server.wait_until_healthy(self.start_seconds)
                continue
            if answer.status == 200:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    predictions = json.loads(answer.body)["predictions"]
                    if len(predictions) == len(instances):
                        return predictions, ""
                reason = "200 (no list of predictions for the instances)"
                break
            reason = f"{answer.status} ({answer.body.decode(errors='replace')})"
        elapsed = f"retry={RETRIES}, ellapsed={time.monotonic() - began:.2f}s."
        text = f"Error: Exceeded retries: Non-OK result {reason} from server, {elapsed}"
        return None, f"Post request fails. Cannot get predictions. {text}"

    def _instances(self, job: vertex.BatchPredictionJob) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield what the output says of each instance, and what is sent."""
        kind, how = job.input_config.instances_format, job.instance_config
        if kind not in READ:
            raise ServiceError(400, f"The fake does not read {kind}.")
        for uri in job.input_config.gcs_source.uris:
            bucket, _, pattern = uri.removeprefix("gs://").partition("/")
            names = sorted(name for name in self._storage.names(bucket) if fnmatch.fnmatchcase(name, pattern))
            if not names:
                raise ServiceError(400, f"No files match {uri}.")
            for name in names:
                content = self._storage.read(bucket, name)[0]
                if kind == "tf-record":
                    # InstanceConfig.instance_type: "each record will be converted to … {"b64": <value>}".
                    for record in _records(content):
                        sent = {"b64": base64.b64encode(record).decode()}
                        yield {"instance": sent}, sent
                    continue
                for line in content.decode().splitlines():
                    if not line.strip():
                        continue
                    if kind == "file-list":
                        source, _, path = line.strip().removeprefix("gs://").partition("/")
                        image = self._storage.read(source, path)[0]
                        # InstanceConfig.instance_type: "each file in the list will be converted to {"b64": <value>}".
                        yield {"instance": line.strip()}, {"b64": base64.b64encode(image).decode()}
                        continue
                    yield _instance(json.loads(line), how)

    def _write(
        self, job: vertex.BatchPredictionJob, model: vertex.Model, results: list[str], failures: list[str]
    ) -> None:
        """Write the output. OutputConfig: "prediction-<model-display-name>-<job-create-time>", Pacific."""
        uri = job.output_config.gcs_destination.output_uri_prefix.rstrip("/")
        local = job.create_time.astimezone(PACIFIC)
        when = f"{local:%Y_%m_%dT%H_%M_%S}_{local.microsecond // 1000:03}Z"
        folder = f"{uri}/prediction-{model.display_name}-{when}"
        bucket, _, prefix = folder.removeprefix("gs://").partition("/")
        half = (len(results) + 1) // 2
        shards = [results[:half], results[half:]]
        for number, lines in enumerate(shards):
            name = f"{prefix}/prediction.results-{number:05d}-of-{len(shards):05d}"
            self._storage.write(bucket, name, "".join(f"{line}\n" for line in lines).encode())
        name = f"{prefix}/prediction.errors_stats-00000-of-00001"
        self._storage.write(bucket, name, "".join(f"{line}\n" for line in failures).encode())
        job.output_info.gcs_output_directory = folder

    def _end(self, job: vertex.BatchPredictionJob, error: status_pb2.Status | None = None) -> None:
        with self.world.lock:
            cancelled = job.state == State.JOB_STATE_CANCELLING
            job.state = State.JOB_STATE_FAILED if error else State.JOB_STATE_SUCCEEDED
            if cancelled:
                job.state = State.JOB_STATE_CANCELLED
            if error:
                job.error = error
            job.end_time = job.update_time = datetime.now(UTC)


def _instance(line: Any, how: Any) -> tuple[dict[str, Any], Any]:
    sent = dict(line) if isinstance(line, dict) else line
    if not how.key_field:
        return {"instance": _as_struct(line)}, sent
    if not isinstance(line, dict) or how.key_field not in line:
        raise ServiceError(400, f"An instance has no field {how.key_field}.")
    key = sent.pop(how.key_field)
    # PredictionResult.key is a string.
    return {"key": key if isinstance(key, str) else json.dumps(key)}, sent


def _records(content: bytes) -> Iterator[bytes]:
    """Yield the records of a TFRecord file: length, checksum of the length, data, checksum of the data."""
    while content:
        length = int.from_bytes(content[:8], "little")
        yield content[12 : 12 + length]
        content = content[16 + length :]


def _as_struct(value: Any) -> Any:
    """Return a JSON value as google.protobuf.Struct has it: all numbers are floating-point."""
    return json_format.MessageToDict(json_format.ParseDict(value, struct_pb2.Value()))


def _check_resources(resources: vertex.BatchDedicatedResources, region: str) -> None:
    spec = resources.machine_spec
    if not spec.machine_type:
        raise invalid("dedicated_resources.machine_spec.machine_type is required.")
    check_machine(spec, region)
    most = resources.max_replica_count or DEFAULT_REPLICAS
    if resources.starting_replica_count > most:
        raise invalid("starting_replica_count must not be greater than max_replica_count.")
    if resources.starting_replica_count < 0 or resources.max_replica_count < 0:
        raise invalid("The number of replicas must be positive.")
