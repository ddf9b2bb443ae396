"""Losses of regression by name: the mean is scikit-learn's, or Keras's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from slipway.core.errors import UserError
from slipway.trainer.checks import check_settings
from slipway.trainer.config import TrainSettings
from tests.trainer import feature_sets
from tests.trainer.feature_sets import Column

pytestmark = pytest.mark.usefixtures("tensorflow")


def expected(loss: str, true: Any, predicted: Any) -> float:
    import keras
    from sklearn.metrics import mean_absolute_error, mean_pinball_loss, mean_squared_error

    if loss == "huber":
        return float(keras.losses.Huber()(true[:, None], predicted[:, None]))
    if loss == "mse":
        return float(mean_squared_error(true, predicted))
    return float(
        mean_absolute_error(true, predicted)
        if loss == "mae"
        else mean_pinball_loss(true, predicted, alpha=float(loss.partition(":")[2]))
    )


@pytest.mark.parametrize("loss", ["mse", "mae", "huber", "quantile:0.9", "quantile:.25"])
def test_a_named_loss_is_that_of_each_example(tmp_path: Path, loss: str) -> None:
    from slipway.trainer.engines.keras.objective import Objective, objective

    random = np.random.default_rng(4)
    true, predicted = random.normal(0, 2, (2, 50)).astype(np.float32)
    about = feature_sets.write(tmp_path / "data", "regression", {"x": Column("number", true)}, true, [], validation=10)
    train = TrainSettings(epochs=1, loss=loss)
    check_settings(train, "regression")
    assert not train.functions
    of_classes = Objective(lambda *_: None, lambda *_: None, np.take)
    losses = np.asarray(objective(about, of_classes, train).losses(predicted[:, None], true))
    assert losses.shape == (50,)
    assert losses.mean() == pytest.approx(expected(loss, true, predicted), rel=1e-5)


def test_it_is_for_numbers_only() -> None:
    with pytest.raises(UserError, match="The loss huber is of numbers, and the task classification has none") as error:
        check_settings(TrainSettings(epochs=1, loss="huber"), "classification")
    assert error.value.fix == "--set train.loss=null"


@pytest.mark.parametrize("loss", ["rmse", "quantile", "quantile:1.5", "quantile:0", "quantile:0.0"])
def test_other_names_are_refused(loss: str) -> None:
    with pytest.raises(ValidationError):
        TrainSettings(epochs=1, loss=loss)
