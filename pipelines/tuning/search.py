"""What a search tunes by, and the overrides of its trials."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any

from slipway.components.evaluate.settings import known
from slipway.components.train.tuning import ParameterSettings, SearchSettings, TuneSettings
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, no_section
from slipway.trainer.data.assignment import check_even_split
from slipway.trainer.tasks import TASKS

# What the trials share where all have the same machines.
SHARED = ("hardware", *(f"train.{name}" for name in ("engine", "module", "command", "image", "arguments", "processes")))


def settings_of(config: RunConfig) -> SearchSettings:
    """Return the search of a configuration: its section `tune`, with the metric and its direction.

    Raises:
        UserError: There is none, or the metric's direction is not known.
    """
    tune = config.section(TuneSettings)
    if tune is None:
        fix = "--set 'tune.parameters={train.learning_rate: {low: 0.0001, high: 0.1, scale: log}}'"
        raise no_section("tune", ", ".join(TuneSettings.model_fields), fix)
    metric = tune.metric or ("loss" if config.model is None else TASKS[config.task].metric)
    meant = known(metric)
    direction = tune.direction or (meant.direction if meant else None)
    if direction is None:
        raise UserError(
            f"It is not known whether higher or lower values of {metric} are better.",
            setting="tune.direction",
            value=None,
            allowed="maximize, minimize",
            fix="--set tune.direction=maximize",
        )
    fixed = {"metric": metric, "direction": direction, "seed": config.train.seed}
    return SearchSettings.model_validate({**tune.model_dump(), **fixed})


def extremes(parameters: dict[str, ParameterSettings]) -> Iterator[dict[str, Any]]:
    """Yield parameters at the ends of all ranges, also of those that apply with some choices only."""
    fixed: list[dict[str, Any]] = [{}]
    for parameter in parameters.values():
        if parameter.when:
            chosen: dict[str, Any] = {}
            names = list(parameter.when.items())
            for name, allowed in names:  # which grows by what those depend on
                chosen.setdefault(name, allowed[0])
                names += [item for item in parameters[name].when.items() if item[0] not in chosen]
            fixed.append(chosen)
    for values, end in itertools.product(fixed, (0, 1)):
        sampled: dict[str, Any] = {}
        for name, parameter in parameters.items():
            if parameter.applies(sampled):
                sampled[name] = values.get(name, parameter.ends[end])
        yield sampled


def overrides(values: dict[str, Any], arguments: Sequence[str]) -> list[str]:
    """Return the overrides that set parameters; options of a program follow its `arguments`."""
    options = [f"{name}={value}" for name, value in values.items() if name.startswith("--")]
    settings = [f"{name}={json.dumps(value)}" for name, value in values.items() if not name.startswith("--")]
    return [*settings, *([f"train.arguments={json.dumps([*arguments, *options])}"] if options else [])]


def check_same_machines(config: RunConfig, tune: SearchSettings, title: str) -> None:
    """Check the parameters of a search on a platform, by its title, where all trials have the same machines.

    A trial would fail after its start if its batches could not be divided among the devices.

    Raises:
        UserError: A parameter is of what the trials share, or a value of train.batch_size cannot be divided.
    """
    for name in tune.parameters:
        if name in SHARED:
            raise UserError(
                f"{name} cannot be tuned on {title}, where all trials have the same machines, image and program.",
                setting=f"tune.parameters.{name}",
                value=name,
                allowed="other settings of train and model, or options of a custom program",
                fix=f"a search for each {name}, or slipway tune on this machine",
            )
        if config.train.program is not None and not name.startswith("--"):
            raise UserError(
                f"{name} is a setting of Slipway's trainer; {config.train.program} receives options only.",
                setting=f"tune.parameters.{name}",
                value=name,
                allowed="options of the program, such as --learning-rate",
            )
    batches = tune.parameters.get("train.batch_size")
    if batches is None or config.train.program is not None:
        return
    hardware = config.training_hardware
    for value in batches.choices or batches.steps():
        train = type(config.train).model_validate({**config.train.model_dump(), "batch_size": value})
        check_even_split(train, hardware.hosts, max(1, hardware.accelerators_per_host))
