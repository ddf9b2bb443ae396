"""From an AI Platform Training job to a run configuration, with a list of what became of everything in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slipway.pipelines.hardware import Hardware
from slipway.pipelines.migrate import old_rules
from slipway.pipelines.migrate.flags import read_flags
from slipway.pipelines.migrate.old_service import load
from slipway.pipelines.migrate.reading import ROLES, OldJob, parse_text, read_job
from slipway.pipelines.migrate.successor import Notes, hardware_for, region_for
from slipway.pipelines.migrate.writing import write

NAME_LENGTH = 40
# What stands in for what the old job cannot say, so that the configuration runs as it is.
STAND_IN_DATA = {"source": "digits"}
STAND_IN_MODEL = {"builder": "slipway.trainer.models.digits:build"}
STAND_IN_EPOCHS = 10
USUAL_BATCH = 64
PROJECT = "your-project"
# What VertexSettings takes, so that what it would refuse is said here.
FORMS = {
    "service_account": (re.compile(r"[^@\s/:]+@[^@\s/:]+"), "account's e-mail address"),
    "network": (re.compile(r"projects/[0-9]+/global/networks/[a-z]([-a-z0-9]*[a-z0-9])?"), "network's full name"),
    "encryption_key": (
        re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+"),
        "key's full name",
    ),
}
BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]*[a-z0-9]")


@dataclass(frozen=True)
class Migration:
    """A run configuration and how it came about.

    `configuration` is what `yaml` holds without its comments; `changed`, `dropped` and `decisions` are sentences.
    """

    configuration: dict[str, Any]
    yaml: str
    changed: tuple[str, ...]
    dropped: tuple[str, ...]
    decisions: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain data."""
        lists = {"changed": self.changed, "dropped": self.dropped, "decisions": self.decisions}
        return {"configuration": self.configuration, **{key: list(value) for key, value in lists.items()}}


def migrate(text: str, *, source: str) -> Migration:
    """The run configuration for an AI Platform Training job in YAML or JSON; `source` names it.

    Raises:
        UserError: It cannot be read, or the old service would have refused it.
    """
    return _migrate(read_job(parse_text(text, source)), source)


def from_arguments(arguments: list[str]) -> Migration:
    """The run configuration for the flags of `gcloud ai-platform jobs submit training`.

    Raises:
        UserError: A flag cannot be read, or the old service would have refused the job.
    """
    values, told_gcloud = read_flags(arguments)
    job = read_job(values)
    fields = {"staging_bucket": "--staging-bucket", "package_path": "--package-path", "project": "--project"}
    told = {name: told_gcloud.get(flag) for name, flag in fields.items()}
    return _migrate(OldJob(**{**vars(job), **told}), "gcloud ai-platform jobs submit training")


def _migrate(job: OldJob, source: str) -> Migration:
    old_rules.check(job)
    notes = Notes()
    hardware = hardware_for(job, notes)
    configuration: dict[str, Any] = {
        "name": _name(job, notes),
        "hardware": str(hardware),
        "data": STAND_IN_DATA,
        "model": STAND_IN_MODEL,
        "train": {"epochs": STAND_IN_EPOCHS, "batch_size": _batch_size(hardware)},
        "vertex": _vertex(job, hardware, notes),
    }
    _decide_what_is_trained(job, notes)
    _note_the_rest(job, notes)
    heading = [
        f"From {source}. AI Platform Training was shut down on {load().shutdown.isoformat()}; this run takes the job's "
        "place. What a person has to decide is marked with DECIDE; until then something stands in for it.",
        *(f"Changed: {text}." for text in notes.changed),
        *(f"Dropped: {text}." for text in notes.dropped),
    ]
    text = write(configuration, _comments(notes.decisions), heading, _remains(job))
    return Migration(configuration, text, tuple(notes.changed), tuple(notes.dropped), tuple(notes.decisions))


def _comments(decisions: Sequence[str]) -> dict[str, str]:
    """The decisions by the setting that they begin with, as comments above it."""
    comments: dict[str, str] = {}
    for decision in decisions:
        setting, _, text = decision.partition(": ")
        comments[setting] = f"{comments[setting]} {text}" if setting in comments else f"DECIDE: {text}"
    return comments


def _name(job: OldJob, notes: Notes) -> str:
    """The job's id as a run's name: small letters, digits and dashes."""
    words = re.sub(r"[^a-z0-9]+", "-", (job.job_id or "").lower()).strip("-")
    name = re.sub(r"^[^a-z]+", "", words)[:NAME_LENGTH].rstrip("-") or "migrated"
    if job.job_id is None:
        notes.decisions.append(f"name: the job had no id; {name} stands in.")
    elif name != job.job_id:
        notes.changed.append(f"the job id {job.job_id} is the name {name}")
    return name


