"""Checks of a configuration's custom program: what trains, and the data that it needs."""

from __future__ import annotations

from slipway.components.evaluate.settings import EvaluateSettings
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError, nearest
from slipway.core.image_reference import check_pinned
from slipway.core.manifest import TaskName
from slipway.trainer.config import ModelSettings, TrainSettings
from slipway.trainer.tasks import TASKS


def check_evaluation(evaluation: EvaluateSettings, train: TrainSettings, task: TaskName) -> None:
    """Check that Slipway's evaluation, if it is certain to evaluate the model, has the gate's metric.

    Raises:
        UserError: It does not have it, or the limit is not for this metric.
    """
    gate, known = evaluation.gate.of(task), TASKS[task].metrics
    if train.program is None and evaluation.module is None and gate.name not in known:
        near = nearest(gate.name, known)
        tasks = [name for name, row in TASKS.items() if gate.name in row.metrics]
        fixes = [f"--set evaluate.gate.metric={near}"] if near else []
        raise UserError(
            f"The task {task} has no metric {gate.name!r}.",
            setting="evaluate.gate.metric",
            value=gate.name,
            allowed=", ".join(known),
            nearest=near,
            fix="; or ".join([*fixes, *(f"--set task={name}" for name in tasks)]) or "--set evaluate.gate.metric=null",
        )


def check_program(train: TrainSettings, model: ModelSettings | None, data: DataSettings | None) -> None:
    """Check that exactly one network or program trains, and that it has the data that it needs.

    Raises:
        UserError: It does not.
    """
    program = train.program
    if program is None and model is None:
        raise UserError(
            "The configuration has neither model.builder nor a custom program.",
            setting="model.builder",
            value=None,
            allowed="an importable module:function; or a custom program: train.module, train.command or train.image",
            fix="--set model.builder=slipway.trainer.models.digits:build",
        )
    if program is not None and model is not None:
        name = "module" if train.module else "command" if train.command else "image"
        raise UserError(
            f"model and train.{name} are both set; the custom program {program} builds its own network.",
            setting="model.builder",
            value=model.builder,
            allowed=f"model or train.{name}, not both",
            fix="remove the section model; pass arguments to the program with train.arguments",
        )
    if train.image is not None:
        try:
            check_pinned(train.image)
        except ValueError as error:
            raise UserError(f"{str(error).capitalize()}.", setting="train.image", value=train.image) from None
    if program is None and data is None:
        names = [name for name in DataSettings.model_fields if name not in ("source", "uri")]
        raise UserError(
            "The configuration has no section data, and Slipway's trainer needs one.",
            setting="data",
            value=None,
            allowed=f"a section with source (required), {', '.join(names)}",
            fix="--set data.source=digits; or, for a program that has its own data, --set train.module=MODULE",
        )
    if program is None and data is not None and data.uri is not None:
        raise UserError(
            "data.uri is for custom programs, which read their data themselves; Slipway's trainer needs prepared data.",
            setting="data.uri",
            value=data.uri,
            allowed="data.source",
            fix=f"replace data.uri by a source, such as --set data.source=images:{data.uri}",
        )
