"""The engines' optimizers update the weights like those of their libraries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipway.trainer.config import TrainSettings
from slipway.trainer.engines.quick_import import import_tensorflow
from slipway.trainer.optimizers import OPTIMIZERS


@pytest.mark.engine("pytorch")
@pytest.mark.parametrize(
    ("name", "momentum"),
    [(name, momentum) for name, row in OPTIMIZERS.items() if row.torch for momentum in (0.0, 0.9)[: 1 + row.momentum]],
)
def test_the_first_steps_are_those_of_an_optimizer_without_state(name: str, momentum: float) -> None:
    """The engine creates the state beforehand, so that it can be loaded; the library, in the first step."""
    import_tensorflow("pytorch")  # in the order in which both work
    import torch

    from slipway.trainer.engines.pytorch import optimizer

    row = OPTIMIZERS[name]
    assert row.torch is not None
    settings: dict[str, Any] = {"batch_size": 8, "epochs": 1, "learning_rate": 0.05, "optimizer": name}
    train = TrainSettings.model_validate({**settings, "momentum": momentum})
    draws = np.random.default_rng(0)
    values, *gradients = (torch.from_numpy(draws.normal(size=(7, 5)).astype(np.float32)) for _ in range(6))
    ours, theirs = (torch.nn.Parameter(values.clone()) for _ in range(2))
    made: Any = optimizer.make(train, SimpleNamespace(trained=lambda: [ours]))  # type: ignore[arg-type]
    options = {"momentum": momentum} if momentum else {}
    plain = getattr(torch.optim, row.torch.name)([theirs], lr=0.05, **row.torch.options, **options)
    names = set(made.state[ours])
    for gradient in gradients:
        for parameter, each in ((ours, made), (theirs, plain)):
            parameter.grad = gradient.clone()
            each.step()
    torch.testing.assert_close(ours, theirs)
    assert names == set(plain.state[theirs])
