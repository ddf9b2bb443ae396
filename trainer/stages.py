"""Lengths of training, and stages (`train.stages`): parts of a run that train different layers, as in fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PositiveFloat, PositiveInt, model_validator

from slipway.core.errors import UserError, nearest
from slipway.trainer.settings import Settings
from slipway.trainer.weights import containers, matches

DURATIONS = ("epochs", "steps", "examples")
# The settings of `train` that set its length.
LENGTHS = (*DURATIONS, "stages")
EPOCHS = Field(default=None, description="Length in passes over the training split; may be a fraction.")
STEPS = Field(default=None, description="Length in steps.")
EXAMPLES = Field(default=None, description="Length in training examples; rounded up to whole steps.")
# The pattern of all layers.
ALL = ("*",)
_NAMED = 8  # layers, in a message


def with_setting(name: str) -> JsonValue:
    """Return the JSON Schema of a section in which the setting `name` is not null."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


class Duration(Settings):
    """A length of training: exactly one of epochs, steps and examples."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [with_setting(name) for name in DURATIONS]})

    epochs: PositiveFloat | None = EPOCHS
    steps: PositiveInt | None = STEPS
    examples: PositiveInt | None = EXAMPLES

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        check_one_length(self, DURATIONS)
        return self

    def in_steps(self, batch_size: int, steps_per_epoch: int) -> int:
        """Return `steps`, or the number of steps needed to process `examples` or `epochs`, rounded up; at least 1."""
        if self.steps is not None:
            return self.steps
        if self.examples is not None:
            return math.ceil(self.examples / batch_size)
        assert self.epochs is not None
        return max(1, math.ceil(round(self.epochs * steps_per_epoch, 6)))


class StageSettings(Duration):
    """A stage of the training: its length, learning rate and trainable layers. Its optimizer starts anew."""

    learning_rate: PositiveFloat | None = Field(
        default=None, description="Learning rate, or its peak if `train.schedule` changes it; null: that of `train`."
    )
    trainable: tuple[str, ...] = Field(
        default=ALL,
        min_length=1,
        description="Patterns of the names of layers to train, such as head or block_1?; a layer is also trained if "
        "its path or a model that contains it matches. Other layers are frozen, and so are those that the builder "
        "froze.",
    )


def check_one_length(settings: BaseModel, names: Sequence[str]) -> None:
    """Raise ValueError unless exactly one of the settings `names` is set."""
    chosen = [name for name in names if getattr(settings, name)]
    if len(chosen) != 1:
        listed = " and ".join(chosen) if chosen else "none"
        raise ValueError(f"set exactly one of {', '.join(names[:-1])} and {names[-1]}; got {listed}")


def shortened(settings: Sequence[StageSettings], steps: int) -> list[dict[str, object]]:
    """Return the stages with about `steps` steps together, and at least one each, as values of a configuration."""
    stage_steps = max(1, steps // len(settings))
    return [
        {**stage.model_dump(mode="json", exclude_defaults=True, exclude=set(DURATIONS)), "steps": stage_steps}
        for stage in settings
    ]


def check_patterns(settings: Sequence[StageSettings], layers: Mapping[str, bool]) -> None:
    """Check that every pattern of the stages matches a layer that can be trained.

    Args:
        settings: The stages.
        layers: For the path of each layer with variables, whether the builder left it trainable.

    Raises:
        UserError: A pattern matches none.
    """
    for number, stage in enumerate(settings):
        for pattern in stage.trainable:
            paths = [path for path in layers if matches(path, [pattern])]
            if pattern not in ALL and not any(layers[path] for path in paths):
                raise _matches_none(f"train.stages.{number}.trainable", stage, pattern, paths, layers)


def _matches_none(
    setting: str, stage: StageSettings, pattern: str, paths: Sequence[str], layers: Mapping[str, bool]
) -> UserError:
    left = [path for path, trainable in layers.items() if trainable]
    near = nearest(pattern, [name for path in left for name in (path.rpartition("/")[2], *containers(path))])
    problem, fix = f"No layer of the network matches {pattern!r}.", f"replace {pattern} with {near or 'a layer'}"
    if paths:
        problem, near = f"The builder froze all layers that match {pattern!r}.", None
        fix = "leave the layers trainable in the builder: stages freeze those that they do not name"
    return UserError(
        problem,
        setting=setting,
        value=list(stage.trainable),
        allowed=f"names of trainable layers: {', '.join(left[:_NAMED])}{', …' if len(left) > _NAMED else ''}",
        nearest=near,
        fix=fix,
    )
