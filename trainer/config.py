"""The settings of a training job: what a worker is told, and the part of it that a run's configuration holds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)


class Settings(BaseModel):
    """Base of all settings: unknown keys are refused, values don't change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSettings(Settings):
    """Which network: `builder` is an importable "module:function", called with `arguments`.

    The function takes `image_shape` (height, width, channels) and `classes` (how many), then `arguments` by name, and
    returns a keras.Model from float32 images in [0, 1], shape [batch, height, width, channels], to float logits of
    shape [batch, classes].
    """

    builder: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    arguments: dict[str, Any] = {}


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


class TrainSettings(Settings):
    """How to train. One of `epochs`, `steps` and `examples` says for how long.

    `batch_size` is the global one: the replicas share it. `steps_per_call` is how many steps run in one call of the
    engine; the number of steps is exact, whatever it is.
    """

    engine: Literal["tensorflow"] = "tensorflow"
    epochs: PositiveFloat | None = None
    steps: PositiveInt | None = None
    examples: PositiveInt | None = None
    batch_size: PositiveInt = 64
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    learning_rate: PositiveFloat = 0.001
    seed: int = Field(default=0, ge=0, lt=2**31)
    steps_per_call: PositiveInt = 50
    augment: AugmentSettings = AugmentSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    restarts: RestartSettings = RestartSettings()

    @model_validator(mode="after")
    def _one_duration(self) -> TrainSettings:
        given = [name for name in ("epochs", "steps", "examples") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise ValueError(f"exactly one of epochs, steps and examples says how long to train; found {found}")
        return self


class Plan(Settings):
    """What plan_training worked out: the run's length and how a batch is shared.

    `steps` is the whole run's number of steps, `steps_per_epoch` that of one pass over the training split (its last,
    partial batch dropped), `batch_per_replica` the examples that one replica takes a step.
    """

    replicas: PositiveInt
    batch_per_replica: PositiveInt
    steps_per_epoch: PositiveInt
    steps: PositiveInt


class JobConfig(Settings):
    """All that `python -m trainer --config JSON` is told; `data` is a prepared set's folder or gs:// URI."""

    data: str
    model: ModelSettings
    train: TrainSettings
    plan: Plan
