"""Convert an AI Platform Training job to a run configuration, with notes on every change."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

import yaml
from pydantic import ValidationError

from slipway.components.cloud.policies import ACCOUNT_DOMAIN
from slipway.core.image_reference import GCR, ImageReference
from slipway.pipelines.hardware import Hardware
from slipway.pipelines.migrate.custom_jobs import POOLS, ROLES
from slipway.pipelines.migrate.flags import CUSTOM_JOB_COMMANDS, read_custom_job_flags, read_flags
from slipway.pipelines.migrate.hyperparameters import tune_section
from slipway.pipelines.migrate.job import (
    ALGORITHMS,
    FIELDS,
    PREBUILT,
    LegacyJob,
    LegacyReplica,
    parse_text,
    read_job,
)
from slipway.pipelines.migrate.legacy_machines import SHUTDOWN
from slipway.pipelines.migrate.program import Program, find
from slipway.pipelines.migrate.replacement import STAND_IN_REGION, Notes, hardware_for, region_for
from slipway.pipelines.platforms.vertex.settings import VertexSettings

NAME_LENGTH = 40
WIDTH = 110
# Placeholders for what the job does not contain. The module is the one of AI Platform's guides.
STAND_IN_MODULE = "trainer.task"
PROJECT = "your-project"
STAND_IN_BUCKET = "gs://your-bucket"
MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
# What `python -m` accepts besides: files and folders with names that no import has.
FILES = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*", re.ASCII)
BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]*[a-z0-9]")


@dataclass(frozen=True)
class Migration:
    """A run configuration and notes on its migration.

    `yaml` is `configuration` with comments; `changed`, `dropped` and `decisions` are sentences. `program` is the job's
    Python program; None if its image contains it.
    """

    configuration: dict[str, object]
    yaml: str
    changed: tuple[str, ...]
    dropped: tuple[str, ...]
    decisions: tuple[str, ...]
    program: Program | None


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
    if command := next((word for word in arguments if word in CUSTOM_JOB_COMMANDS), None):
        return _migrate(read_job(read_custom_job_flags(arguments)), f"gcloud ai {command} create")
    return _migrate(read_job(*read_flags(arguments)), "gcloud ai-platform jobs submit training")


def _migrate(job: LegacyJob, source: str) -> Migration:
    notes = Notes()
    hardware = hardware_for(job, notes)
    train, program = _train(job, notes)
    configuration: dict[str, object] = {
        "name": _name(job, notes),
        "hardware": str(hardware),
        "train": train,
        "vertex": _vertex(job, hardware, notes),
    }
    hyperparameters = job.values["hyperparameters"] or {}
    if tune := tune_section(hyperparameters, notes):
        configuration["evaluate"] = {"gate": {key: tune[key] for key in ("metric", "direction")}}
        configuration["tune"], hyperparameters = tune, {}
    elif hyperparameters:
        notes.dropped.append("hyperparameters: kept as a comment at the end of the file, because they have no params")
    notes.dropped += [f"{path}: {why}" for path, why in job.unread]
    unused = _unused_commands(job)
    for key in unused:
        notes.dropped.append(f"{key}.containerCommand and containerArgs: all replicas run the section train's program")
    remains = {"hyperparameters": hyperparameters, **unused}
    is_custom = job.text(POOLS) is not None
    replaces = "" if is_custom else f" AI Platform Training was shut down on {SHUTDOWN.isoformat()};"
    heading = [
        f"From {source}.{replaces} {'This' if is_custom else 'this'} run "
        "configuration replaces the job. Settings marked DECIDE hold placeholders or need a decision.",
        *(f"Changed: {text}." for text in notes.changed),
        *(f"Dropped: {text}." for text in notes.dropped),
    ]
    comments: dict[str, str] = {}  # the decisions by the setting that each begins with
    for decision in notes.decisions:
        setting, _, text = decision.partition(": ")
        comments[setting] = f"{comments[setting]} {text}" if setting in comments else f"DECIDE: {text}"
    body = "".join(_setting(key, value, comments, "", "") for key, value in configuration.items())
    text = "\n#\n".join(_comment(paragraph, "") for paragraph in heading) + "\n\n" + body
    if remains := {key: value for key, value in remains.items() if value}:
        lines = ["Old settings without an equivalent:", *_dump(remains).splitlines()]
        text += "\n" + "".join(f"# {line}\n" if line else "#\n" for line in lines)
    return Migration(configuration, text, tuple(notes.changed), tuple(notes.dropped), tuple(notes.decisions), program)


def _train(job: LegacyJob, notes: Notes) -> tuple[dict[str, object], Program | None]:
    """Return the section `train`, which runs the job's program, and the program unless it is in the job's image."""
    train: dict[str, object] = {}
    program = None
    chief = _chief(job)
    in_image = job.text("pythonModule") is None
    if image := _image(job, notes):
        train["image"] = image
    if in_image and chief.command:
        train["command"] = list(chief.command)
        notes.changed.append("containerCommand became train.command")
    elif not in_image and FILES.fullmatch(name := job.text("pythonModule") or "") and not MODULE.fullmatch(name):
        train["command"] = ["python", "-m", name]
        notes.changed.append(f"pythonModule {name} became train.command: such a name cannot be imported")
    elif not (in_image and image):
        train["module"] = _module(job, notes)
        program = find(str(train["module"]), job, notes)
        if job.engine == "pytorch":
            notes.decisions.append(
                "train.module: the program used PyTorch, which Slipway's images for custom programs do not contain; "
                "pin it in build.requirements, or set train.image to an image that contains the program and PyTorch."
            )
        if count := len(program.changes):
            places = "1 place" if count == 1 else f"{count} places"
            notes.decisions.append(f"train.module: the program must change in {places}; slipway migrate lists them.")
    arguments = [*((in_image and chief.arguments) or job.values["args"])]
    if arguments:
        notes.changed.append("the program's arguments became train.arguments")
    if job_dir := job.text("jobDir"):
        if image or "module" not in train:  # it receives its arguments as they are
            notes.changed.append(f"jobDir {job_dir} is passed to the program as --job-dir, as before")
            notes.decisions.append(
                "train.arguments: --job-dir is the same folder for every run, also on this machine; each run's own "
                "folders are AIP_MODEL_DIR and AIP_CHECKPOINT_DIR."
            )
            arguments += ["--job-dir", job_dir]
        else:
            notes.changed.append(
                f"jobDir {job_dir} became --job-dir $(AIP_MODEL_DIR), the folder of each run's model, on this "
                "machine, too"
            )
            arguments += ["--job-dir", "$(AIP_MODEL_DIR)"]
    if arguments:
        train["arguments"] = arguments
    return train, program


def _chief(job: LegacyJob) -> LegacyReplica:
    """Return the replica whose image and command all replicas have now: the first one that has an image."""
    replicas = [job.replicas[role] for role in ("master", "worker")]
    return next((replica for replica in replicas if replica.image), replicas[0])


def _image(job: LegacyJob, notes: Notes) -> str | None:
    """Return the image of the job's own, pinned, in which its program is; None if it has none."""
    images = list(dict.fromkeys(replica.image for role in ROLES if (replica := job.replicas[role]).image))
    for image in images:
        if image.startswith(PREBUILT):
            notes.dropped.append(
                f"{image}: Google's images for AI Platform are no longer available. Slipway builds the training image "
                "when the run starts (docs/vertex-reference.md)"
            )
        if image.startswith(ALGORITHMS):
            notes.dropped.append(f"{image}: the built-in algorithms of AI Platform ended with it")
            notes.decisions.append(
                f"train.module: {image} was a built-in algorithm of Google's, whose code is not available. Write the "
                "program (docs/your-own-training-loop.md), or remove module and train with model.builder."
            )
    custom_images = [image for image in images if not image.startswith((PREBUILT, ALGORITHMS))]
    if not custom_images:
        return None
    for other in custom_images[1:]:
        notes.dropped.append(f"{other}: all replicas now run the same image, {custom_images[0]}")
    reference = ImageReference.parse(custom_images[0])
    image = (
        custom_images[0] if reference.is_pinned else f"{custom_images[0].partition('@')[0].removesuffix(':latest')}:1"
    )
    if reference.is_pinned:
        notes.changed.append(f"imageUri {custom_images[0]} became train.image")
    else:
        notes.decisions.append(f"train.image: {custom_images[0]} has no fixed version; {image} is a placeholder.")
    if repository := ImageReference.parse(image).artifact_repository if GCR.match(image) else None:
        notes.decisions.append(
            f"train.image: Artifact Registry serves {image.partition('/')[0]} since 2025, from {repository}. If that "
            "does not have the image, push it again."
        )
    return image


