"""Convert an AI Platform Training job to a run configuration, with notes on every change."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from slipway.pipelines.hardware import Hardware
from slipway.pipelines.migrate.flags import read_flags
from slipway.pipelines.migrate.job import ROLES, LegacyJob, parse_text, read_job
from slipway.pipelines.migrate.legacy_machines import SHUTDOWN
from slipway.pipelines.migrate.replacement import Notes, hardware_for, region_for

NAME_LENGTH = 40
WIDTH = 110
# Placeholders for what the job does not contain, so that the configuration runs unchanged.
STAND_IN_DATA = {"source": "digits"}
STAND_IN_MODEL = {"builder": "slipway.trainer.models.digits:build"}
STAND_IN_EPOCHS = 10
USUAL_BATCH = 64
PROJECT = "your-project"
# Formats that VertexSettings accepts; other values are dropped with a note.
FORMS = {
    "service_account": (re.compile(r"[^@\s/:]+@[^@\s/:]+"), "service account e-mail address"),
    "network": (re.compile(r"projects/[0-9]+/global/networks/[a-z]([-a-z0-9]*[a-z0-9])?"), "full network name"),
    "encryption_key": (
        re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+"),
        "full key name",
    ),
}
BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]*[a-z0-9]")


@dataclass(frozen=True)
class Migration:
    """A run configuration and notes on its migration.

    `yaml` is `configuration` with comments; `changed`, `dropped` and `decisions` are sentences.
    """

    configuration: dict[str, object]
    yaml: str
    changed: tuple[str, ...]
    dropped: tuple[str, ...]
    decisions: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the migration as plain data."""
        lists = {"changed": self.changed, "dropped": self.dropped, "decisions": self.decisions}
        return {"configuration": self.configuration, **{key: list(value) for key, value in lists.items()}}


def migrate(text: str, *, source: str) -> Migration:
    """Return the run configuration for an AI Platform Training job in YAML or JSON; `source` is its file name.

    Raises:
        UserError: The job cannot be read, or names hardware that is unknown.
    """
    return _migrate(read_job(parse_text(text, source)), source)


def from_arguments(arguments: list[str]) -> Migration:
    """Return the run configuration for `gcloud ai-platform jobs submit training` flags.

    Raises:
        UserError: A flag cannot be read, or the job names hardware that is unknown.
    """
    values, flags = read_flags(arguments)
    job = replace(
        read_job(values),
        staging_bucket=flags.get("--staging-bucket"),
        package_path=flags.get("--package-path"),
        project=flags.get("--project"),
    )
    return _migrate(job, "gcloud ai-platform jobs submit training")


def _migrate(job: LegacyJob, source: str) -> Migration:
    notes = Notes()
    hardware = hardware_for(job, notes)
    configuration: dict[str, object] = {
        "name": _name(job, notes),
        "hardware": str(hardware),
        "data": STAND_IN_DATA,
        "model": STAND_IN_MODEL,
        "train": {**_engine(hardware, notes), "epochs": STAND_IN_EPOCHS, "batch_size": _batch_size(hardware)},
        "vertex": _vertex(job, hardware, notes),
    }
    _decide_what_is_trained(job, notes)
    _note_the_rest(job, notes)
    heading = [
        f"From {source}. AI Platform Training was shut down on {SHUTDOWN.isoformat()}; this run "
        "configuration replaces the job. Settings marked DECIDE hold placeholders that need a decision.",
        *(f"Changed: {text}." for text in notes.changed),
        *(f"Dropped: {text}." for text in notes.dropped),
    ]
    text = _document(configuration, _comments(notes.decisions), heading, _remains(job))
    return Migration(configuration, text, tuple(notes.changed), tuple(notes.dropped), tuple(notes.decisions))


def _comments(decisions: Sequence[str]) -> dict[str, str]:
    """Return the decisions as comments, by the setting that each begins with."""
    comments: dict[str, str] = {}
    for decision in decisions:
        setting, _, text = decision.partition(": ")
        comments[setting] = f"{comments[setting]} {text}" if setting in comments else f"DECIDE: {text}"
    return comments


