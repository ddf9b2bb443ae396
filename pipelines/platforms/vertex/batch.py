"""Batch predictions on Vertex AI: a BatchPredictionJob is checked, created once, watched, and its inputs are counted.

A job has the hash of what it predicts as a label. The same command finds it by that: it watches a job that runs,
reports one that has succeeded, and creates another after one that has failed.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.known_errors.table import first_recognized
from slipway.components.cloud.refusals import refusing
from slipway.components.cloud.retries import is_transient, paced, retried
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.platforms.capabilities import BatchJob
from slipway.pipelines.platforms.vertex import batch_files, batch_tables
from slipway.pipelines.platforms.vertex.batch_files import Inputs, Results, called
from slipway.pipelines.platforms.vertex.doctor import batch as checks
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.platforms.vertex.submission import labels_of

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1.types import BatchPredictionJob

    Job: TypeAlias = BatchPredictionJob

DEFAULT_HARDWARE = "n1-standard-4"
BATCH_LABEL = "slipway-batch"
RIGHTS = "aiplatform.batchPredictionJobs"
HASH_LETTERS = 32
POLL_SECONDS = 10.0
# After a lost answer, the job may appear in the list only after a while.
LIST_POLLS = 4
# Instances in a request: Vertex AI's default (ManualBatchTuningParameters), or as many as Slipway's server accepts.
# A file list does not tell how large the files are.
BATCH_SIZE = 64
FILES_BATCH_SIZE = 4
MAX_BODY = 10 << 20
SUCCEEDED = ("JOB_STATE_SUCCEEDED", "JOB_STATE_PARTIALLY_SUCCEEDED")
ENDED = (*SUCCEEDED, "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED")


@dataclass(frozen=True)
class Prepared:
    """A job that has passed the checks: its fields, the hash in its label, whether it runs on Spot VMs, its inputs."""

    connection: Connection
    job: JsonObject
    identity: str
    spot: bool
    inputs: Inputs


def pause() -> None:
    """Wait before the next poll."""
    time.sleep(paced(POLL_SECONDS))


def prepare(asked: BatchJob) -> Prepared:
    """Check everything that Vertex AI would refuse later, without changing anything.

    Raises:
        UserError: A check failed.
    """
    vertex = vertex_of(asked.config)
    connection = vertex.connection
    machine, replicas = checks.machine(asked.hardware or DEFAULT_HARDWARE, vertex.region)
    if not re.fullmatch(r"gs://[^/]+/.+", asked.output):
        raise UserError(
            f"The output {asked.output} is not a folder in a bucket.",
            setting="--output",
            value=asked.output,
            allowed="gs://BUCKET/FOLDER",
            fix=f"--output {vertex.bucket}/predictions",
        )
    checks.check_project(asked.config, connection)
    version = checks.version(connection, asked.model)
    for uri in asked.inputs:
        checks.check_bucket(connection, uri, "--input")
    checks.check_bucket(connection, asked.output, "--output")
    inputs = batch_files.find_inputs(connection, asked.inputs, asked.key)
    if inputs.format == "table":
        inputs = batch_tables.as_instances(connection, inputs, version, asked.output)
    supported = list(version.supported_input_storage_formats)
    if supported and inputs.format not in supported:
        raise UserError(
            f"The model {asked.model} does not accept {inputs.format}.", setting="--input", allowed=", ".join(supported)
        )
    name = f"{version.name.partition('@')[0]}@{version.version_id}"
    job: JsonObject = {
        "model": name,
        "input_config": {"instances_format": inputs.format, "gcs_source": {"uris": list(inputs.uris)}},
        "output_config": {
            "predictions_format": "jsonl",
            "gcs_destination": {"output_uri_prefix": asked.output.rstrip("/")},
        },
        "dedicated_resources": {
            "machine_spec": machine.spec,
            "starting_replica_count": replicas,
            "max_replica_count": replicas,
        },
        "manual_batch_tuning_parameters": {"batch_size": _batch_size(asked.batch_size, inputs)},
    }
    if machine.spot:
        job["dedicated_resources"]["spot"] = True
    if inputs.key is not None:
        job["instance_config"] = {"key_field": inputs.key}
    if vertex.service_account:
        job["service_account"] = vertex.service_account
    if vertex.encryption_key:
        job["encryption_spec"] = {"kms_key_name": vertex.encryption_key}
    content = json.dumps(job, sort_keys=True) + inputs.fingerprint
    identity = hashlib.sha256(content.encode()).hexdigest()[:HASH_LETTERS]
    job["display_name"] = f"{version.display_name[:100]}-{version.version_id}-{identity[:8]}"
    job["labels"] = {**labels_of(asked.config), BATCH_LABEL: identity}
    return Prepared(connection, job, identity, machine.spot, inputs)


def find(prepared: Prepared) -> Job | None:
    """Return the job that runs or has succeeded with exactly this work, or None."""
    connection = prepared.connection
    request = {"parent": connection.parent, "filter": f'labels.{BATCH_LABEL}="{prepared.identity}"'}
    list_jobs = connection.jobs.list_batch_prediction_jobs
    jobs = called(connection, "list the batch predictions", lambda: list(list_jobs(request)), f"{RIGHTS}.list")
    return next((job for job in jobs if job.state.name not in ENDED or job.state.name in SUCCEEDED), None)


def submit(prepared: Prepared) -> Job:
    """Create the job; after a lost answer, use the job that the lost call has created.

    Raises:
        UserError: Vertex AI refuses the job.
    """
    connection = prepared.connection
    if prepared.inputs.content is not None:
        batch_tables.upload(connection, prepared.inputs)
    # Spot VMs are a field of v1beta1 only. The job is the same resource.
    client: Any = connection.beta_jobs if prepared.spot else connection.jobs
    request = {"parent": connection.parent, "batch_prediction_job": prepared.job}

    def create() -> str:
        try:
            return str(client.create_batch_prediction_job(request).name)
        except Exception as error:
            if not is_transient(error):
                raise
            for _ in range(LIST_POLLS):
                if (job := find(prepared)) is not None:
                    return job.name
                time.sleep(paced(1.0))
            raise

    with refusing(connection, "create the job", f"{RIGHTS}.create", _facts(connection)):
        name = retried(create)
    action = f"see {name}, which was submitted"
    return called(connection, action, lambda: connection.jobs.get_batch_prediction_job(name=name), f"{RIGHTS}.get")


def watch(prepared: Prepared, job: Job, show: Callable[[str, int], object]) -> Job:
    """Poll the job until it has ended; return it.

    Args:
        prepared: What it predicts.
        job: The job.
        show: Receives its state and the number of inputs that it has processed, at each poll.
    """
    connection, name = prepared.connection, job.name
    while True:
        stats = job.completion_stats
        show(job.state.name.removeprefix("JOB_STATE_").lower(), stats.successful_count + stats.failed_count)
        if job.state.name in ENDED:
            return job
        pause()
        action = f"watch {name}, which continues"
        job = called(connection, action, lambda: connection.jobs.get_batch_prediction_job(name=name), f"{RIGHTS}.get")


def cancel(prepared: Prepared, job: Job) -> None:
    """Ask Vertex AI to cancel the job; predictions that it has written are kept."""
    connection = prepared.connection
    stop = partial(connection.jobs.cancel_batch_prediction_job, name=job.name)
    called(connection, f"cancel {job.name}", stop, f"{RIGHTS}.cancel")


def failure(prepared: Prepared, job: Job) -> UserError:
    """Return why a job has not succeeded."""
    texts = [job.error.message, *(status.message for status in job.partial_failures)]
    recognized = first_recognized(texts, _facts(prepared.connection))
    ended = "was cancelled" if job.state.name == "JOB_STATE_CANCELLED" else "failed"
    reason = recognized.sentence if recognized else " ".join(next((text for text in texts if text), "").split())
    return UserError(
        f"The batch prediction {ended}{f': {reason}' if reason else '.'}",
        fix=recognized.fix if recognized else f"see its page: {console_url(prepared.connection, job)}",
    )


def results(prepared: Prepared, job: Job) -> tuple[JsonObject, str]:
    """Compare the predictions with the inputs; write errors.jsonl and summary.json beside them.

    Returns:
        The summary, and the folder.
    """
    folder = job.output_info.gcs_output_directory
    job_results = batch_files.read_results(prepared.connection, folder, prepared.inputs)
    summary = _summary(prepared, job, job_results)
    bucket, _, prefix = folder.removeprefix("gs://").partition("/")
    lines = "".join(json.dumps(error, ensure_ascii=False) + "\n" for error in job_results.failed)
    files = {"summary.json": json.dumps(summary, indent=2, ensure_ascii=False) + "\n"}
    if job_results.matched:
        files["errors.jsonl"] = lines
    for name, text in files.items():
        blob = prepared.connection.storage.bucket(bucket).blob(f"{prefix.rstrip('/')}/{name}")
        upload = partial(blob.upload_from_string, text.encode(), "application/json")
        called(prepared.connection, f"write {name} to {folder}", upload)
    return summary, folder


def console_url(connection: Connection, job: Job) -> str:
    """Return the URL of a job's page in the console."""
    return (
        f"https://console.cloud.google.com/vertex-ai/locations/{connection.region}/batch-predictions/"
        f"{job.name.rpartition('/')[2]}?project={connection.project}"
    )


