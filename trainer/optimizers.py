"""The table of optimizers: one row in `OPTIMIZERS` makes one available to the settings and to every engine that has it.

Imports no framework: the configuration, and the estimate of memory, read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class TorchOptimizer:
    """An optimizer of torch.optim.

    Attributes:
        name: Its class.
        options: Its options, without weight decay, which the training step applies.
        scalars: The numbers that it keeps for each parameter, with their first values.
        tensors: The tensors of the parameter's shape that it keeps, zeros at first; `momentum_buffer` is added.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The facts about one optimizer.

    Attributes:
        keras: The class in keras.optimizers.
        fused: The class in `slipway.trainer.engines.tensorflow.optimizer` that updates a variable with one operation;
            "": the tensorflow engine uses Keras's own.
        torch: What the pytorch engine uses; None: that engine refuses it.
        slots: The number of values that it keeps for each weight, without momentum.
        momentum: Whether it accepts `train.momentum` and `train.nesterov`.
        weight_decay: The default of `train.weight_decay`; None if it does not accept that.
    """

    keras: str
    fused: str = ""
    torch: TorchOptimizer | None = None
    slots: int
    momentum: bool = False
    weight_decay: float | None = None


# With Keras's defaults, so that the engines' results agree.
_TORCH_ADAM = TorchOptimizer(
    "Adam", {"betas": (0.9, 0.999), "eps": 1e-7}, scalars={"step": 0.0}, tensors=("exp_avg", "exp_avg_sq")
)

OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Optimizer(keras="Adam", fused="FusedAdam", torch=_TORCH_ADAM, slots=2),
    "adamw": Optimizer(keras="AdamW", fused="FusedAdamW", torch=_TORCH_ADAM, slots=2, weight_decay=0.004),
    "sgd": Optimizer(
        keras="SGD", fused="FusedSGD", torch=TorchOptimizer("SGD"), slots=0, momentum=True, weight_decay=0.0
    ),
}
# The kind of an optimizer (`TrainSettings.optimizer_kind`) is its name, with this suffix if it has momentum.
WITH_MOMENTUM = " with momentum"
CUSTOM = "a custom optimizer"
_CUSTOM_SLOTS = 2  # not known before it is built


def slots(kind: str) -> int:
    """Return the number of values that an optimizer of this kind keeps for each weight."""
    if kind == CUSTOM:
        return _CUSTOM_SLOTS
    return OPTIMIZERS[kind.removesuffix(WITH_MOMENTUM)].slots + kind.endswith(WITH_MOMENTUM)


def with_momentum() -> list[str]:
    """Return the names of the optimizers that accept a momentum."""
    return [name for name, row in OPTIMIZERS.items() if row.momentum]


def with_weight_decay() -> list[str]:
    """Return the names of the optimizers that accept a weight decay."""
    return [name for name, row in OPTIMIZERS.items() if row.weight_decay is not None]
