"""The settings of a training job: what a worker is told, and the part of it that a run's configuration holds."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal, Self

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

# What Keras takes for AdamW where nothing is said.
ADAMW_WEIGHT_DECAY = 0.004
BUILDER_PATTERN = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"


class Settings(BaseModel):
    """Base of all settings: unknown keys, infinities and NaN are refused; values do not change.

    Untyped values are `Untyped`, which holds them to the same rule. As JSON, a number that is not finite would be
    `Infinity`, which the reader refuses, and never null, which switches a setting off.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="constants")


def _strict(value: Any) -> Any:
    json.dumps(value, allow_nan=False)  # read from JSON, a JsonValue may hold NaN
    return value


Untyped = Annotated[JsonValue, AfterValidator(_strict)]


class ModelSettings(Settings):
    """Which network: `builder` is an importable "module:function", called with `arguments`.

    The function takes `image_shape` (height, width, channels) and `classes` (how many), then `arguments` by name, and
    returns a keras.Model from float32 images in [0, 1], shape [batch, height, width, channels], to float logits of
    shape [batch, classes].
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
                f"{builder!r} does not name a function in a module.",
                setting="model.builder",
                value=builder,
                allowed="an importable module:function, such as slipway.trainer.models.digits:build",
                nearest=near,
                fix=f"--set model.builder={near}",
            )
        return builder


class CheckpointSettings(Settings):
    """When to save, by seconds and by steps (either, both or neither; the end of an epoch saves always)."""

    every_seconds: PositiveFloat | None = 60.0
    every_steps: PositiveInt | None = None
    keep: PositiveInt = 3


class RestartSettings(Settings):
    """What happens when a worker is killed or preempted: all are started again and go on from the last checkpoint.

    `at_most` is how often each worker may be the cause, on this machine (Vertex has five of its own); 0 for never.
    `backoff_seconds` is the first wait, doubled for each restart without a checkpoint in between. An error of the
    user's code is never tried again.
    """

    at_most: NonNegativeInt = 5
    backoff_seconds: NonNegativeFloat = 1.0


class AugmentSettings(Settings):
    """Random changes to training images, for each image anew in each step; all are off by default.

    `flip` exchanges left and right in half of them; `shift` moves them by up to so many pixels, up or down and left or
    right, with black coming in. Of pixels in [0, 1], `brightness` is the most that is added or taken away, and
    `contrast` the most by which their distance from the image's mean grows or shrinks, as a share of it.
    """

    flip: bool = False
    shift: int = Field(default=0, ge=0)
    brightness: float = Field(default=0.0, ge=0, le=1)
    contrast: float = Field(default=0.0, ge=0, le=1)

    @property
    def is_on(self) -> bool:
        """Whether anything is changed."""
        return bool(self.flip or self.shift or self.brightness or self.contrast)


class Duration(Settings):
    """How long: exactly one of epochs (passes over the training split, maybe a fraction of one), steps and examples."""

    epochs: PositiveFloat | None = None
    steps: PositiveInt | None = None
    examples: PositiveInt | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        _check_one_duration(self)
        return self

    def in_steps(self, batch_size: int, steps_per_epoch: int) -> int:
        """The fewest steps that see the asked-for examples or epochs, or the steps as given; at least 1."""
        if self.steps is not None:
            return self.steps
        if self.examples is not None:
            return math.ceil(self.examples / batch_size)
        assert self.epochs is not None
        return max(1, math.ceil(round(self.epochs * steps_per_epoch, 6)))


class ScheduleSettings(Settings):
    """How the learning rate changes; `train.learning_rate` is its peak. The formulas: `slipway.trainer.learning_rate`.

    `warmup`: it rises linearly to the peak over so long. Then `shape`, until the run's end: it stays (constant), falls
    to `final` along a line, half a cosine or an exponential curve, or (piecewise) is multiplied by `factor` (0.1 unless
    given) at each of `milestones`, counted from the run's start, and never falls below `final`. `final` is 0 unless
    given; the exponential curve needs one above 0.
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
                "A constant learning rate has no final one.", "schedule.final", self.final, f"with the shape {falling}",
                nearest=None, fix="--set train.schedule.shape=cosine",
            )  # fmt: skip
        if self.shape == "exponential" and not self.final:
            raise _contradiction(
                "An exponential curve needs a final learning rate above 0: it never reaches 0.",
                "schedule.final", self.final, "above 0, such as a hundredth of train.learning_rate",
                nearest=None, fix="--set train.schedule.final=VALUE, or train.schedule.shape=cosine, which ends in 0",
            )  # fmt: skip
        if (self.shape == "piecewise") != bool(self.milestones):
            raise _contradiction(
                "Milestones belong to a piecewise learning rate, and such a one needs them.",
                "schedule.milestones", [each.model_dump(exclude_none=True) for each in self.milestones],
                "one or more with the shape piecewise, none with another", nearest=None,
                fix="--set train.schedule.shape=piecewise --set train.schedule.milestones='[{epochs: 30}]'",
            )  # fmt: skip
        if self.shape != "piecewise" and self.factor is not None:
            raise _contradiction(
                f"A {self.shape} learning rate is not multiplied by anything.", "schedule.factor", self.factor,
                "with the shape piecewise", nearest=None, fix="--set train.schedule.shape=piecewise",
            )  # fmt: skip
        return self


