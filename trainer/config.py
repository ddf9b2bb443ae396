"""Settings of a training job: the worker's input and the model and train sections of a run's configuration."""

from __future__ import annotations

import math
import re
import shlex
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.trainer.augmentation import AugmentSettings
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.hooks import FUNCTION_PATTERN, IN_STEP, Function, Loss, MetricName
from slipway.trainer.optimizers import CUSTOM, OPTIMIZERS, WITH_MOMENTUM, with_momentum, with_weight_decay
from slipway.trainer.settings import Settings, Untyped
from slipway.trainer.stages import (
    DURATIONS,
    EPOCHS,
    EXAMPLES,
    LENGTHS,
    STEPS,
    Duration,
    StageSettings,
    check_one_length,
    with_setting,
)
from slipway.trainer.tasks import TaskMetric, ThresholdRule, is_named_loss
from slipway.trainer.weights import WeightsSettings

if TYPE_CHECKING:
    EngineName = str
    OptimizerName = str
else:  # at run time, the names in the tables: for validation, the JSON Schema and error messages
    EngineName = Literal[tuple(ENGINES)]
    OptimizerName = Literal[tuple(OPTIMIZERS)]

# The settings that name a custom program, and those that apply to it.
PROGRAM = ("module", "command", "image")
OF_PROGRAM = (*PROGRAM, "arguments", "processes", "restarts")
MODULE_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
# What stands for the seed in a program's arguments.
SEED = "$(SEED)"


class ModelSettings(Settings):
    """The network that Slipway's trainer trains.

    The builder accepts `image_shape` (height, width, channels), `classes` (the number of outputs) and `arguments` as
    keyword arguments. It returns a keras.Model that maps float32 images in [0, 1], shape [batch, height, width,
    channels], to floats, shape [batch, outputs]: logits, or the standardized target. For a data set with other inputs
    than one image, it accepts `inputs` (slipway.core.manifest.Input by name) and `outputs` instead, and its network
    receives a dict of inputs by name.
    """

    builder: str = Field(
        description="Importable function that builds the network, as module:function.",
        json_schema_extra={"pattern": f"^{FUNCTION_PATTERN}$"},
    )
    arguments: dict[str, Untyped] = Field(default={}, description="Keyword arguments of the builder.")
    weights: WeightsSettings | None = Field(
        default=None, description="Initial weights from a file; null: those that the builder's network has."
    )

    @field_validator("builder")
    @classmethod
    def _module_and_function(cls, builder: str) -> str:
        if re.fullmatch(FUNCTION_PATTERN, builder) is None:
            module = re.sub(r"\.py(?=:|$)", "", builder).strip("./").replace("/", ".")
            near = module if ":" in module else ":".join(module.rsplit(".", 1))
            near = near if re.fullmatch(FUNCTION_PATTERN, near) else "slipway.trainer.models.digits:build"
            raise UserError(
                f"{builder!r} is not of the form module:function.",
                setting="model.builder",
                value=builder,
                allowed="an importable module:function, such as slipway.trainer.models.digits:build",
                nearest=near,
            )
        if builder.startswith("__main__:"):
            raise UserError(
                f"{builder!r} is a function of this notebook or script; the run, in a process of its own, has no such "
                "module.",
                setting="model.builder",
                value=builder,
                allowed="a function of a module in the project, as module:function",
                fix=f"slipway.run(model={builder.partition(':')[2]}) in Python, which writes it to a module",
            )
        return builder


class CheckpointSettings(Settings):
    """How often to save checkpoints. A checkpoint is also saved at the end of every epoch."""

    every_seconds: PositiveFloat | None = Field(
        default=60.0, description="Seconds between checkpoints; null: only by `every_steps`."
    )
    every_steps: PositiveInt | None = Field(
        default=None, description="Steps between checkpoints; null: only by `every_seconds`."
    )
    keep: PositiveInt = Field(default=3, description="Number of checkpoints to keep; older ones are deleted.")


class RestartSettings(Settings):
    """Restarts after a worker is killed or preempted: all workers restart and resume from the last checkpoint.

    Errors raised by the user's code are never retried.
    """

    at_most: NonNegativeInt = Field(
        default=5,
        description="Maximum number of restarts that each worker may cause on this machine or Kubeflow; 0: none. "
        "Vertex AI allows five restarts per worker.",
    )
    backoff_seconds: NonNegativeFloat = Field(
        default=1.0,
        description="Delay before the first restart, in seconds; doubles after each restart that saved no checkpoint.",
    )


