"""Settings of a training job: the worker's input and the model and train sections of a run's configuration."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from slipway.core.errors import UserError
from slipway.trainer.engines.table import ENGINES

if TYPE_CHECKING:
    EngineName = str
else:  # at run time, the names in the table: for validation, the JSON Schema and error messages
    EngineName = Literal[tuple(ENGINES)]

# Keras's default for AdamW.
ADAMW_WEIGHT_DECAY = 0.004
BUILDER_PATTERN = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


class Settings(BaseModel):
    """Base class of all settings: immutable; rejects unknown keys, infinities and NaN.

    Untyped values are declared as `Untyped`, which applies the same rule. A number that is not finite is serialized as
    `Infinity`, which the reader rejects, rather than as null, which would turn the setting off.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants")


def _strict(value: Any) -> Any:
    json.dumps(value, allow_nan=False)  # a JsonValue read from JSON can contain NaN
    return value


Untyped = Annotated[JsonValue, AfterValidator(_strict)]


class ModelSettings(Settings):
    """The network: `builder` is an importable "module:function", called with `arguments`.

    The function accepts `image_shape` (height, width, channels), `classes` (the number of classes) and `arguments` as
    keyword arguments. It returns a keras.Model that maps float32 images in [0, 1], shape [batch, height, width,
    channels], to float logits, shape [batch, classes].
    """

    builder: str
    arguments: dict[str, Untyped] = {}

    @field_validator("builder")
    @classmethod
    def _module_and_function(cls, builder: str) -> str:
        if re.fullmatch(BUILDER_PATTERN, builder) is None:
            module = re.sub(r"\.py(?=:|$)", "", builder).strip("./").replace("/", ".")
            near = module if ":" in module else ":".join(module.rsplit(".", 1))
            near = near if re.fullmatch(BUILDER_PATTERN, near) else "slipway.trainer.models.digits:build"
            raise UserError(
                f"{builder!r} is not of the form module:function.",
                setting="model.builder",
                value=builder,
                allowed="an importable module:function, such as slipway.trainer.models.digits:build",
                nearest=near,
                fix=f"--set model.builder={near}",
            )
        return builder


class CheckpointSettings(Settings):
    """How often to save, in seconds, in steps, or both. A checkpoint is also saved at the end of every epoch."""

    every_seconds: PositiveFloat | None = 60.0
    every_steps: PositiveInt | None = None
    keep: PositiveInt = 3


class RestartSettings(Settings):
    """Restarts after a worker is killed or preempted: all workers restart and resume from the last checkpoint.

    `at_most` is the maximum number of restarts that each worker may cause on a local run (Vertex AI allows five of its
    own); 0 turns restarts off. `backoff_seconds` is the first delay; it doubles with each restart that saved no
    checkpoint. Errors raised by the user's code are never retried.
    """

    at_most: NonNegativeInt = 5
    backoff_seconds: NonNegativeFloat = 1.0


class AugmentSettings(Settings):
    """Random augmentation of training images, drawn for each image in each step; everything is off by default.

    `flip` mirrors half of the images horizontally. `shift` moves them by up to that many pixels vertically and
    horizontally and fills with black. `brightness` is the largest value added to or subtracted from pixels in [0, 1].
    `contrast` c multiplies each pixel's distance from the image's mean by a factor between 1 - c and 1 + c.
    """

    flip: bool = False
    shift: int = Field(default=0, ge=0)
    brightness: float = Field(default=0.0, ge=0, le=1)
    contrast: float = Field(default=0.0, ge=0, le=1)

    @property
    def is_on(self) -> bool:
        """Whether any augmentation is on."""
        return bool(self.flip or self.shift or self.brightness or self.contrast)


class Duration(Settings):
    """A length of training: exactly one of epochs (may be a fraction), steps and examples."""

    epochs: PositiveFloat | None = None
    steps: PositiveInt | None = None
    examples: PositiveInt | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        _check_one_duration(self)
        return self

    def in_steps(self, batch_size: int, steps_per_epoch: int) -> int:
        """Return `steps`, or the number of steps needed to process `examples` or `epochs`, rounded up; at least 1."""
        if self.steps is not None:
            return self.steps
        if self.examples is not None:
            return math.ceil(self.examples / batch_size)
        assert self.epochs is not None
        return max(1, math.ceil(round(self.epochs * steps_per_epoch, 6)))