def _summary(prepared: Prepared, job: Job, job_results: Results) -> JsonObject:
    stats = job.completion_stats
    counted = {name: int(getattr(stats, f"{name}_count")) for name in ("successful", "failed", "incomplete")}
    failed = len(job_results.failed) if job_results.matched else counted["failed"] + max(0, counted["incomplete"])
    return {
        "job": job.name,
        "model": prepared.job["model"],
        "inputs": list(prepared.inputs.uris),
        "examples": prepared.inputs.examples if prepared.inputs.examples is not None else job_results.done + failed,
        "done": job_results.done,
        "failed": failed,
        "listed": job_results.matched,
        "messages": dict(job_results.messages),
        "statistics": counted,
        "partial_failures": [status.message for status in job.partial_failures],
    }


def _batch_size(asked: int | None, inputs: Inputs) -> int:
    if inputs.format == "file-list":
        return asked or FILES_BATCH_SIZE
    most = max(1, MAX_BODY // (inputs.largest + 2)) if inputs.largest else None
    if asked is not None and most is not None and asked > most:
        raise UserError(
            f"{asked} instances do not fit into a request of {MAX_BODY >> 20} MiB: one has {inputs.largest:,} bytes.",
            setting="--batch-size",
            value=asked,
            allowed=f"up to {most}",
            fix=f"--batch-size {most}",
        )
    return asked or min(BATCH_SIZE, most or BATCH_SIZE)


def _facts(connection: Connection) -> dict[str, str]:
    return {"project": connection.project, "region": connection.region}