class ScheduleSettings(Settings):
    """Learning rate schedule; `train.learning_rate` is the peak. Formulas: `slipway.trainer.hyperparameters`."""

    shape: Literal["constant", "linear", "cosine", "exponential", "piecewise"] = Field(
        default="constant",
        description="Course of the rate from the end of the warm-up to the end of the run: constant, decay to `final` "
        "(linear, cosine: half a cosine, exponential), or piecewise: constant between `milestones`.",
    )
    warmup: Duration | None = Field(
        default=None, description="Length of the warm-up, in which the rate rises linearly to its peak; null: none."
    )
    final: NonNegativeFloat | None = Field(
        default=None,
        description="Learning rate at the end, below the peak; null: 0. Not for constant schedules; an exponential one "
        "requires a value above 0. A piecewise rate never falls below it.",
    )
    milestones: tuple[Duration, ...] = Field(
        default=(),
        description="Times at which a piecewise rate is multiplied by `factor`, counted from the start of the run.",
    )
    factor: float | None = Field(
        default=None, gt=0, lt=1, description="Factor of a piecewise rate at each milestone; null: 0.1."
    )

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
                "schedule.milestones", [milestone.model_dump(exclude_none=True) for milestone in self.milestones],
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
    """Early stopping: training ends when `train.monitor` no longer improves."""

    patience: PositiveInt = Field(
        description="Number of consecutive validations without improvement after which training ends."
    )
    minimum_change: NonNegativeFloat = Field(
        default=0.0, description="An improvement must beat the last one by more than this value of `train.monitor`."
    )


_WITH_STAGES: JsonValue = {"required": ["stages"], "properties": {"stages": {"minItems": 1}}}
# The JSON Schema of a custom program that is an image's entry point.
_IMAGE_ALONE: JsonValue = {
    "required": ["image"],
    "properties": {"image": {"not": {"type": "null"}}, "module": {"type": "null"}, "command": {"type": "null"}},
}