class ScheduleSettings(Settings):
    """Learning rate schedule; `train.learning_rate` is the peak. Formulas: `slipway.trainer.hyperparameters`.

    During `warmup` the rate rises linearly to the peak. From then until the end of the run it follows `shape`: it stays
    constant, or decays to `final` along a line, half a cosine or an exponential curve. A piecewise rate is multiplied
    by `factor` (default 0.1) at each of `milestones`, counted from the start of the run, and never falls below `final`.
    `final` defaults to 0; an exponential schedule requires a value above 0.
    """

    shape: Literal["constant", "linear", "cosine", "exponential", "piecewise"] = "constant"
    warmup: Duration | None = None
    final: NonNegativeFloat | None = None
    milestones: tuple[Duration, ...] = ()
    factor: float | None = Field(default=None, gt=0, lt=1)

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.shape == "constant" and self.final is not None:
            falling = "linear, cosine, exponential or piecewise"
            raise _contradiction(
                "A constant schedule has no final rate.", "schedule.final", self.final, f"with the shape {falling}",
                nearest=None, fix="--set train.schedule.shape=cosine",
            )  # fmt: skip
        if self.shape == "exponential" and not self.final:
            raise _contradiction(
                "An exponential schedule needs a final learning rate above 0, because it never reaches 0.",
                "schedule.final", self.final, "above 0, such as a hundredth of train.learning_rate",
                nearest=None, fix="--set train.schedule.final=VALUE, or train.schedule.shape=cosine, which ends at 0",
            )  # fmt: skip
        if (self.shape == "piecewise") != bool(self.milestones):
            raise _contradiction(
                "A piecewise schedule needs milestones, and no other shape accepts them.",
                "schedule.milestones", [each.model_dump(exclude_none=True) for each in self.milestones],
                "one or more with the shape piecewise, none with other shapes", nearest=None,
                fix="--set train.schedule.shape=piecewise --set train.schedule.milestones='[{epochs: 30}]'",
            )  # fmt: skip
        if self.shape != "piecewise" and self.factor is not None:
            raise _contradiction(
                f"A {self.shape} schedule has no factor.", "schedule.factor", self.factor,
                "with the shape piecewise", nearest=None, fix="--set train.schedule.shape=piecewise",
            )  # fmt: skip
        return self


class EarlyStopSettings(Settings):
    """Early stopping: training ends after `patience` consecutive validations without improvement.

    An improvement is a `train.monitor` value that beats the last improvement by more than `minimum_change`.
    """

    patience: PositiveInt
    minimum_change: NonNegativeFloat = 0.0