def _batch_size(hardware: Hardware) -> int:
    """The usual batch, rounded up to what all devices share evenly."""
    devices = hardware.replicas * max(1, hardware.accelerators_per_replica)
    return -(-USUAL_BATCH // devices) * devices


def _vertex(job: OldJob, hardware: Hardware, notes: Notes) -> dict[str, Any]:
    region = region_for(job, hardware, notes)
    project = job.project or PROJECT
    if job.project is None:
        notes.decisions.append("vertex.project: no project was given.")
    repository = f"{region}-docker.pkg.dev/{project}/slipway"
    vertex: dict[str, Any] = {
        "project": project,
        "region": region,
        "bucket": _bucket(job, notes),
        "serving_image": f"{repository}/serving:1",
    }
    old_images = sorted({replica.image for replica in job.replicas.values() if replica.image})
    if old_images:
        notes.changed.append(
            f"{', '.join(old_images)}: images of this trainer take its place, built as the run starts (docs/images.md)"
        )
    notes.decisions.append("vertex.serving_image: the image that serves a SavedModel.")
    for setting, old_name, value in (
        ("service_account", "serviceAccount", job.service_account),
        ("network", "network", job.network),
        ("encryption_key", "encryptionConfig.kmsKeyName", job.kms_key),
    ):
        form, words = FORMS[setting]
        if value and form.fullmatch(value):
            vertex[setting] = value
            notes.changed.append(f"{value} is vertex.{setting}")
        elif value:
            notes.dropped.append(f"{old_name} {value}: it is no {words}")
    if job.labels:
        vertex["labels"] = job.labels
        notes.changed.append("the labels are vertex.labels")
    return vertex


def _bucket(job: OldJob, notes: Notes) -> str:
    """The bucket of the job's directory, or of its staging."""
    for value in filter(None, (job.job_dir, job.staging_bucket)):
        found = BUCKET.match(value)
        if found and value[found.end() :][:1] in ("", "/"):
            notes.decisions.append("vertex.bucket: it has to be in vertex.region, and in no multi-region.")
            return found[0]
    notes.decisions.append("vertex.bucket: no bucket was given; it has to be in vertex.region, and in no multi-region.")
    return "gs://your-bucket"


def _decide_what_is_trained(job: OldJob, notes: Notes) -> None:
    """What the user's own program decided, and this configuration has to say."""
    notes.decisions.append(
        f"data: the program read its own data; {STAND_IN_DATA['source']} stands in. images:FOLDER reads class/*.png."
    )
    program = job.python_module or job.package_path or "the program"
    notes.decisions.append(
        f"model: {program} built and trained its model; here a function builds it and the trainer trains it "
        "(docs/your-own-model.md). The digits example stands in."
    )
    said = "; its arguments are at the end of this file" if job.arguments else ""
    notes.decisions.append(f"train: how long and with which batch was for the program to say{said}.")


def _note_the_rest(job: OldJob, notes: Notes) -> None:
    """What has no counterpart."""
    if job.runtime_version or job.python_version:
        versions = [f"runtimeVersion {job.runtime_version}"] * bool(job.runtime_version)
        versions += [f"pythonVersion {job.python_version}"] * bool(job.python_version)
        notes.dropped.append(
            f"{' and '.join(versions)}: the image decides, and Google's own training images are no longer available"
        )
    if job.job_dir:
        notes.dropped.append(
            f"jobDir {job.job_dir}: checkpoints and model go to runs/ in vertex.bucket, and no --job-dir is passed"
        )
    if job.package_uris or job.package_path or job.python_module:
        named = ", ".join(filter(None, (job.package_path, job.python_module, *job.package_uris)))
        notes.dropped.append(f"the packaged program ({named}): the trainer takes its place, with your model's function")
    if job.hyperparameters:
        notes.dropped.append("hyperparameters: there is no tuning job; start a run each with --set")
    simple = {
        "useChiefInTfConfig": (job.use_chief, "the trainer reads either name of the chief"),
        "scheduling.priority": (job.priority, "Vertex AI has none"),
        "enableWebAccess": (job.web_access, "no shell is opened into a training container"),
    }
    notes.dropped += [f"{key} {value}: {why}" for key, (value, why) in simple.items() if value is not None]
    for role in ROLES:
        replica = job.replica(role)
        if replica.command or replica.arguments:
            notes.dropped.append(f"{role}Config.containerCommand and containerArgs: the trainer's own command runs")


def _remains(job: OldJob) -> dict[str, Any]:
    """What a person needs for the decisions, as it was."""
    commands = {
        f"{role}Config": {"containerCommand": list(replica.command), "containerArgs": list(replica.arguments)}
        for role, replica in job.replicas.items()
        if replica.command or replica.arguments
    }
    remains: dict[str, Any] = {
        "packagePath": job.package_path,
        "packageUris": list(job.package_uris),
        "pythonModule": job.python_module,
        "args": list(job.arguments),
        "hyperparameters": job.hyperparameters,
        **commands,
    }
    return {key: value for key, value in remains.items() if value}