class TrainSettings(Settings):
    """How to train. Exactly one of `epochs`, `steps`, `examples` and `stages` sets the length.

    With a custom program (`module`, `command`, `image`), only these, `arguments`, `processes` and `restarts` may be
    set, and `seed` if $(SEED) is among the arguments.
    """

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [*map(with_setting, (*DURATIONS, "module", "command")), _WITH_STAGES, _IMAGE_ALONE]}
    )

    engine: EngineName = Field(default="tensorflow", description="Framework that executes the training step.")
    epochs: PositiveFloat | None = EPOCHS
    steps: PositiveInt | None = STEPS
    examples: PositiveInt | None = EXAMPLES
    stages: tuple[StageSettings, ...] = Field(
        default=(),
        description="Stages that train different layers, such as first the head and then the whole network; their sum "
        "is the length.",
    )
    batch_size: PositiveInt = Field(default=64, description="Global batch size: examples per step over all replicas.")
    accumulation: PositiveInt = Field(
        default=1,
        description="Micro-batches per device per step (gradient accumulation). Saves memory; the update is the same.",
    )
    loss: Loss | None = Field(
        default=None,
        description="Loss of each example: for the task regression mse (the usual one), mae, huber (squared within a "
        "standard deviation of the target, absolute beyond it) or quantile:Q, such as quantile:0.9; or a custom one, "
        "as module:function: (outputs, labels) -> [batch]. null: the task's.",
    )
    metrics: dict[MetricName, Function] = Field(
        default={},
        description="Custom validation metrics by name, as module:function: (outputs, labels) -> a number for each "
        "example, which is averaged.",
    )
    optimizer: OptimizerName | Function = Field(
        default="adam",
        description="Optimizer, or a function that returns one, as module:function: (learning_rate) -> Keras "
        "optimizer; on the engine pytorch, (parameters, learning_rate) -> torch optimizer.",
    )
    momentum: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description=f"Momentum of {' and '.join(with_momentum())}; other optimizers do not accept it.",
    )
    nesterov: bool = Field(default=False, description="Use Nesterov momentum; requires a `momentum` above 0.")
    weight_decay: NonNegativeFloat | None = Field(
        default=None,
        description=f"Decoupled weight decay of {' and '.join(with_weight_decay())}; other optimizers do not support "
        "it. Skips biases and other variables with fewer than two dimensions. null: "
        + ", ".join(f"{OPTIMIZERS[name].weight_decay:g} for {name}" for name in with_weight_decay())
        + ".",
    )
    clip_norm: PositiveFloat | None = Field(
        default=None,
        description="Largest global norm of the gradients, over all variables and the global batch; larger ones are "
        "scaled down to it. null: no clipping.",
    )
    learning_rate: PositiveFloat = Field(
        default=0.001, description="Learning rate, or its peak if `schedule` changes it."
    )
    schedule: ScheduleSettings = Field(default=ScheduleSettings(), description="Learning rate schedule.")
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = Field(
        default="auto",
        description="Compute precision of the network; variables, loss and optimizer are float32. mixed_float16 uses "
        "loss scaling. auto: mixed_bfloat16 on TPUs and Ampere or newer GPUs, mixed_float16 on Volta and Turing GPUs, "
        "float32 elsewhere.",
    )
    sharding: Literal["auto", "replicated", "fsdp"] = Field(
        default="auto",
        description="What each device holds of the variables and the optimizer's state: all of them (replicated), or "
        "an even part that is gathered when a layer is computed (fsdp, fully sharded data parallel), for networks that "
        "are larger than a device's memory. fsdp requires the engine jax or pytorch; auto: fsdp on these engines if "
        "variables, gradients and optimizer state do not fit a device.",
    )
    remat: bool = Field(
        default=False,
        description="Compute the network's activations again for the gradient, in segments, instead of keeping all of "
        "them until then (rematerialization, gradient checkpointing): a step takes less memory and up to a half "
        "longer. Engines tensorflow and pytorch: the segments are those of a network's graph or lists of modules.",
    )
    xla: bool | Literal["auto"] = Field(
        default="auto", description="Compile the training step with XLA; auto: where it is faster."
    )
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = Field(
        default=None,
        description="Factors for the loss of an example by class (1 for classes not listed), or balanced: inversely "
        "proportional to the class's frequency in the training split and 1 on average. Validation is not weighted. "
        "null: all classes have weight 1.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31, description="Seed for weights, data order and all random draws.")
    steps_per_call: PositiveInt = Field(
        default=50, description="Steps per call of the engine. Does not change the total number of steps."
    )
    augment: AugmentSettings = Field(
        default=AugmentSettings(), description="Random augmentation of the training images."
    )
    monitor: Literal["loss", TaskMetric] = Field(
        default="loss",
        description="Validation metric that `early_stop` and `export` use: loss, or the task's: accuracy "
        "(classification), label_accuracy (multilabel) or mae (regression).",
    )
    on_epoch_end: Function | None = Field(
        default=None,
        description="Function that is called after each validation, as module:function: (epoch, step, metrics, "
        "folder); if it returns True, training ends.",
    )
    early_stop: EarlyStopSettings | None = Field(default=None, description="Early stopping; null: off.")
    export: Literal["last", "best"] = Field(
        default="last",
        description="Weights to export: the last ones, or those with the best `monitor` at the end of an epoch.",
    )
    threshold: ThresholdRule | Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="With two classes, the probability of the second one from which it is predicted, as part of the "
        "exported model: a number, or the one with the highest F1 score (f1) or the highest difference of the true and "
        "the false positive rate (youden) on the validation split. null: the more probable class is predicted.",
    )
    profile_steps: NonNegativeInt = Field(
        default=0, description="Number of steps to profile for TensorBoard, shortly after the start; 0: none."
    )
    checkpoint: CheckpointSettings = Field(default=CheckpointSettings(), description="Checkpoints.")
    restarts: RestartSettings = Field(
        default=RestartSettings(), description="Restarts after a worker is killed or preempted."
    )
    module: str | None = Field(
        default=None,
        pattern=MODULE_PATTERN,
        description="Custom training module, run as `python -m MODULE ARGUMENTS` in every replica instead of Slipway's "
        "trainer; null: Slipway's trainer.",
    )
    command: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description="Custom program in any language, run as `COMMAND ARGUMENTS` in every replica instead of Slipway's "
        "trainer; null: `module`, or Slipway's trainer.",
    )
    image: str | None = Field(
        default=None,
        description="Container image of one's own, by digest or by an immutable tag, in which the replicas run "
        "`command` or `module`, or without these its entry point. null: Slipway's image.",
    )
    arguments: tuple[str, ...] = Field(
        default=(),
        description="Command-line arguments of the custom program. For `module`, without `image`, $(AIP_MODEL_DIR), "
        "$(AIP_CHECKPOINT_DIR) and $(AIP_TENSORBOARD_LOG_DIR) stand for the run's own folders; $(SEED) for `seed`.",
    )
    processes: PositiveInt | Literal["per_device"] = Field(
        default=1,
        description="Processes of `module` per replica, or per_device: one per GPU. Each has torchrun's variables for "
        "torch.distributed. Requires `module`.",
    )

    @field_validator("arguments", "command", mode="before")
    @classmethod
    def _as_in_a_shell(cls, values: object) -> object:
        """Return the arguments as texts: in YAML, [--epochs, 10] has a number."""
        if not isinstance(values, list | tuple):
            return values
        return [str(value) if type(value) in (int, float) and math.isfinite(value) else value for value in values]

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.program is not None:
            self._check_nothing_else()
            return self
        check_one_length(self, LENGTHS)
        if self.arguments:
            raise _contradiction(
                "train.arguments requires a custom program, and none is set.",
                "arguments", " ".join(self.arguments), "with train.module, train.command or train.image", nearest=None,
                fix="--set train.module=MODULE, or set model.arguments if they are for the network",
            )  # fmt: skip
        if self.processes != 1:
            raise _contradiction(
                "train.processes requires a custom training module; Slipway's engines choose their own processes.",
                "processes", self.processes, "together with train.module", nearest=None, fix="remove train.processes",
            )  # fmt: skip
        row = OPTIMIZERS.get(self.optimizer)
        if (self.momentum or self.nesterov) and not (row and row.momentum):
            name, optimizers = "momentum" if self.momentum else "nesterov", with_momentum()
            raise _contradiction(
                f"{self.optimizer} does not accept {name}.", name, getattr(self, name),
                f"with the optimizer {' or '.join(optimizers)}",
                nearest=optimizers[0], fix=f"--set train.optimizer={optimizers[0]}, or remove train.{name}",
            )  # fmt: skip
        if self.nesterov and not self.momentum:
            raise _contradiction(
                "Nesterov momentum needs a momentum above 0.", "momentum", self.momentum, "above 0 and below 1",
                nearest="0.9",
            )  # fmt: skip
        decaying = with_weight_decay()
        allowed = f"with the optimizers {', '.join(decaying)}"
        if row is None and self.weight_decay is not None:
            raise _contradiction(
                f"{self.optimizer} sets the weight decay of its optimizer itself.", "weight_decay", self.weight_decay,
                allowed, nearest=None, fix="set it in the function",
            )  # fmt: skip
        if row is not None and row.weight_decay is None and self.weight_decay:
            raise _contradiction(
                f"{self.optimizer} does not support weight decay; {decaying[0]} does.", "weight_decay",
                self.weight_decay, allowed, nearest=decaying[0], fix=f"--set train.optimizer={decaying[0]}",
            )  # fmt: skip
        final, peaks = self.schedule.final, [stage.learning_rate or self.learning_rate for stage in self.stages]
        peak = min(peaks, default=self.learning_rate)
        if final is not None and final >= peak:
            of = "the lowest learning_rate of train.stages" if self.stages else "train.learning_rate"
            raise _contradiction(
                "The final learning rate is not below the peak.", "schedule.final", final,
                f"below {of} = {peak:g}", nearest=f"{peak / 100:g}",
            )  # fmt: skip
        return self

    def _check_nothing_else(self) -> None:
        """Raise UserError for a setting that a custom program would never receive."""
        if self.module is not None and self.command is not None:
            raise _contradiction(
                "train.module and train.command are both set, but the replicas run one program.",
                "command", shlex.join(self.command), "train.module or train.command, not both", nearest=None,
                fix="remove train.module or train.command",
            )  # fmt: skip
        if self.module is not None and self.module.endswith(".py"):
            raise _contradiction(
                "train.module is the name of a module, not of its file.", "module", self.module,
                "a module, such as train or trainer.task", nearest=self.module.removesuffix(".py"),
            )  # fmt: skip
        if self.processes != 1 and (self.module is None or self.image is not None):
            raise _contradiction(
                "train.processes requires train.module in Slipway's image, whose launcher starts the processes.",
                "processes", self.processes, "1 with train.command and train.image", nearest="1",
                fix="remove train.processes, and start the processes in the program, such as with torchrun",
            )  # fmt: skip
        for name in self.changed():
            if name not in self._applied:
                raise _contradiction(
                    f"train.{name} applies only to Slipway's training loop; {self.program} receives train.arguments.",
                    name, getattr(self, name), "train.module, train.command, train.image, arguments, "
                    "processes and restarts only", nearest=None,
                    fix=f"remove train.{name}; if {self.program} has an option for it, add that to train.arguments",
                )  # fmt: skip

    @model_serializer(mode="wrap")
    def _as_applied(self, serialize: SerializerFunctionWrapHandler) -> JsonObject:
        """Return the settings as they are stored, sent and compared: a custom program has none of the trainer's."""
        values: JsonObject = serialize(self)
        if self.program is None:
            return values
        return {name: value for name, value in values.items() if name in self._applied}

    @property
    def functions(self) -> dict[str, str]:
        """The configured functions by setting, such as train.loss or train.metrics.NAME; see `hooks.HOOKS`."""
        functions = {
            "train.loss": None if is_named_loss(self.loss) else self.loss,
            "train.optimizer": self.optimizer if ":" in self.optimizer else None,
            "train.augment.function": self.augment.function,
            "train.on_epoch_end": self.on_epoch_end,
        }
        functions |= {f"train.metrics.{name}": function for name, function in self.metrics.items()}
        return {setting: function for setting, function in functions.items() if function is not None}

    @property
    def has_functions_in_step(self) -> bool:
        """Whether a training step calls a function of the user."""
        return any(setting in IN_STEP for setting in self.functions)

    @property
    def receives_seed(self) -> bool:
        """Whether a custom program receives the seed."""
        return any(SEED in argument for argument in self.arguments)

    @property
    def _applied(self) -> tuple[str, ...]:
        return (*OF_PROGRAM, "seed") if self.receives_seed else OF_PROGRAM

    @property
    def program(self) -> str | None:
        """The custom program: its module, its command, or the image whose entry point it is; None for Slipway's."""
        return self.module or (shlex.join(self.command) if self.command else self.image)

    @property
    def decay(self) -> float:
        """The effective weight decay."""
        row = OPTIMIZERS.get(self.optimizer)
        return (self.weight_decay if self.weight_decay is not None else row and row.weight_decay) or 0.0

    @property
    def optimizer_kind(self) -> str:
        """The optimizer's name; one with momentum is distinct, since it keeps one more slot per weight."""
        if self.optimizer not in OPTIMIZERS:
            return CUSTOM
        return self.optimizer + (WITH_MOMENTUM if self.momentum else "")

    @property
    def needs_validation(self) -> bool:
        """Whether early stopping or the export depends on the validation split."""
        return self.early_stop is not None or self.export == "best"


def _contradiction(
    message: str, setting: str, value: object, allowed: str, *, nearest: str | None, fix: str | None = None
) -> UserError:
    return UserError(message, setting=f"train.{setting}", value=value, allowed=allowed, nearest=nearest, fix=fix)


class Plan(Settings):
    """The output of plan_training: the run's length and how a batch is split."""

    replicas: PositiveInt = Field(description="Number of replicas of all worker pools.")
    batch_per_replica: PositiveInt = Field(
        description="Examples per replica and step, split evenly over the replica's processes."
    )
    steps_per_epoch: PositiveInt = Field(
        description="Steps of one pass over the training split; the last partial batch is dropped."
    )
    steps: PositiveInt = Field(description="Steps of the whole run.")
    processes: PositiveInt = Field(default=1, description="Processes per replica.")

    @property
    def batch_per_process(self) -> int:
        """Examples per process and step."""
        return self.batch_per_replica // self.processes


class JobConfig(Settings):
    """The input of `python -m slipway.trainer --config JSON`."""

    data: str = Field(description="Folder or gs:// URI of a prepared data set.")
    model: ModelSettings = Field(description="The network.")
    train: TrainSettings = Field(description="How to train.")
    plan: Plan = Field(description="The output of plan_training.")
