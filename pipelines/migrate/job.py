"""Parse an AI Platform Training job: YAML or JSON, with or without `trainingInput`."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from slipway.core.errors import UserError, nearest
from slipway.core.values import JsonObject
from slipway.core.yaml_loader import load_yaml
from slipway.pipelines.migrate import custom_jobs
from slipway.pipelines.migrate.custom_jobs import ROLES

# Google's images for training on AI Platform.
PREBUILT = "gcr.io/cloud-ml-public/"
# Google's built-in algorithms, which ended with AI Platform.
ALGORITHMS = "gcr.io/cloud-ml-algos/"
REPLICA_KEYS = ("acceleratorConfig", "imageUri", "diskConfig", "containerCommand", "containerArgs", "tpuTfVersion")


@dataclass(frozen=True)
class JobField:
    """A field of a job, and what becomes of it. Without `setting` and `dropped`, it needs more than its own value.

    Attributes:
        key: Its name below `trainingInput`, after its section's.
        flag: gcloud's flag for it; "" if it has none.
        kind: What its value is; a switch is text that gcloud's flag does not give.
        setting: The setting of `vertex` that has its value now, if it accepts it.
        words: What such a value is called.
        dropped: Why no setting has its value.
    """

    key: str
    flag: str = ""
    kind: Literal["text", "switch", "texts", "mapping"] = "text"
    setting: str = ""
    words: str = ""
    dropped: str = ""


IMAGE_DETERMINES = "the training image determines both, and Google's prebuilt training images are no longer available"
# In the order of the notes on them. The fields of each role are read by `_replica`, and become hardware.
FIELDS = (
    JobField("scaleTier", "--scale-tier"),
    JobField("scheduling.maxRunningTime", "--max-running-time"),
    JobField(
        "scheduling.maxWaitTime", "--max-wait-time", dropped="only FLEX_START supports a wait limit now (+flex+wait=…)"
    ),
    JobField("scheduling.strategy"),
    JobField("scheduling.restartJobOnWorkerRestart"),
    JobField("packageUris", kind="texts"),
    JobField("pythonModule", "--module-name"),
    JobField("args", kind="texts"),
    JobField("jobDir", "--job-dir"),
    JobField("region", "--region"),
    JobField("serviceAccount", "--service-account", setting="service_account", words="service account e-mail address"),
    JobField("network", "--network", setting="network", words="full network name"),
    JobField("encryptionConfig.kmsKeyName", setting="encryption_key", words="full key name"),
    JobField("runtimeVersion", "--runtime-version", dropped=IMAGE_DETERMINES),
    JobField("pythonVersion", "--python-version", dropped=IMAGE_DETERMINES),
    JobField("hyperparameters", kind="mapping"),
    JobField(
        "useChiefInTfConfig", "--use-chief-in-tf-config", "switch", dropped="TF_CONFIG calls the first replica chief"
    ),
    JobField("scheduling.priority", dropped="Vertex AI has no job priority"),
    JobField("enableWebAccess", "--enable-web-access", "switch", dropped="interactive shells are not supported"),
)
INPUT_KEYS = (
    *(f"{role}{part}" for role in ROLES for part in ("Type", "Config", "Count") if (role, part) != ("master", "Count")),
    *dict.fromkeys(row.key.partition(".")[0] for row in FIELDS),
)
SECTIONS = {
    name: tuple(row.key.partition(".")[2] for row in FIELDS if row.key.startswith(f"{name}."))
    for name in ("scheduling", "encryptionConfig")
}
# Output-only fields that `gcloud ai-platform jobs describe` prints; not migrated.
ANSWER_KEYS = (
    "createTime", "startTime", "endTime", "state", "errorMessage", "etag", "trainingOutput", "jobPosition",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LegacyReplica:
    """The replicas of one role. `machine` is as written; `accelerator` is Vertex AI's name in capitals."""

    role: str
    machine: str | None = None
    count: int = 0
    accelerator: str | None = None
    accelerator_count: int = 0
    image: str | None = None
    tpu_version: str | None = None
    disk_type: str | None = None
    disk_gb: int | None = None
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class LegacyJob:
    """A parsed AI Platform Training job.

    Attributes:
        values: Its values by the key of each of `FIELDS`, by jobId, and by the flags that only gcloud used.
        replicas: Its replicas by role.
        labels: Its labels.
        unread: Of a custom job, the paths of the values that no setting has, and why.
    """

    values: JsonObject
    replicas: Mapping[str, LegacyReplica]
    labels: Mapping[str, str]
    unread: tuple[tuple[str, str], ...] = ()

    def text(self, key: str) -> str | None:
        """Return a value that is text; None if it is not set."""
        value: str | None = self.values.get(key)
        return value

    @property
    def engine(self) -> str:
        """The engine of Google's image in which the program ran; a custom image has its own."""
        images = [replica.image for replica in self.replicas.values() if replica.image]
        pytorch = images and all(image.startswith(f"{PREBUILT}training/pytorch") for image in images)
        return "pytorch" if pytorch else "tensorflow"


