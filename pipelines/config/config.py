"""RunConfig: every setting of a run, from a YAML file and `--set key=value`, validated before anything starts."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from slipway.components.build_image.reference import check_pinned
from slipway.components.build_image.settings import BuildSettings, ContainerSettings
from slipway.components.cloud.connection import Connection, check_endpoints
from slipway.components.evaluate.gate import EvaluateSettings
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.register_model.registry import RegisterSettings
from slipway.core.errors import UserError, nearest
from slipway.core.yaml_loader import DEEPEST, NotYaml, load_yaml
from slipway.pipelines.config.errors import explain_validation
from slipway.pipelines.config.kubeflow import KubeflowSettings
from slipway.pipelines.hardware import Hardware
from slipway.pipelines.hardware import parse as parse_hardware
from slipway.trainer.config import ModelSettings, Settings, TrainSettings
from slipway.trainer.engines import table

DURATIONS = ("epochs", "steps", "examples")


class VertexSettings(Settings):
    """Settings for runs on Vertex AI. `bucket` is a single-region gs:// bucket in `region`.

    `image` is the container image of the steps and the trainer, by digest or by an immutable tag; if it is not set,
    images are built according to `build`. `serving_image` serves the SavedModel. `encryption_key` is the full resource
    name of a Cloud KMS key that encrypts the training job and the model; `labels` are attached to both. `endpoints`
    maps service names to host[:port], for services that are not reached at Google's public addresses (private access).

    `service_account` is the account that the run uses; by default, the project's default account. `network` is the VPC
    network to peer with, `experiment` the Vertex AI experiment that lists the run. With `failure_policy` fast, no new
    step starts after one has failed. `retries` is the number of retries for every step except train.

    `submitters` are the principals that may start runs (user:, group: or serviceAccount:); `slipway setup` grants them
    the roles. With `access` grant, the step setup_access creates what is missing; with verify it only checks.
    """

    project: str
    region: str = Field(pattern=r"^[a-z]+-[a-z]+\d+$")
    bucket: str = Field(pattern=r"^gs://[a-z0-9][a-z0-9._-]*[a-z0-9]$")
    image: str | None = None
    serving_image: str | None = None
    build: BuildSettings = BuildSettings()
    service_account: str | None = Field(default=None, pattern=r"^[^@\s/:]+@[^@\s/:]+$")
    submitters: list[Annotated[str, Field(pattern=r"^(user|group|serviceAccount):[^@\s]+@[^@\s]+$")]] = Field(
        default_factory=list
    )
    access: Literal["verify", "grant"] = "verify"
    network: str | None = Field(default=None, pattern=r"^projects/\d+/global/networks/[a-z]([-a-z0-9]*[a-z0-9])?$")
    experiment: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9-]{0,127}$")
    failure_policy: Literal["fast", "slow"] = "fast"
    retries: int = Field(default=1, ge=0, le=10)
    encryption_key: str | None = Field(
        default=None, pattern=r"^projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+$"
    )
    labels: dict[str, str] = Field(default_factory=dict)
    endpoints: dict[str, str] = Field(default_factory=dict)

    @field_validator("endpoints")
    @classmethod
    def _known_services(cls, endpoints: dict[str, str]) -> dict[str, str]:
        check_endpoints(endpoints)
        return endpoints

    @field_validator("labels")
    @classmethod
    def _labels_of_google(cls, labels: dict[str, str]) -> dict[str, str]:
        for key, value in labels.items():
            if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", key) or not re.fullmatch(r"[a-z0-9_-]{0,63}", value):
                raise UserError(
                    f"{key}: {value} cannot be a label.",
                    setting="vertex.labels",
                    value=f"{key}: {value}",
                    allowed="up to 63 lower-case letters, digits, dashes and underscores; a key begins with a letter",
                )
        return labels

    @field_validator("image", "serving_image")
    @classmethod
    def _never_moved(cls, image: str | None) -> str | None:
        return None if image is None else check_pinned(image)

    @property
    def image_repository(self) -> str:
        """The repository for built images: host/path."""
        repository = self.build.repository
        return repository if "/" in repository else f"{self.region}-docker.pkg.dev/{self.project}/{repository}"

    @property
    def connection(self) -> Connection:
        """The connection to Google's services for this project and region."""
        return Connection(self.project, self.region, self.endpoints)