class EarlyStopSettings(Settings):
    """When to end before the last step: after `patience` validations in a row without progress.

    Progress is that `train.monitor` is better than it was at the last progress by more than `minimum_change`.
    """

    patience: PositiveInt
    minimum_change: NonNegativeFloat = 0.0


class TrainSettings(Settings):
    """How to train. One of `epochs`, `steps` and `examples` says for how long.

    engine: What executes the training step.
    batch_size: The global one, a step's examples: the replicas share it.
    accumulation: In how many parts (micro-batches) a device works through its share of a step's batch, one after the
        other, for less memory; the step is the same.
    optimizer: adam, adamw or sgd.
    momentum, nesterov: Of sgd.
    weight_decay: Each step takes learning rate x weight_decay of every weight away (decoupled), biases and other
        variables of less than two dimensions left out. adamw's is 0.004 unless given; adam has none.
    clip_norm: Gradients whose global norm (over all variables and the global batch) is larger are scaled down to it.
    learning_rate: In every step, or its peak where `schedule` changes it.
    precision: What the network computes in; its variables, the loss and the optimizer are float32. mixed_float16 scales
        the loss against underflow. auto: see `slipway.trainer.engines.precision`.
    xla: Whether the step is compiled by XLA; auto: where it pays.
    class_weights: What an example's loss is multiplied by: a factor for each class that is named (1 for the others), or
        "balanced", inverse to the class's share of the training split and 1 on average. Validation is not weighted.
    seed: Of the weights, the data's order and all that is drawn at random.
    steps_per_call: How many steps run in one call of the engine; the number of steps is exact, whatever it is.
    monitor: The validation figure that `early_stop` and `export` go by.
    export: The weights that are exported: the last ones, or those of the epoch's end with the best `monitor`.
    profile_steps: So many steps are profiled for TensorBoard, soon after the start; 0: none.
    module: A module of your own, run as `python -m MODULE ARGUMENTS` in every replica in place of Slipway's trainer.
        No other setting of this section but `arguments` goes with it.
    """

    engine: Literal["tensorflow", "jax", "pytorch"] = "tensorflow"
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
                "Arguments are for a training module of your own, and there is none.",
                "arguments", " ".join(self.arguments), "together with train.module", nearest=None,
                fix="--set train.module=MODULE; the network's arguments are model.arguments",
            )  # fmt: skip
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            name = "momentum" if self.momentum else "nesterov"
            raise _contradiction(
                f"{self.optimizer} has a momentum of its own.", name, getattr(self, name), "with the optimizer sgd",
                nearest="sgd", fix=f"--set train.optimizer=sgd, or leave train.{name} out",
            )  # fmt: skip
        if self.nesterov and not self.momentum:
            raise _contradiction(
                "Nesterov's variant needs a momentum.", "momentum", self.momentum, "above 0 and below 1",
                nearest="0.9", fix="--set train.momentum=0.9",
            )  # fmt: skip
        if self.optimizer == "adam" and self.weight_decay:
            raise _contradiction(
                "adam has no weight decay; adamw is adam with one.", "weight_decay", self.weight_decay,
                "with the optimizers adamw and sgd", nearest="adamw", fix="--set train.optimizer=adamw",
            )  # fmt: skip
        final = self.schedule.final
        if final is not None and final >= self.learning_rate:
            raise _contradiction(
                "The learning rate is to fall, and its final value is not below its peak.", "schedule.final", final,
                f"below train.learning_rate = {self.learning_rate:g}", nearest=f"{self.learning_rate / 100:g}",
                fix=f"--set train.schedule.final={self.learning_rate / 100:g}",
            )  # fmt: skip
        return self

    def _check_nothing_else(self) -> None:
        """Raise UserError for a setting that a module of the user's own would never see."""
        for name, field in TrainSettings.model_fields.items():
            if name not in ("module", "arguments", "restarts") and getattr(self, name) != field.default:
                raise _contradiction(
                    f"train.{name} is for Slipway's own training loop; {self.module} takes its settings as arguments.",
                    name, getattr(self, name), "train.module, train.arguments and train.restarts only", nearest=None,
                    fix=f"take train.{name} out, and put it into train.arguments in the way that {self.module} knows",
                )  # fmt: skip

    @property
    def duration(self) -> Duration:
        """How long to train; not with `module`."""
        return Duration(epochs=self.epochs, steps=self.steps, examples=self.examples)

    @property
    def decay(self) -> float:
        """The weight decay that holds."""
        if self.weight_decay is not None:
            return self.weight_decay
        return ADAMW_WEIGHT_DECAY if self.optimizer == "adamw" else 0.0

    @property
    def optimizer_kind(self) -> str:
        """The optimizer by what it keeps for each weight: momentum makes sgd another one."""
        return f"{self.optimizer} with momentum" if self.momentum else self.optimizer

    @property
    def needs_validation(self) -> bool:
        """Whether something is decided by the validation split."""
        return self.early_stop is not None or self.export == "best"


