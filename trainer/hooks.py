"""Hooks: functions of the user's project that Slipway's trainer calls, named by settings as module:function."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field

from slipway.core.errors import UserError
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.tasks import MONITORS, NAMED_LOSS_PATTERN

FUNCTION_PATTERN = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"
Function = Annotated[str, Field(pattern=f"^{FUNCTION_PATTERN}$")]
Loss = Annotated[str, Field(pattern=f"^({FUNCTION_PATTERN}|{NAMED_LOSS_PATTERN})$")]
# Names that records of a validation have already.
TAKEN = (*MONITORS, "kind", "step", "epoch", "time")


def _is_free(name: str) -> str:
    if name in TAKEN:
        raise UserError(
            f"The name {name} is taken by Slipway's own record of a validation.",
            setting="train.metrics",
            value=name,
            allowed=f"another name than {', '.join(TAKEN)}",
            nearest=f"custom_{name}",
            fix=f"rename it, such as to custom_{name}",
        )
    return name


MetricName = Annotated[str, Field(pattern=r"^[A-Za-z]\w*$"), AfterValidator(_is_free)]


@dataclass(frozen=True)
class Hook:
    """What a function accepts and returns."""

    parameters: tuple[str, ...]
    returns: str

    def __str__(self) -> str:
        return f"a function of ({', '.join(self.parameters)}) that returns {self.returns}"


# The hooks by setting; each entry of `train.metrics` has its name after that.
HOOKS = {
    "train.loss": Hook(("outputs", "labels"), "the loss of each example, [batch]"),
    "train.metrics": Hook(("outputs", "labels"), "a number for each example, [batch]"),
    "train.optimizer": Hook(("learning_rate",), "a Keras optimizer"),
    "train.augment.function": Hook(("images", "seed"), "images, float32 [batch, height, width, channels]"),
    "train.on_epoch_end": Hook(
        ("epoch", "step", "metrics", "folder"), "nothing, or True to end the training after this epoch"
    ),
}
IN_STEP = ("train.loss", "train.optimizer", "train.augment.function")
TORCH_OPTIMIZER = Hook(("parameters", "learning_rate"), "a torch.optim.Optimizer of all parameters")


def hook_of(setting: str, engine: str) -> Hook:
    """Return the hook of a setting on an engine."""
    if setting == "train.optimizer" and ENGINES[engine].custom_optimizer == "torch":
        return TORCH_OPTIMIZER
    return next(hook for name, hook in HOOKS.items() if f"{setting}.".startswith(f"{name}."))


def check_signature(setting: str, function: str, signature: inspect.Signature, engine: str) -> None:
    """Check that a function with this signature accepts the arguments of its hook on an engine.

    Raises:
        UserError: It does not.
    """
    hook = hook_of(setting, engine)
    check_call(setting, function, signature, hook.parameters, str(hook))


def check_call(
    setting: str, function: str, signature: inspect.Signature, parameters: Sequence[str], contract: str
) -> None:
    """Raise UserError if a function with this signature cannot be called with these parameters, by position."""
    try:
        signature.bind(*parameters)
    except TypeError as error:
        called = ", ".join(parameters)
        raise UserError(
            f"The function {function} cannot be called with ({called}): {error}.",
            setting=setting,
            value=function,
            allowed=contract,
            fix=f"def {function.partition(':')[2]}({called}): …",
        ) from None