def _name(job: LegacyJob, notes: Notes) -> str:
    """Return the job id as a run name: lowercase letters, digits and hyphens."""
    words = re.sub(r"[^a-z0-9]+", "-", (job.job_id or "").lower()).strip("-")
    name = re.sub(r"^[^a-z]+", "", words)[:NAME_LENGTH].rstrip("-") or "migrated"
    if job.job_id is None:
        notes.decisions.append(f"name: the job had no id; {name} is a placeholder.")
    elif name != job.job_id:
        notes.changed.append(f"job id {job.job_id} became name {name}")
    return name


def _engine(hardware: Hardware, notes: Notes) -> dict[str, object]:
    """Return the setting of an engine other than TensorFlow, if only that one trains on the hardware."""
    reason = hardware.why_not("tensorflow")
    if reason is None:
        return {}
    engine = hardware.supported_engines[0]
    notes.decisions.append(f"train: {reason[:-1]}, so the engine is {engine} (docs/engines.md).")
    return {"engine": engine}


def _batch_size(hardware: Hardware) -> int:
    """Return the default batch size, rounded up to a multiple of the device count."""
    devices = hardware.replicas * max(1, hardware.accelerators_per_replica)
    return -(-USUAL_BATCH // devices) * devices


def _vertex(job: LegacyJob, hardware: Hardware, notes: Notes) -> dict[str, object]:
    region = region_for(job, hardware, notes)
    project = job.project or PROJECT
    if job.project is None:
        notes.decisions.append("vertex.project: the job names no project.")
    repository = f"{region}-docker.pkg.dev/{project}/slipway"
    vertex: dict[str, object] = {
        "project": project,
        "region": region,
        "bucket": _bucket(job, notes),
        "serving_image": f"{repository}/serving:1",
    }
    images = sorted({replica.image for replica in job.replicas.values() if replica.image})
    if images:
        notes.changed.append(
            f"{', '.join(images)}: replaced by Slipway's training image, built when the run starts (docs/images.md)"
        )
    notes.decisions.append("vertex.serving_image: set the image that serves the SavedModel.")
    for setting, key, value in (
        ("service_account", "serviceAccount", job.service_account),
        ("network", "network", job.network),
        ("encryption_key", "encryptionConfig.kmsKeyName", job.kms_key),
    ):
        form, words = FORMS[setting]
        if value and form.fullmatch(value):
            vertex[setting] = value
            notes.changed.append(f"{value} became vertex.{setting}")
        elif value:
            notes.dropped.append(f"{key} {value}: not a {words}")
    if job.labels:
        vertex["labels"] = job.labels
        notes.changed.append("labels became vertex.labels")
    return vertex


def _bucket(job: LegacyJob, notes: Notes) -> str:
    """Return the bucket of the job directory, or the staging bucket."""
    for value in filter(None, (job.job_dir, job.staging_bucket)):
        found = BUCKET.match(value)
        if found and value[found.end() :][:1] in ("", "/"):
            notes.decisions.append("vertex.bucket: must be in vertex.region, not in a multi-region.")
            return found[0]
    notes.decisions.append("vertex.bucket: the job names no bucket; must be in vertex.region, not in a multi-region.")
    return "gs://your-bucket"


def _decide_what_is_trained(job: LegacyJob, notes: Notes) -> None:
    """Note the settings that the user's program used to decide."""
    notes.decisions.append(
        f"data: the program read its own data; {STAND_IN_DATA['source']} is a placeholder. "
        "images:FOLDER reads class/*.png."
    )
    program = job.python_module or job.package_path or "the program"
    notes.decisions.append(
        f"model: {program} built and trained its model; in Slipway a function builds it and the trainer trains it "
        "(docs/your-own-model.md). The digits example is a placeholder."
    )
    said = "; its arguments are at the end of this file" if job.arguments else ""
    notes.decisions.append(f"train: the program set epochs and batch size{said}.")


def _note_the_rest(job: LegacyJob, notes: Notes) -> None:
    """Note the settings that have no equivalent."""
    if job.runtime_version or job.python_version:
        versions = [f"runtimeVersion {job.runtime_version}"] * bool(job.runtime_version)
        versions += [f"pythonVersion {job.python_version}"] * bool(job.python_version)
        notes.dropped.append(
            f"{' and '.join(versions)}: the training image determines both, and "
            "Google's prebuilt training images are no longer available"
        )
    if job.job_dir:
        notes.dropped.append(
            f"jobDir {job.job_dir}: checkpoints and the model are written to runs/ in vertex.bucket, "
            "and no --job-dir is passed"
        )
    if job.package_uris or job.package_path or job.python_module:
        named = ", ".join(filter(None, (job.package_path, job.python_module, *job.package_uris)))
        notes.dropped.append(f"the packaged program ({named}): replaced by the trainer and your model function")
    if job.hyperparameters:
        notes.dropped.append("hyperparameters: tuning jobs are not supported; start one run per trial with --set")
    simple = {
        "useChiefInTfConfig": (job.use_chief, "the trainer accepts both chief and master"),
        "scheduling.priority": (job.priority, "Vertex AI has no job priority"),
        "enableWebAccess": (job.web_access, "interactive shells are not supported"),
    }
    notes.dropped += [f"{key} {value}: {why}" for key, (value, why) in simple.items() if value is not None]
    for role in ROLES:
        replica = job.replica(role)
        if replica.command or replica.arguments:
            notes.dropped.append(f"{role}Config.containerCommand and containerArgs: replaced by the trainer's command")


def _remains(job: LegacyJob) -> dict[str, object]:
    """Return the job's settings that are needed for the open decisions."""
    commands = {
        f"{role}Config": {"containerCommand": list(replica.command), "containerArgs": list(replica.arguments)}
        for role, replica in job.replicas.items()
        if replica.command or replica.arguments
    }
    remains: dict[str, object] = {
        "packagePath": job.package_path,
        "packageUris": list(job.package_uris),
        "pythonModule": job.python_module,
        "args": list(job.arguments),
        "hyperparameters": job.hyperparameters,
        **commands,
    }
    return {key: value for key, value in remains.items() if value}


def _document(
    configuration: Mapping[str, object],
    comments: Mapping[str, str],
    heading: Iterable[str],
    remains: Mapping[str, object],
) -> str:
    """Return the configuration as YAML.

    Args:
        configuration: The settings, in output order.
        comments: Comments by dotted setting name, written above the setting.
        heading: Paragraphs of the header comment.
        remains: The job's settings without an equivalent, appended as a comment.
    """
    paragraphs = [_comment(text, "") for text in heading]
    body = "".join(_setting(key, value, comments, "", "") for key, value in configuration.items())
    parts = ["\n#\n".join(paragraphs), "\n\n", body]
    if remains:
        parts += ["\n# Old settings without an equivalent:\n", _prefixed(_dump(remains))]
    return "".join(parts)


def _setting(key: str, value: object, comments: Mapping[str, str], path: str, indent: str) -> str:
    name = f"{path}{key}"
    comment = f"{_comment(comments[name], indent)}\n" if name in comments else ""
    if isinstance(value, Mapping) and any(other.startswith(f"{name}.") for other in comments):
        inner = "".join(_setting(sub, item, comments, f"{name}.", f"{indent}  ") for sub, item in value.items())
        return f"{comment}{indent}{key}:\n{inner}"
    return comment + textwrap.indent(_dump({key: value}), indent)


def _comment(text: str, indent: str) -> str:
    # Escape line separators, which would end the comment.
    visible = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    lines = textwrap.wrap(visible, WIDTH - len(indent) - 2, break_long_words=False, break_on_hyphens=False)
    return "\n".join(f"{indent}# {line}" for line in lines)


def _dump(values: Mapping[str, object]) -> str:
    return str(yaml.safe_dump(dict(values), sort_keys=False, width=WIDTH, allow_unicode=True))


def _prefixed(text: str) -> str:
    return "".join(f"# {line}\n" if line else "#\n" for line in text.splitlines())