def _check_one_duration(settings: Duration | TrainSettings) -> None:
    given = [name for name in ("epochs", "steps", "examples") if getattr(settings, name) is not None]
    if len(given) != 1:
        found = " and ".join(given) if given else "none"
        raise ValueError(f"exactly one of epochs, steps and examples says how long; found {found}")


def _contradiction(message: str, setting: str, value: Any, allowed: str, *, nearest: str | None, fix: str) -> UserError:
    """The error of a setting of the section `train` that does not go with another."""
    return UserError(message, setting=f"train.{setting}", value=value, allowed=allowed, nearest=nearest, fix=fix)


class Plan(Settings):
    """What plan_training worked out: the run's length and how a batch is shared.

    `steps` is the whole run's number of steps, `steps_per_epoch` that of one pass over the training split (its last,
    partial batch dropped), `batch_per_replica` the examples that one replica takes a step. A replica trains in as many
    `processes`, which share its examples.
    """

    replicas: PositiveInt
    batch_per_replica: PositiveInt
    steps_per_epoch: PositiveInt
    steps: PositiveInt
    processes: PositiveInt = 1

    @property
    def batch_per_process(self) -> int:
        """The examples that one process takes a step."""
        return self.batch_per_replica // self.processes


class JobConfig(Settings):
    """All that `python -m trainer --config JSON` is told; `data` is a prepared set's folder or gs:// URI."""

    data: str
    model: ModelSettings
    train: TrainSettings
    plan: Plan
