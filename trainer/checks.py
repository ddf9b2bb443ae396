"""Checks of the settings of a training: by the task, the data set's inputs and the engine."""

from __future__ import annotations

from typing import Any

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, TaskName
from slipway.trainer.config import TrainSettings
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.tasks import TASKS, check_threshold, is_named_loss


def check_settings(train: TrainSettings, task: TaskName) -> None:
    """Check that the settings apply to the task.

    Raises:
        UserError: The monitored metric is another task's, or there are class weights or mixup and no classes.
    """
    metric = TASKS[task].metric
    if train.monitor not in ("loss", metric):
        raise UserError(
            f"The task {task} has no metric {train.monitor} to monitor.",
            setting="train.monitor",
            value=train.monitor,
            allowed=f"loss, {metric}",
            nearest=metric,
        )
    if train.class_weights is not None and task != "classification":
        raise UserError(
            f"Class weights apply to classes, and the task {task} has none.",
            setting="train.class_weights",
            value=train.class_weights,
            allowed="only with the task classification",
            fix="--set train.class_weights=null",
        )
    if is_named_loss(train.loss) and task != "regression":
        raise UserError(
            f"The loss {train.loss} is of numbers, and the task {task} has none.",
            setting="train.loss",
            value=train.loss,
            allowed="null, for the cross-entropy, or module:function",
            fix="--set train.loss=null",
        )
    if train.augment.mixup and task == "regression":
        raise UserError(
            "Mixup blends the losses for two classes or for two sets of labels, and the task regression has neither.",
            setting="train.augment.mixup",
            value=train.augment.mixup,
            allowed="only with the tasks classification and multilabel",
            fix="--set train.augment.mixup=0",
        )


def check_inputs(train: TrainSettings, manifest: Manifest) -> None:
    """Check that the settings apply to the data set's task and inputs.

    Raises:
        UserError: As `check_settings`, or images are to be augmented and there are none, or mixed up and there are
            other inputs too.
    """
    check_settings(train, manifest.task)
    check_threshold(train.threshold, manifest, "train.threshold", "--set train.threshold=null")
    if train.augment.is_on and not manifest.has_image:
        raise UserError(
            f"Augmentation changes images, and the inputs of {manifest.name} have no image.",
            setting="train.augment",
            value=train.augment.model_dump(exclude_defaults=True),
            allowed="only with an input image",
            fix="--set train.augment='{}'",
        )
    if train.augment.mixup and not manifest.is_image_only:
        other_inputs = ", ".join(name for name in manifest.all_inputs if name != "image")
        raise UserError(
            f"Mixup blends whole examples, and {manifest.name} has inputs other than one image: {other_inputs}.",
            setting="train.augment.mixup",
            value=train.augment.mixup,
            allowed="only where the image is the one input",
            fix="--set train.augment.mixup=0, or --set data.inputs='[image]'",
        )


def refuse(train: TrainSettings) -> None:
    """Check that the engine supports the settings.

    Raises:
        UserError: It does not support one.
    """
    for row in ENGINES[train.engine].unsupported:
        value: Any = train
        for name in row.setting.split("."):
            value = getattr(value, name)
        if row.is_requested(value):
            raise UserError(
                f"The engine {train.engine} {row.why}.",
                setting=f"train.{row.setting}",
                value=value if isinstance(value, str | int | float | bool) else str(value),
                allowed=row.allowed,
                nearest=row.nearest,
                fix=None if row.nearest else "--set train.engine=tensorflow",
            )
