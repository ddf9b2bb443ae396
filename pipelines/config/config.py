"""RunConfig: every setting of a run, from a YAML file and `--set key=value`, validated before anything starts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)

from slipway import extensions
from slipway.components.evaluate.settings import EvaluateSettings
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.register_model.registry import RegisterSettings
from slipway.core.errors import UserError
from slipway.core.idle import IDLE_VARIABLE
from slipway.core.manifest import TaskName
from slipway.core.values import JsonObject
from slipway.pipelines.config.budget import TIME_PATTERN, Budget, BudgetSettings, check_idle
from slipway.pipelines.config.errors import explain_validation
from slipway.pipelines.config.program import check_evaluation, check_program
from slipway.pipelines.config.values import read_values
from slipway.pipelines.hardware import Hardware, parse
from slipway.pipelines.hardware.grammar import KEYS, PATTERN, read_time
from slipway.serving.settings import ServeSettings
from slipway.trainer.checks import check_settings
from slipway.trainer.config import ModelSettings, TrainSettings
from slipway.trainer.settings import Settings

Section = TypeVar("Section", bound=BaseModel)
ALWAYS = "always"
# What stands for the cheapest hardware that keeps deadline and budget.
AUTO = "auto"
HARDWARE_EXAMPLES = ("cpu", "cpu*2", "t4x1", "l4x1", "l4x4*2", "a100x8+spot", "h100x8*2+flex", "tpu-v5e-2x4")


def _candidates(value: object) -> tuple[Hardware, ...]:
    """Return the hardware that a configuration lists, without repetitions; none for `AUTO`.

    Raises:
        UserError: None is listed, or Vertex AI would not accept one.
    """
    if value in (AUTO, ()):
        return ()
    choices = value if isinstance(value, list | tuple) else [value]
    if not choices:
        raise UserError("The list of hardware is empty.", setting="hardware", value=value, fix="--hardware cpu")
    return tuple(dict.fromkeys(map(parse, choices)))


def _written(candidates: tuple[Hardware, ...]) -> str | list[str]:
    """Return what a file has for the hardware: the text of one choice, or a list of several."""
    texts = [str(hardware) for hardware in candidates] or [AUTO]
    return texts[0] if len(texts) == 1 else texts


# The forms in a file: text, a mapping with Vertex AI's names, a list of these.
_HARDWARE_SCHEMA: dict[str, Any] = {
    "type": ["string", "object", "array"],
    "pattern": rf"^{AUTO}$|{PATTERN}",
    "properties": {key: {} for key in ("choice", *KEYS)},
    "additionalProperties": False,
    "items": {"type": ["string", "object"]},
    "minItems": 1,
    "examples": list(HARDWARE_EXAMPLES),
}
Candidates = Annotated[
    tuple[InstanceOf[Hardware], ...],
    BeforeValidator(_candidates),
    PlainSerializer(_written),
    WithJsonSchema(_HARDWARE_SCHEMA),
]


def _assembled(core: type[Section]) -> type[Section]:
    """Return the settings with the sections of all extensions, and their conditions."""
    conditions = extensions.conditions()
    about = "".join(f"; {name} is {condition.description}" for name, condition in conditions.items())
    when = Field(default=ALWAYS, description=f"When the run trains: {ALWAYS}{about}.")
    fields: dict[str, Any] = {"when": (Literal[ALWAYS, *conditions], when)}
    for row in extensions.sections():
        settings = extensions.load(row.settings)
        kind, default = (settings, settings()) if row.has_default else (settings | None, None)
        fields[row.name] = (kind, Field(default=default, description=row.description))
    return create_model(
        core.__name__,
        __base__=core,
        __module__=core.__module__,
        __doc__=core.__doc__,
        __cls_kwargs__={"defer_build": False},
        **fields,
    )


@_assembled
class RunConfig(Settings, defer_build=True):
    """One run: its data, model, training, evaluation and registration, and the hardware that trains."""

    _file: Path | None = PrivateAttr(default=None)
    _chosen: Hardware | None = PrivateAttr(default=None)
    _choice: JsonObject | None = PrivateAttr(default=None)
    name: str = Field(
        pattern=r"^[a-z][a-z0-9-]*$",
        max_length=40,
        description="Name of the configuration; run ids and the registered model's name start with it.",
    )
    hardware: Candidates = Field(
        default="cpu",
        validate_default=True,
        description="Training hardware, such as cpu, cpu*2, gpu, l4x4*2, a100x8+spot or tpu-v5e-2x4; or a mapping with "
        "Vertex AI's names. `slipway hardware` lists all choices. On Vertex AI also a list, from which a run takes the "
        "next one when there is no quota or capacity: [l4x4*2, a100x2*2+spot]. auto: such a list of the cheapest that "
        "keep `deadline` and `budget`, by an estimate.",
    )
    task: TaskName = Field(
        default="classification",
        description="What the network learns: one class per example, any number of labels per example, or a number.",
    )
    data: DataSettings | None = Field(
        default=None,
        description="The source of the examples and how they are stored. Required, except with a custom program; null: "
        "the program has its own data.",
    )
    model: ModelSettings | None = Field(
        default=None,
        description="The network that Slipway's trainer trains. Required, except with a custom program, which builds "
        "its own network.",
    )
    train: TrainSettings = Field(description="How to train.")
    evaluate: EvaluateSettings = Field(
        default=EvaluateSettings(), description="How to evaluate the model and when to promote it."
    )
    register_: RegisterSettings = Field(
        default=RegisterSettings(), alias="register", description="Where model versions are registered."
    )
    serve: ServeSettings = Field(default=ServeSettings(), description="How the registered model is served.")
    when: str = Field(default=ALWAYS, description="When the run trains.")
    deadline: str | None = Field(
        default=None,
        pattern=TIME_PATTERN,
        examples=["6h"],
        description="With `hardware: auto`, how long the training may take, such as 6h; null: any time.",
    )
    budget: Budget | None = Field(
        default=None, description="What the training may cost; a number is short for `dollars`; null: anything."
    )
    budget_per_month: float | None = Field(
        default=None,
        gt=0,
        description="The same of all trainings started from this folder in a calendar month (UTC): what those cost "
        "that have ended, and the worst case of the others; null: any.",
    )
    budget_label: str | None = Field(
        default=None,
        description="Name of a label in `vertex.labels` or `tpu.labels`: only trainings with its value count for "
        "`budget_per_month`; null: all.",
    )

    @model_validator(mode="after")
    def _one_program(self) -> RunConfig:
        check_program(self.train, self.model, self.data)
        check_idle(self.budget, self.train, self.hardware)
        check_evaluation(self.evaluate, self.train, self.task)
        if condition := extensions.conditions().get(self.when):
            extensions.load(condition.check)(self)
        if self.model is not None:
            check_settings(self.train, self.task)
        for row in extensions.sections():
            if row.check and getattr(self, row.name) is not None:
                extensions.load(row.check)(self)
        return self

    def section(self, settings: type[Section]) -> Section | None:
        """Return the extensions' section whose settings are of this class; None if the configuration has none."""
        sections = (getattr(self, row.name) for row in extensions.sections())
        return next((section for section in sections if isinstance(section, settings)), None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunConfig) and self.__dict__ == other.__dict__

    @property
    def dollars(self) -> float | None:
        """The maximum cost of the training in US dollars; None: any."""
        return self.budget.dollars if isinstance(self.budget, BudgetSettings) else self.budget

    def worker_pools(self) -> list[dict[str, Any]]:
        """Return the pools of the hardware that trains; of their containers, only how long they may be idle."""
        pools = self.training_hardware.worker_pools()
        if not isinstance(self.budget, BudgetSettings) or self.budget.idle is None:
            return pools
        container = {"env": [{"name": IDLE_VARIABLE, "value": str(self.budget.idle_seconds)}]}
        return [{**pool, "container_spec": container} if pool else {} for pool in pools]

    @property
    def file(self) -> Path | None:
        """The file that it was loaded from, which is no part of it: None if it was not."""
        return self._file

    @property
    def network(self) -> ModelSettings:
        """The network that Slipway's trainer trains; not with a custom program."""
        assert self.model is not None
        return self.model

    @property
    def prepared(self) -> DataSettings | None:
        """The settings of the data that Slipway prepares; None if a custom program reads its data itself."""
        return None if self.data is None or self.data.uri is not None else self.data

    @property
    def title(self) -> str:
        """A short title: what is trained."""
        return self.model.builder if self.model else str(self.train.program)

    @property
    def model_name(self) -> str:
        """The model's name in the registry."""
        return self.register_.model or self.name

    @property
    def training_hardware(self) -> Hardware:
        """The hardware that trains: of several candidates the chosen one, else the first.

        Raises:
            UserError: It is `AUTO`, and was not chosen yet.
        """
        if self._chosen is None and not self.hardware:
            raise UserError(
                "This command needs hardware, which the configuration leaves open.",
                setting="hardware",
                value=AUTO,
                allowed="one choice",
                fix="--hardware cpu, or slipway hardware --compare",
            )
        return self._chosen or self.hardware[0]

    @property
    def is_chosen(self) -> bool:
        """Whether one of the candidates and of the regions was chosen; see `on`."""
        return self._chosen is not None

    def on(self, hardware: Hardware, **sections: Settings) -> RunConfig:
        """Return the configuration of a run on one of the candidates, with other settings in these sections."""
        chosen = self.model_copy(update=sections)
        chosen._chosen = hardware
        return chosen

    @property
    def deadline_seconds(self) -> int | None:
        """How long the training may take, in seconds; None: any time."""
        return read_time(self.deadline) if self.deadline else None

    @property
    def choice(self) -> JsonObject | None:
        """Why this hardware was chosen, if it was left open; see `chosen_from`."""
        return self._choice

    def chosen_from(self, hardware: Iterable[Hardware], choice: JsonObject) -> RunConfig:
        """Return the configuration with the hardware that was chosen where it was left open, and why it was."""
        chosen = self.model_copy(update={"hardware": tuple(hardware)})
        chosen._choice = choice
        return chosen

    @property
    def readers(self) -> int:
        """Number of processes that read the prepared data set during training, on the largest listed hardware."""
        from slipway.trainer.engines import table

        engine = self.train.engine
        return max(table.readers(engine, choice.hosts, choice.accelerators_per_host) for choice in self.hardware)

    def as_yaml(self) -> str:
        """Return the resolved configuration as YAML, including defaults but those that are null."""
        values = self.model_dump(mode="json", by_alias=True)
        _remove_null_defaults(self, values)
        return yaml.safe_dump(values, sort_keys=False)

    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) of the resolved configuration."""
        import hashlib

        return hashlib.sha256(json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def _remove_null_defaults(settings: BaseModel, values: dict[str, object]) -> None:
    """Remove the values from a dump of `settings` that are null by default; those that were set to null stay."""
    for name, field in type(settings).model_fields.items():
        value, key = getattr(settings, name), field.alias or name
        if value is None and field.default is None:
            values.pop(key, None)
        elif isinstance(value, BaseModel) and key in values:
            nested = values[key]
            assert isinstance(nested, dict)
            _remove_null_defaults(value, nested)


def load(path: Path, overrides: Iterable[str] = (), hardware: str | None = None) -> RunConfig:
    """Load the configuration in `path` and apply `overrides` ("train.batch_size=256") and `hardware`.

    Raises:
        UserError: The file is missing or not YAML, a key is unknown, or a value has the wrong type or is out of range.
    """
    overrides = list(overrides)
    config = validate(read_values(path, overrides, hardware), str(path), overrides)
    config._file = path
    return config


def load_data(path: Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Load a configuration as `load` does, of which only the data is used: it may have no name, model and training.

    Raises:
        UserError: As of `load`.
    """
    overrides = list(overrides)
    values = read_values(path, overrides, None)
    needed: dict[str, object] = {"name": "data", "train": {"epochs": 1, "batch_size": 1}}
    if "train" not in values:
        needed["model"] = {"builder": "model:build"}
    return validate({**needed, **values}, str(path), overrides)


def validate(values: Mapping[str, object], where: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Validate `values` as a RunConfig; `where` names their source in errors, `overrides` are those from `--set`."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise explain_validation(RunConfig, error, where, values, overrides) from None


def no_section(name: str, keys: str, fix: str) -> UserError:
    """Return the error for a configuration without the section that a platform needs, with its required keys."""
    return UserError(f"The configuration has no section {name}.", setting=name, value=None, allowed=keys, fix=fix)