class RunConfig(Settings):
    """One run: its data, model, training, evaluation, registration, and the hardware that trains.

    `model` is the network for Slipway's trainer; a custom training module (`train.module`) builds its network itself.
    `vertex` holds the settings for Vertex AI; `containers` those of the images for `--runner docker` on this machine.
    """

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$", max_length=40)
    hardware: str = "cpu"
    data: DataSettings
    model: ModelSettings | None = None
    train: TrainSettings
    evaluate: EvaluateSettings = EvaluateSettings()
    register_: RegisterSettings = Field(default=RegisterSettings(), alias="register")
    vertex: VertexSettings | None = None
    kubeflow: KubeflowSettings | None = None
    containers: ContainerSettings = ContainerSettings()

    @model_validator(mode="before")
    @classmethod
    def _canonical_hardware(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and isinstance(values.get("hardware"), str | Mapping):
            return {**values, "hardware": str(parse_hardware(values["hardware"]))}
        return values

    @model_validator(mode="after")
    def _one_model(self) -> RunConfig:
        if self.train.module is None and self.model is None:
            raise UserError(
                "The configuration has neither model.builder nor train.module.",
                setting="model.builder",
                value=None,
                allowed="an importable module:function; or set train.module to a custom training module",
                fix="--set model.builder=slipway.trainer.models.digits:build",
            )
        if self.train.module is not None and self.model is not None:
            raise UserError(
                f"model and train.module are both set; the custom module {self.train.module} builds its own network.",
                setting="model.builder",
                value=self.model.builder,
                allowed="model or train.module, not both",
                fix="remove the section model; pass arguments to the module with train.arguments",
            )
        return self

    @property
    def network(self) -> ModelSettings:
        """The network that Slipway's trainer trains; not with `train.module`."""
        assert self.model is not None
        return self.model

    @property
    def title(self) -> str:
        """A short title: model and data source."""
        return f"{self.model.builder if self.model else self.train.module} on {self.data.source}"

    @property
    def model_name(self) -> str:
        """The model's name in the registry."""
        return self.register_.model or self.name

    @functools.cached_property
    def parsed_hardware(self) -> Hardware:
        """The hardware as a typed choice, parsed once."""
        return parse_hardware(self.hardware)

    @property
    def readers(self) -> int:
        """Number of processes that read the prepared data set during training."""
        hardware = self.parsed_hardware
        return table.readers(self.train.engine, hardware.replicas, hardware.accelerators_per_replica)

    def as_yaml(self) -> str:
        """Return the resolved configuration as YAML, including defaults."""
        return yaml.safe_dump(self.model_dump(mode="json", by_alias=True, exclude_none=True), sort_keys=False)

    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of the resolved configuration."""
        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def load(path: Path, overrides: Iterable[str] = (), hardware: str | None = None) -> RunConfig:
    """Load the configuration in `path` and apply `overrides` ("train.batch_size=256") and `hardware`.

    Raises:
        UserError: The file is missing or not YAML, a key is unknown, or a value has the wrong type or is out of range.
    """
    overrides = list(overrides)
    for text in overrides:
        _key_and_value(text)  # before reading the file: the word after `--set KEY` may have been parsed as its path
    values = read_yaml(path)
    apply_overrides(values, overrides)
    if hardware is not None:
        values["hardware"] = hardware
    return validate(values, str(path), overrides)


def validate(values: Mapping[str, Any], where: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Validate `values` as a RunConfig; `where` names their source in errors, `overrides` are those from `--set`."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise explain_validation(RunConfig, error, where, values, overrides) from None


def vertex_of(config: RunConfig) -> VertexSettings:
    """Return the section `vertex` of a configuration.

    Raises:
        UserError: The configuration has none.
    """
    if config.vertex is not None:
        return config.vertex
    raise UserError(
        "The configuration has no section vertex.",
        setting="vertex",
        value=None,
        allowed="project, region and bucket",
        fix="--set vertex.project=PROJECT --set vertex.region=us-central1 --set vertex.bucket=gs://BUCKET",
    )


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping from a YAML file.

    Raises:
        UserError: The file is missing, not YAML, or not a mapping.
    """
    if not path.is_file():
        raise _no_configuration(path)
    try:
        values = load_yaml(path.read_text(), str(path))
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text.", fix="-c FILE, with the path of a YAML file") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} contains no settings.", allowed="a mapping, as in configs/digits.yaml")
    return values


def _no_configuration(path: Path) -> UserError:
    """Return the error for a missing configuration; it lists the run configurations that exist."""
    folders = dict.fromkeys([path.parent, Path(), Path("configs")])
    files = [found for folder in folders for found in sorted(folder.glob("*.y*ml")) if _is_run_configuration(found)]
    known = {str(found).removesuffix(found.suffix): str(found) for found in files}
    near = known.get(nearest(str(path).removesuffix(path.suffix), known) or "")
    near = near or (str(files[0]) if len(files) == 1 else None)
    return UserError(
        f"The configuration {path} {'is a folder' if path.is_dir() else 'does not exist'}.",
        setting="-c",
        value=str(path),
        allowed=", ".join(map(str, files)) or "the path of a run configuration, a YAML file",
        nearest=near,
        fix=f"-c {near}" if near else "-c FILE, with the path of your run configuration",
    )


def _is_run_configuration(path: Path) -> bool:
    """Return whether a file looks like a run configuration; compiled specs and schedules do not."""
    try:
        with path.open() as file:
            text = file.read(100_000)
    except (OSError, UnicodeDecodeError):
        return False
    return all(re.search(rf"^{section}:", text, re.MULTILINE) for section in ("data", "train"))


def _key_and_value(override: str) -> tuple[str, str]:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise UserError(
            f"--set requires key=value; got {override!r}.",
            setting="--set",
            value=override,
            fix=f"--set {key or 'KEY'}={value or 'VALUE'}, without spaces around =",
        )
    if key.count(".") > DEEPEST:
        raise UserError(f"--set {override[:40]}… nests more than {DEEPEST} levels deep.", setting="--set")
    return key, value


def apply_overrides(values: dict[str, Any], overrides: Iterable[str]) -> None:
    """Apply "dotted.key=value" overrides to `values` in place; values are parsed as YAML.

    An overridden duration replaces the file's, even if that has another unit.
    """
    parsed = [(text, *_key_and_value(text)) for text in overrides]
    keys = {key for _, key, _ in parsed}
    for text, key, value in parsed:
        *parents, last = key.split(".")
        target = values
        for depth, parent in enumerate(parents):
            child = target[parent] = {} if target.get(parent) is None else target[parent]
            if not isinstance(child, dict):
                name = ".".join(parents[: depth + 1])
                raise UserError(f"{name} is a single value, not a section.", setting="--set", value=text)
            target = child
        try:
            target[last] = load_yaml(value, f"--set {text}")
        except NotYaml:
            target[last] = value
        if parents[:1] == ["train"] and last in DURATIONS:
            for other in DURATIONS:
                if other != last and ".".join([*parents, other]) not in keys:
                    target.pop(other, None)