def _module(job: LegacyJob, notes: Notes) -> str:
    module = job.text("pythonModule") or ""
    if MODULE.fullmatch(module):
        notes.changed.append(f"pythonModule {module} became train.module")
        return module
    problem = f"{module} is not the name of a module" if module else "the job names no module"
    notes.decisions.append(f"train.module: {problem}; {STAND_IN_MODULE} is a placeholder.")
    return STAND_IN_MODULE


def _name(job: LegacyJob, notes: Notes) -> str:
    """Return the job id as a run name: lowercase letters, digits and hyphens."""
    job_id = job.text("jobId")
    words = re.sub(r"[^a-z0-9]+", "-", (job_id or "").lower()).strip("-")
    name = re.sub(r"^[^a-z]+", "", words)[:NAME_LENGTH].rstrip("-") or "migrated"
    if job_id is None:
        notes.decisions.append(f"name: the job had no id; {name} is a placeholder.")
    elif name != job_id:
        notes.changed.append(f"job id {job_id} became name {name}")
    return name


def _vertex(job: LegacyJob, hardware: Hardware, notes: Notes) -> dict[str, object]:
    vertex: dict[str, object] = {"project": job.text("--project") or PROJECT}
    vertex["region"] = region_for(job, hardware, notes)
    if job.text("--project") is None:
        notes.decisions.append("vertex.project: the job names no project.")
    vertex["bucket"] = _bucket(job, notes)
    vertex |= _of_fields(job, notes)
    if "service_account" not in vertex:
        parts = str(vertex["project"]).split(":")
        vertex["service_account"] = f"slipway@{'.'.join(reversed(parts))}{ACCOUNT_DOMAIN}"
        notes.decisions.append(
            f"vertex.service_account: the job names no account; slipway setup creates {vertex['service_account']}."
        )
    if job.labels:
        vertex["labels"] = job.labels
        notes.changed.append("labels became vertex.labels")
    return vertex


