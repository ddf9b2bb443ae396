"""Where the time of a training went, and whether the change that its trainer proposes saves some."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import asdict, dataclass

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.runs.continuing import OPTION
from slipway.pipelines.selection.selection import Row
from slipway.trainer import stages
from slipway.trainer.metrics.spent import COMPILING, FILE_NAME

# Steps that a try trains at most.
TRIED_STEPS = 200


@dataclass(frozen=True)
class Diagnosis:
    """The seconds of a training by activity, what its trainer said, and the setting that it proposes; None if none."""

    run_id: str
    seconds: dict[str, float]
    text: str
    change: str | None

    def as_dict(self) -> JsonObject:
        """Return it for machines."""
        return asdict(self)


def of_run(row: Row) -> Diagnosis:
    """Return the diagnosis of a run that has trained on this machine.

    Raises:
        UserError: It has not, or its program is a custom one, which measures nothing.
    """
    file = row.history_file.with_name(FILE_NAME)
    if not file.is_file():
        raise UserError(
            f"It is not known where the time of run {row.record.run_id} went: only Slipway's trainer records it, at "
            "the end of a training on this machine.",
            setting="RUN",
            value=f"{row.record.run_id} ({row.record.status})",
            fix="slipway list --where status=succeeded",
        )
    analysis = json.loads(file.read_bytes())
    option = re.search(OPTION, analysis["text"])
    _, change = shlex.split(option[0]) if option else (None, None)
    return Diagnosis(row.record.run_id, analysis["seconds"], analysis["text"], change)


def seconds_for(row: Row, examples: int) -> float:
    """Return how long a training of so many examples would take, compiled once and otherwise as fast as this run's."""
    seconds = of_run(row).seconds
    compiling = seconds.get(COMPILING, 0.0)
    return compiling + (sum(seconds.values()) - compiling) * examples / trained_examples(row)


def trained_examples(row: Row) -> int:
    """Return the number of examples on which a run has trained, counting repeated ones."""
    plan = row.outputs("plan_training")
    return int(row.outputs("train")["steps"] * plan["replicas"] * plan["batch_per_replica"])


def shortened(configuration: RunConfig) -> list[str]:
    """Return the overrides with which a training ends after at most `TRIED_STEPS` steps."""
    train = configuration.train
    if train.stages:
        return [f"train.stages={json.dumps(stages.shortened(train.stages, TRIED_STEPS))}"]
    return [f"train.steps={TRIED_STEPS}"]
