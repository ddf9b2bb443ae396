"""Settings of a trial on Vertex AI, which adds arguments such as --train.learning_rate=0.01 to the trainer's own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.core.paths import local_path
from slipway.trainer import checks
from slipway.trainer.config import JobConfig
from slipway.trainer.distributed import accelerators
from slipway.trainer.plan import divide
from slipway.trainer.stages import DURATIONS, LENGTHS

ARGUMENT = re.compile(r"--(?P<section>train|model)\.(?P<path>[^=]+)=(?P<text>.*)", re.DOTALL)


def value_of(text: str) -> Any:
    """Return the value that an argument has as text: JSON, or what is no JSON as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def text_of(value: Any) -> str:
    """Return the text from which `value_of` returns the value; most texts as they are."""
    return value if isinstance(value, str) and value_of(value) == value else json.dumps(value)


def overridden(config: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return a job's configuration, JSON, with overrides of its settings and the plan for them.

    Args:
        config: The job, as plan_training wrote it.
        arguments: --train.NAME=VALUE and --model.NAME=VALUE, by the dotted names of settings.
        environment: This process's environment, which names its accelerators.

    Raises:
        UserError: An argument is not valid, or the settings are not valid together.
    """
    values = json.loads(config)
    for argument in arguments:
        if (valid := ARGUMENT.fullmatch(argument)) is None:
            raise UserError(
                f"{argument} is not an argument of the trainer.",
                setting="arguments",
                value=argument,
                allowed="--config JSON, then --train.NAME=VALUE and --model.NAME=VALUE",
            )
        _set(values[valid["section"]], valid["path"].split("."), value_of(valid["text"]))
        if valid["section"] == "train" and valid["path"] in LENGTHS:  # the settings that it replaces
            values["train"] |= {name: None if name in DURATIONS else [] for name in LENGTHS if name != valid["path"]}
    job = JobConfig.model_validate(values)
    checks.refuse(job.train)
    planned = accelerators.planned(environment)
    devices = max(1, planned.count) if planned else 1
    plan = divide(job.plan.replicas, devices, manifests.read(local_path(job.data)), job.train)
    return job.model_copy(update={"plan": plan}).model_dump_json()


def _set(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *parents, last = path
    for name in parents:
        values[name] = dict(values.get(name) or {})
        values = values[name]
    values[last] = value