def _bucket(job: LegacyJob, notes: Notes) -> str:
    for value in filter(None, (job.text("jobDir"), job.text("--staging-bucket"))):
        match = BUCKET.match(value)
        if match and value[match.end() :][:1] in ("", "/"):
            notes.decisions.append("vertex.bucket: must be in vertex.region, not in a multi-region.")
            return match[0]
    notes.decisions.append("vertex.bucket: the job names no bucket; must be in vertex.region, not in a multi-region.")
    return STAND_IN_BUCKET


def _of_fields(job: LegacyJob, notes: Notes) -> dict[str, object]:
    """Return the settings of `vertex` that are a field of the job; note what becomes of each field, as its row says."""
    settings: dict[str, object] = {}
    dropped: dict[str, list[str]] = {}
    for row in FIELDS:
        value = job.values[row.key]
        if not value:
            continue
        shown = row.key if row.kind == "mapping" else f"{row.key} {value}"
        if row.dropped:
            dropped.setdefault(row.dropped, []).append(shown)
        elif row.setting and _is_valid(row.setting, value):
            settings[row.setting] = value
            notes.changed.append(f"{value} became vertex.{row.setting}")
        elif row.setting:
            dropped[f"not a {row.words}"] = [shown]
    notes.dropped += [f"{' and '.join(fields)}: {why}" for why, fields in dropped.items()]
    return settings


def _is_valid(setting: str, value: str) -> bool:
    required = {"project": PROJECT, "region": STAND_IN_REGION, "bucket": STAND_IN_BUCKET}
    try:
        VertexSettings.model_validate({**required, setting: value})
    except ValidationError:
        return False
    return True


def _unused_commands(job: LegacyJob) -> dict[str, object]:
    """Return the containers' commands that differ from the one that all replicas run now."""
    chief = _chief(job)
    used = (chief.command, chief.arguments) if job.text("pythonModule") is None else ((), ())
    return {
        f"{role}Config": {"containerCommand": list(replica.command), "containerArgs": list(replica.arguments)}
        for role, replica in job.replicas.items()
        if (replica.command or replica.arguments) and (replica.command, replica.arguments) != used
    }


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
