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
from slipway.trainer.tasks import TASKS


def settings_of(config: RunConfig) -> SearchSettings:
    """Return the search of a configuration: its section `tune`, with the metric and its direction.

    Raises:
        UserError: There is none, or the metric's direction is not known.
    """
    tune = config.tune
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
    given = {"metric": metric, "direction": direction, "seed": config.train.seed}
    return SearchSettings.model_validate({**tune.model_dump(), **given})


def extremes(parameters: dict[str, ParameterSettings]) -> Iterator[dict[str, Any]]:
    """Yield parameters at the ends of all ranges, also of those that apply with some choices only."""
    fixed: list[dict[str, Any]] = [{}]
    for each in parameters.values():
        if each.when:
            chosen: dict[str, Any] = {}
            names = list(each.when.items())
            for name, allowed in names:  # which grows by what those depend on
                chosen.setdefault(name, allowed[0])
                names += [item for item in parameters[name].when.items() if item[0] not in chosen]
            fixed.append(chosen)
    for values, end in itertools.product(fixed, (0, 1)):
        found: dict[str, Any] = {}
        for name, each in parameters.items():
            if each.applies(found):
                found[name] = values.get(name, each.ends[end])
        yield found


def overrides(values: dict[str, Any], arguments: Sequence[str]) -> list[str]:
    """Return the overrides that set parameters; options of a program follow its `arguments`."""
    options = [f"{name}={value}" for name, value in values.items() if name.startswith("--")]
    settings = [f"{name}={json.dumps(value)}" for name, value in values.items() if not name.startswith("--")]
    return [*settings, *([f"train.arguments={json.dumps([*arguments, *options])}"] if options else [])]