class Section:
    """A mapping in the job with typed accessors; rejects unknown keys. `where` is "" for the job itself."""

    def __init__(self, values: object, where: str, known: tuple[str, ...]) -> None:
        self.where = where
        place = where or "a job"
        if values in (None, ""):
            values = {}
        if not isinstance(values, Mapping):
            raise UserError(f"{place} is not a mapping.", setting=place, value=values, allowed=", ".join(known))
        self.values = values
        for key in map(str, values):
            if key not in known:
                near = nearest(key, known)
                fix = f"write {near} instead of {key}" if near else f"remove {key}"
                raise UserError.unknown(f"{where or 'job'} field", key, known, setting=self.name(key), fix=fix)

    def name(self, key: str) -> str:
        """Return a field's dotted name."""
        return f"{self.where}.{key}" if self.where else key

    def text(self, key: str) -> str | None:
        """Return a text field; None if not set."""
        value = self.values.get(key)
        if value in (None, ""):
            return None
        if isinstance(value, bool):
            return str(value).lower()
        if not isinstance(value, str):
            raise self.wrong(key, "text")
        return value

    def number(self, key: str) -> int | None:
        """Return an integer field, which may be written as text."""
        text = self.text(key)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) <= 6):
            raise self.wrong(key, "a whole number")
        return None if text is None else int(text)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a field that is a list of strings."""
        value = self.values.get(key)
        if value in (None, ""):
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return tuple(value)

    def mapping(self, key: str) -> dict[str, object]:
        """Return a field that is a mapping of any values."""
        value = self.values.get(key) or {}
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a mapping")
        return dict(value)

    def section(self, key: str, known: tuple[str, ...]) -> Section:
        """Return a nested mapping."""
        return Section(self.values.get(key), self.name(key), known)

    def wrong(self, key: str, allowed: str) -> UserError:
        """Return the error for a field of the wrong type."""
        return UserError(
            f"{self.name(key)} is not {allowed}.",
            setting=self.name(key),
            value=str(self.values[key]),
            allowed=allowed,
            fix=f"correct {key}",
        )


def read_file(path: Path, setting: str, fix: str) -> str:
    """Return the text of a job file, which a setting names.

    Raises:
        UserError: It does not exist, or is not text.
    """
    if not path.expanduser().is_file():
        raise UserError(f"File {path} does not exist.", setting=setting, value=str(path), fix=fix)
    try:
        return path.expanduser().read_text()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not valid UTF-8.", setting=setting, value=str(path), fix=fix) from None


def parse_text(text: str, source: str) -> Mapping[str, object]:
    """Parse a YAML or JSON mapping; numbers stay text, so that 2.10 does not become 2.1.

    Raises:
        UserError: The text is neither.
    """
    if text.lstrip().startswith("{"):
        rejecting = functools.partial(_without_duplicates, source)
        try:
            values = json.loads(text, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=rejecting)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{source}, line {error.lineno} is not valid JSON: {error.msg}.", fix=f"correct {source}"
            ) from None
        except RecursionError:
            raise UserError(f"{source} is nested too deeply.", fix=f"correct {source}") from None
    else:
        values = load_yaml(text, source, typed=False)
    if not isinstance(values, Mapping):
        raise UserError(f"{source} is not a mapping.", allowed="trainingInput and its fields", fix=f"correct {source}")
    return values


def _without_duplicates(source: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise UserError(f"{source} sets {key} twice.", fix=f"remove one of the two in {source}")
    return dict(pairs)


def read_job(values: Mapping[str, object], flags: Mapping[str, str] | None = None) -> LegacyJob:
    """Return the job that a mapping describes: a whole job, or only the contents of `trainingInput`.

    Args:
        values: The mapping.
        flags: The flags that only gcloud used.

    Raises:
        UserError: A key is unknown, or a value has the wrong type.
    """
    values = in_camel_case(values)
    project = {"--project": str(values["project"])} if values.get("project") else {}  # of TFX, and of custom jobs
    custom = custom_jobs.is_custom_job(values)
    unread = tuple(custom_jobs.unread(values)) if custom else ()
    values = custom_jobs.legacy_of(values) if custom else {key: values[key] for key in values if key != "project"}
    flags = {**project, **(flags or {}), **({custom_jobs.POOLS: "true"} if custom else {})}
    wrapped = "trainingInput" in values or "jobId" in values
    outer = Section(
        values, "", ("jobId", "trainingInput", "labels", *ANSWER_KEYS) if wrapped else (*INPUT_KEYS, "labels")
    )
    inner = outer.section("trainingInput", INPUT_KEYS) if wrapped else outer
    training_input = Section(
        {key: inner.values[key] for key in inner.values if key != "labels"}, "trainingInput", INPUT_KEYS
    )
    labels = outer.values.get("labels") or {}
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise outer.wrong("labels", "a mapping of strings to strings")
    fields: JsonObject = {"jobId": outer.text("jobId"), **flags}
    for row in FIELDS:
        name, _, key = row.key.rpartition(".")
        section = training_input.section(name, SECTIONS[name]) if name else training_input
        read = {"texts": section.texts, "mapping": section.mapping}.get(row.kind, section.text)
        fields[row.key] = read(key)
    fields["scaleTier"] = (fields["scaleTier"] or "BASIC").upper().replace("-", "_")
    return LegacyJob(fields, {role: _replica(training_input, role) for role in ROLES}, dict(labels), unread)


def in_camel_case(values: Mapping[str, object]) -> dict[str, object]:
    """Return a body with the names of the REST API, also if it has those of Python's client."""

    def converted(value: object) -> object:
        if isinstance(value, Mapping):
            return in_camel_case(value)
        return [converted(element) for element in value] if isinstance(value, list) else value

    return {
        re.sub(r"_([a-z])", lambda match: match[1].upper(), str(key)): value if key == "labels" else converted(value)
        for key, value in values.items()
    }


def _replica(training_input: Section, role: str) -> LegacyReplica:
    config = training_input.section(f"{role}Config", REPLICA_KEYS)
    accelerator = config.section("acceleratorConfig", ("type", "count"))
    disk = config.section("diskConfig", ("bootDiskType", "bootDiskSizeGb"))
    kind = accelerator.text("type")
    count = 1 if role == "master" else training_input.number(f"{role}Count") or 0
    machine = training_input.text(f"{role}Type")
    return LegacyReplica(
        role=role,
        machine=machine,
        count=count if machine or role != "master" or config.values else 0,
        accelerator=kind.upper().replace("-", "_") if kind else None,
        accelerator_count=accelerator.number("count") or 0,
        image=config.text("imageUri"),
        tpu_version=config.text("tpuTfVersion"),
        disk_type=disk.text("bootDiskType"),
        disk_gb=disk.number("bootDiskSizeGb"),
        command=config.texts("containerCommand"),
        arguments=config.texts("containerArgs"),
    )