class TrainSettings(Settings):
    """How to train. Exactly one of `epochs`, `steps` and `examples` sets the length.

    engine: The framework that executes the training step.
    batch_size: Global batch size: examples per step over all replicas.
    accumulation: Micro-batches per device per step (gradient accumulation). Saves memory; the update is the same.
    optimizer: adam, adamw or sgd.
    momentum, nesterov: For sgd only.
    weight_decay: Decoupled weight decay; skips biases and other variables with fewer than two dimensions. The default
        for adamw is 0.004; adam does not support it.
    clip_norm: Gradients with a larger global norm (over all variables and the global batch) are scaled down to it.
    learning_rate: The learning rate, or its peak if `schedule` changes it.
    precision: Compute precision of the network; variables, loss and optimizer are float32. mixed_float16 uses loss
        scaling. auto: see `slipway.trainer.hyperparameters`.
    xla: Whether XLA compiles the training step; auto: where it is faster.
    class_weights: Factors for the loss of an example by class (1 for classes not listed), or "balanced": inversely
        proportional to the class's frequency in the training split and 1 on average. Validation is not weighted.
    seed: Seed for the weights, the order of the data and all random draws.
    steps_per_call: Steps per call of the engine. Does not change the total number of steps.
    monitor: The validation metric that `early_stop` and `export` use.
    export: The weights to export: the last ones, or those with the best `monitor` at the end of an epoch.
    profile_steps: Number of steps to profile for TensorBoard, shortly after the start; 0: none.
    module: A custom training module, run as `python -m MODULE ARGUMENTS` in every replica instead of Slipway's trainer.
        Of this section's other settings, only `arguments` and `restarts` may be set with it.
    """

    engine: EngineName = "tensorflow"
    epochs: PositiveFloat | None = None
    steps: PositiveInt | None = None
    examples: PositiveInt | None = None
    batch_size: PositiveInt = 64
    accumulation: PositiveInt = 1
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    momentum: float = Field(default=0.0, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: NonNegativeFloat | None = None
    clip_norm: PositiveFloat | None = None
    learning_rate: PositiveFloat = 0.001
    schedule: ScheduleSettings = ScheduleSettings()
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = "auto"
    xla: bool | Literal["auto"] = "auto"
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    seed: int = Field(default=0, ge=0, lt=2**31)
    steps_per_call: PositiveInt = 50
    augment: AugmentSettings = AugmentSettings()
    monitor: Literal["loss", "accuracy"] = "loss"
    early_stop: EarlyStopSettings | None = None
    export: Literal["last", "best"] = "last"
    profile_steps: int = Field(default=0, ge=0)
    checkpoint: CheckpointSettings = CheckpointSettings()
    restarts: RestartSettings = RestartSettings()
    module: str | None = Field(default=None, pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    arguments: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.module is not None:
            self._check_nothing_else()
            return self
        _check_one_duration(self)
        if self.arguments:
            raise _contradiction(
                "train.arguments requires a custom training module, and none is set.",
                "arguments", " ".join(self.arguments), "together with train.module", nearest=None,
                fix="--set train.module=MODULE, or set model.arguments if they are for the network",
            )  # fmt: skip
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            name = "momentum" if self.momentum else "nesterov"
            raise _contradiction(
                f"{self.optimizer} does not accept {name}.", name, getattr(self, name), "with the optimizer sgd",
                nearest="sgd", fix=f"--set train.optimizer=sgd, or remove train.{name}",
            )  # fmt: skip
        if self.nesterov and not self.momentum:
            raise _contradiction(
                "Nesterov momentum needs a momentum above 0.", "momentum", self.momentum, "above 0 and below 1",
                nearest="0.9", fix="--set train.momentum=0.9",
            )  # fmt: skip
        if self.optimizer == "adam" and self.weight_decay:
            raise _contradiction(
                "adam does not support weight decay; adamw does.", "weight_decay", self.weight_decay,
                "with the optimizers adamw and sgd", nearest="adamw", fix="--set train.optimizer=adamw",
            )  # fmt: skip
        final = self.schedule.final
        if final is not None and final >= self.learning_rate:
            raise _contradiction(
                "The final learning rate is not below the peak.", "schedule.final", final,
                f"below train.learning_rate = {self.learning_rate:g}", nearest=f"{self.learning_rate / 100:g}",
                fix=f"--set train.schedule.final={self.learning_rate / 100:g}",
            )  # fmt: skip
        return self

    def _check_nothing_else(self) -> None:
        """Raise UserError for a setting that a custom training module would never receive."""
        for name, field in TrainSettings.model_fields.items():
            if name not in ("module", "arguments", "restarts") and getattr(self, name) != field.default:
                raise _contradiction(
                    f"train.{name} applies only to Slipway's training loop; {self.module} receives train.arguments.",
                    name, getattr(self, name), "train.module, train.arguments and train.restarts only", nearest=None,
                    fix=f"remove train.{name}; if {self.module} has an option for it, add that to train.arguments",
                )  # fmt: skip

    @property
    def duration(self) -> Duration:
        """The length of the training; not valid with `module`."""
        return Duration(epochs=self.epochs, steps=self.steps, examples=self.examples)

    @property
    def decay(self) -> float:
        """The effective weight decay."""
        if self.weight_decay is not None:
            return self.weight_decay
        return ADAMW_WEIGHT_DECAY if self.optimizer == "adamw" else 0.0

    @property
    def optimizer_kind(self) -> str:
        """The optimizer's name; sgd with momentum is distinct, since it keeps a slot per weight."""
        return f"{self.optimizer} with momentum" if self.momentum else self.optimizer

    @property
    def needs_validation(self) -> bool:
        """Whether early stopping or the export depends on the validation split."""
        return self.early_stop is not None or self.export == "best"


def _check_one_duration(settings: Duration | TrainSettings) -> None:
    given = [name for name in ("epochs", "steps", "examples") if getattr(settings, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise ValueError(f"set exactly one of epochs, steps and examples; got {found}")


def _contradiction(message: str, setting: str, value: Any, allowed: str, *, nearest: str | None, fix: str) -> UserError:
    """Return the error for a `train` setting that conflicts with another one."""
    return UserError(message, setting=f"train.{setting}", value=value, allowed=allowed, nearest=nearest, fix=fix)


class Plan(Settings):
    """The output of plan_training: the run's length and how a batch is split.

    `steps` is the number of steps of the whole run, `steps_per_epoch` that of one pass over the training split (the
    last partial batch is dropped). `batch_per_replica` is the number of examples per replica and step, split evenly
    over the replica's `processes`.
    """

    replicas: PositiveInt
    batch_per_replica: PositiveInt
    steps_per_epoch: PositiveInt
    steps: PositiveInt
    processes: PositiveInt = 1

    @property
    def batch_per_process(self) -> int:
        """Examples per process and step."""
        return self.batch_per_replica // self.processes


class JobConfig(Settings):
    """The input of `python -m trainer --config JSON`; `data` is a prepared data set's folder or gs:// URI."""

    data: str
    model: ModelSettings
    train: TrainSettings
    plan: Plan
