"""The pytorch engine's optimizers: those of the table and the user's own (`train.optimizer: module:function`).

A checkpoint holds the tensors that the optimizer keeps for each parameter. The user's optimizer creates them in its
first step, so a resumed run makes a step with zero gradients before it loads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings
from slipway.trainer.engines import builder, hooks
from slipway.trainer.engines.base import State
from slipway.trainer.engines.pytorch.network import Network
from slipway.trainer.optimizers import OPTIMIZERS

_SETTING = "train.optimizer"


def make(train: TrainSettings, network: Network) -> torch.optim.Optimizer:
    """Return the configured optimizer with initialized state; weight decay is applied by the step, not by it."""
    parameters = network.trained()
    if train.optimizer not in OPTIMIZERS:
        return _custom(train, parameters) if parameters else torch.optim.SGD([{"params": []}])
    row = OPTIMIZERS[train.optimizer].torch
    assert row is not None  # otherwise the configuration was refused
    options = {"lr": train.learning_rate, **row.options}
    if train.momentum:
        options |= {"momentum": train.momentum, "nesterov": train.nesterov}
    # In a group, since the list is empty for a frozen network.
    optimizer = getattr(torch.optim, row.name)([{"params": parameters}], **options)
    tensors = (*row.tensors, *(["momentum_buffer"] if train.momentum else []))
    for parameter in parameters:
        optimizer.state[parameter] |= {name: torch.tensor(value) for name, value in row.scalars.items()}
        optimizer.state[parameter] |= {name: torch.zeros_like(parameter) for name in tensors}
    made: torch.optim.Optimizer = optimizer
    return made


def _custom(train: TrainSettings, parameters: Sequence[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of the user's function, after a trial step of another one that it makes.

    Raises:
        UserError: The function does not exist, raises, or does not return an optimizer of all parameters, whose step
            needs gradients only and whose state consists of tensors.
    """
    function = hooks.load(train, _SETTING)
    trial = function(list(parameters), train.learning_rate)
    if not isinstance(trial, torch.optim.Optimizer):
        raise hooks.wrong_result(train, _SETTING, trial, "a torch.optim.Optimizer")
    if {id(parameter) for parameter in _parameters(trial)} != {id(parameter) for parameter in parameters}:
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


def arrays(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> dict[str, torch.Tensor]:
    """Return the optimizer's tensors by name, in parameter order, and the loss scale as [scale, steps since growth]."""
    kept = {
        f"{number:04d}/{name}": tensor
        for number, parameter in enumerate(_parameters(optimizer))
        for name, tensor in optimizer.state[parameter].items()
    }
    if scaler.is_enabled():
        values = scaler.state_dict()
        kept["loss_scale"] = torch.tensor([values["scale"], float(values["_growth_tracker"])])
    return kept


def load_loss_scale(scaler: torch.amp.GradScaler, values: NDArray[np.float32]) -> None:
    """Restore the `loss_scale` of `optimizer_arrays`."""
    scaler.load_state_dict(
        scaler.state_dict() | {"scale": float(values[0]), "_growth_tracker": round(float(values[1]))}
    )


def _step_with_zeros(optimizer: torch.optim.Optimizer) -> None:
    """Make a step with zero gradients, without changing the parameters."""
    parameters = _parameters(optimizer)
    before = [tensor.detach().clone() for tensor in parameters]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    finally:
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for parameter, values in zip(parameters, before, strict=True):
                parameter.copy_(values)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _numbers(group: Mapping[str, object]) -> dict[str, float]:
    return {name: value for name, value in group.items() if isinstance(value, int | float)}


def _refused(train: TrainSettings, problem: str) -> UserError:
    return UserError(
        f"The optimizer of {train.optimizer} {problem}.",
        setting=_SETTING,
        value=train.optimizer,
        allowed="an optimizer of all parameters that keeps tensors for each of them",
        fix="fix the function, or use another optimizer",
    )
