"""Parse an AI Platform Training job: YAML or JSON, with or without `trainingInput`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from slipway.core.errors import UserError, nearest
from slipway.core.yaml_loader import load_yaml

# Google's images for training on AI Platform.
PREBUILT = "gcr.io/cloud-ml-public/"
REPLICA_KEYS = ("acceleratorConfig", "imageUri", "diskConfig", "containerCommand", "containerArgs", "tpuTfVersion")
ROLES = ("master", "worker", "parameterServer", "evaluator")
INPUT_KEYS = (
    "scaleTier",
    *(f"{role}{part}" for role in ROLES for part in ("Type", "Config", "Count") if (role, part) != ("master", "Count")),
    "packageUris",
    "pythonModule",
    "args",
    "hyperparameters",
    "region",
    "jobDir",
    "runtimeVersion",
    "pythonVersion",
    "encryptionConfig",
    "scheduling",
    "network",
    "serviceAccount",
    "useChiefInTfConfig",
    "enableWebAccess",
)
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


@dataclass(frozen=True, kw_only=True)
class LegacyJob:
    """A parsed AI Platform Training job."""

    job_id: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    scale_tier: str = "BASIC"
    replicas: dict[str, LegacyReplica] = field(default_factory=dict)
    region: str | None = None
    job_dir: str | None = None
    runtime_version: str | None = None
    python_version: str | None = None
    package_uris: tuple[str, ...] = ()
    python_module: str | None = None
    arguments: tuple[str, ...] = ()
    hyperparameters: dict[str, object] = field(default_factory=dict)
    use_chief: str | None = None
    max_running_time: str | None = None
    max_wait_time: str | None = None
    priority: str | None = None
    network: str | None = None
    service_account: str | None = None
    kms_key: str | None = None
    web_access: str | None = None
    # Set only by gcloud flags.
    staging_bucket: str | None = None
    package_path: str | None = None
    project: str | None = None

    def replica(self, role: str) -> LegacyReplica:
        """Return one role's replicas; empty if the role is not set."""
        return self.replicas.get(role, LegacyReplica(role=role))

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


def parse_text(text: str, source: str) -> Mapping[str, object]:
    """Parse a YAML or JSON mapping; numbers stay text, so that 2.10 does not become 2.1.

    Raises:
        UserError: The text is neither.
    """
    if text.lstrip().startswith("{"):
        try:
            values = json.loads(
                text,
                parse_int=str,
                parse_float=str,
                parse_constant=str,
                object_pairs_hook=_without_duplicates(source),
            )
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


def _without_duplicates(source: str) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    """Return an object_pairs_hook that rejects duplicate keys."""

    def mapping(pairs: list[tuple[str, object]]) -> dict[str, object]:
        for key, count in Counter(key for key, _ in pairs).items():
            if count > 1:
                raise UserError(f"{source} sets {key} twice.", fix=f"remove one of the two in {source}")
        return dict(pairs)

    return mapping


def read_job(values: Mapping[str, object]) -> LegacyJob:
    """Return the job that a mapping describes: a whole job, or only the contents of `trainingInput`.

    Raises:
        UserError: A key is unknown, or a value has the wrong type.
    """
    wrapped = "trainingInput" in values or "jobId" in values
    outer = Section(
        values, "", ("jobId", "trainingInput", "labels", *ANSWER_KEYS) if wrapped else (*INPUT_KEYS, "labels")
    )
    inner = outer.section("trainingInput", INPUT_KEYS) if wrapped else outer
    given = Section({key: inner.values[key] for key in inner.values if key != "labels"}, "trainingInput", INPUT_KEYS)
    labels = outer.values.get("labels") or {}
    if not isinstance(labels, Mapping) or not all(isinstance(value, str) for value in labels.values()):
        raise outer.wrong("labels", "a mapping of strings to strings")
    scheduling = given.section("scheduling", ("maxRunningTime", "maxWaitTime", "priority"))
    hyperparameters = given.values.get("hyperparameters") or {}
    if not isinstance(hyperparameters, Mapping):
        raise given.wrong("hyperparameters", "a mapping")
    return LegacyJob(
        job_id=outer.text("jobId"),
        labels=dict(labels),
        scale_tier=(given.text("scaleTier") or "BASIC").upper().replace("-", "_"),
        replicas={role: _replica(given, role) for role in ROLES},
        region=given.text("region"),
        job_dir=given.text("jobDir"),
        runtime_version=given.text("runtimeVersion"),
        python_version=given.text("pythonVersion"),
        package_uris=given.texts("packageUris"),
        python_module=given.text("pythonModule"),
        arguments=given.texts("args"),
        hyperparameters=dict(hyperparameters),
        use_chief=given.text("useChiefInTfConfig"),
        max_running_time=scheduling.text("maxRunningTime"),
        max_wait_time=scheduling.text("maxWaitTime"),
        priority=scheduling.text("priority"),
        network=given.text("network"),
        service_account=given.text("serviceAccount"),
        kms_key=given.section("encryptionConfig", ("kmsKeyName",)).text("kmsKeyName"),
        web_access=given.text("enableWebAccess"),
    )


def _replica(given: Section, role: str) -> LegacyReplica:
    config = given.section(f"{role}Config", REPLICA_KEYS)
    accelerator = config.section("acceleratorConfig", ("type", "count"))
    disk = config.section("diskConfig", ("bootDiskType", "bootDiskSizeGb"))
    kind = accelerator.text("type")
    count = 1 if role == "master" else given.number(f"{role}Count") or 0
    machine = given.text(f"{role}Type")
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
