"""The tensorflow engine's optimizers update the weights like Keras's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipway.trainer.config import TrainSettings

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({"optimizer": "adam"}, "Adam"),
        ({"optimizer": "adamw", "weight_decay": 0.1}, "AdamW"),
        ({"optimizer": "sgd"}, "SGD"),
        ({"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1}, "SGD"),
        ({"optimizer": "sgd", "momentum": 0.9, "nesterov": True}, "SGD"),
    ],
)
def test_its_steps_and_state_are_those_of_keras(settings: dict[str, Any], reference: str) -> None:
    import keras

    from slipway.trainer.engines.tensorflow import optimizer as tensorflow_optimizer

    draws = np.random.default_rng(0)
    shapes = [(7, 5), (5,)]
    first = [draws.normal(size=shape).astype(np.float32) for shape in shapes]
    gradients = [[draws.normal(size=shape).astype(np.float32) for shape in shapes] for _ in range(5)]
    train = TrainSettings.model_validate({"batch_size": 8, "epochs": 1, "learning_rate": 0.05, **settings})
    ours, theirs = ([keras.Variable(value) for value in first] for _ in range(2))
    fused = tensorflow_optimizer.make(train, ours)
    options = {name: settings[name] for name in ("momentum", "nesterov", "weight_decay") if name in settings}
    plain = getattr(keras.optimizers, reference)(0.05, **options)
    if "weight_decay" in settings:
        plain.exclude_from_weight_decay(var_list=theirs[1:])
    plain.build(theirs)
    for number, step in enumerate(gradients):
        for optimizer, variables in ((fused, ours), (plain, theirs)):
            optimizer.learning_rate.assign(0.05 / (number + 1))
            optimizer.apply(step, variables)
    for one, other in zip([*ours, *fused.variables], [*theirs, *plain.variables], strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-7)
    assert not np.allclose(ours[0].numpy(), first[0])
