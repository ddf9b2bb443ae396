"""The user's optimizer (`train.optimizer: module:function`) on the pytorch engine.

A checkpoint holds the tensors that the optimizer keeps for each parameter. It creates them in its first step, so a
resumed run makes a step with zero gradients before it loads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings
from slipway.trainer.engines import builder, hooks
from slipway.trainer.engines.base import State

_SETTING = "train.optimizer"


def make(train: TrainSettings, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of the user's function, after a trial step of another one that it makes.

    Raises:
        UserError: The function does not exist, raises, or does not return an optimizer of all parameters, whose step
            needs gradients only and whose state consists of tensors.
    """
    function = hooks.load(train, _SETTING)
    trial = function(list(parameters), train.learning_rate)
    if not isinstance(trial, torch.optim.Optimizer):
        raise hooks.wrong_result(train, _SETTING, trial, "a torch.optim.Optimizer")
    if {id(each) for each in _parameters(trial)} != {id(each) for each in parameters}:
        raise _refused(train, "does not have exactly the parameters that the function receives")
    before = [_numbers(group) for group in trial.param_groups]
    try:
        _step_with_zeros(trial)
    except Exception as error:
        raise UserError(
            f"The optimizer of {train.optimizer} {builder.what_happened(error)}",
            setting=_SETTING,
            value=train.optimizer,
            allowed="an optimizer whose step() needs nothing but the gradients",
            fix="use another optimizer",
        ) from error
    if before != [_numbers(group) for group in trial.param_groups]:
        raise _refused(train, "keeps state in its parameter groups, which a checkpoint does not hold")
    for state in trial.state.values():
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                raise _refused(train, f"keeps a {type(value).__name__} as {name}; a checkpoint holds tensors")
    made: torch.optim.Optimizer = function(list(parameters), train.learning_rate)
    return made


def create_state(optimizer: torch.optim.Optimizer, state: State) -> None:
    """Create the tensors for which a checkpoint's `state` has values; a parameter without gradients has none."""
    _step_with_zeros(optimizer)
    for number, parameter in enumerate(_parameters(optimizer)):
        kept = optimizer.state[parameter]
        for name in [name for name in kept if f"optimizer/{number:04d}/{name}" not in state]:
            del kept[name]


def _step_with_zeros(optimizer: torch.optim.Optimizer) -> None:
    """Make a step with zero gradients, without changing the parameters."""
    parameters = _parameters(optimizer)
    before = [each.detach().clone() for each in parameters]
    for each in parameters:
        each.grad = torch.zeros_like(each)
    try:
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for each, values in zip(parameters, before, strict=True):
                each.copy_(values)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _numbers(group: Mapping[str, object]) -> dict[str, float]:
    return {name: value for name, value in group.items() if isinstance(value, int | float)}


def _refused(train: TrainSettings, what: str) -> UserError:
    return UserError(
        f"The optimizer of {train.optimizer} {what}.",
        setting=_SETTING,
        value=train.optimizer,
        allowed="an optimizer of all parameters that keeps tensors for each of them",
        fix="fix the function, or use another optimizer",
    )
