"""data.target=log: the network learns the standardized logarithm; predictions and metrics are in the target's unit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.components.evaluate.measures.regression import RegressionMeasures, Values
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.config import TrainSettings
from slipway.trainer.export.examples import predictions

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture(scope="module")
def prices() -> Any:
    return np.exp(np.random.default_rng(5).normal(8, 1.5, 400)).astype(np.float32)


def prepared(folder: Path, values: Any, **settings: Any) -> Any:
    (folder / "prices.csv").write_text("\n".join(["x,price", *(f"{n}.5,{value}" for n, value in enumerate(values))]))
    return prepare(
        DataSettings(
            source=f"csv:{folder / 'prices.csv'}",
            label="price",
            target="log",
            store=str(folder / "sets"),
            workers=1,
            **settings,
        ),
        1,
        task="regression",
    )


@pytest.fixture
def manifest(tmp_path: Path, prices: Any) -> Manifest:
    about: Manifest = prepared(tmp_path, prices).manifest
    return about


def standardized(values: Any, manifest: Manifest) -> Any:
    assert manifest.target is not None
    return (np.log(np.float64(values)) - manifest.target.mean[0]) / manifest.target.deviation[0]


def test_the_manifest_has_the_logarithms_statistics_of_the_training_split(tmp_path: Path, prices: Any) -> None:
    from slipway.components.prepare_data.encoding.messages import all_values
    from slipway.components.prepare_data.encoding.records import read_columns

    result = prepared(tmp_path, prices)
    target, split = result.manifest.target, result.manifest.splits["train"]
    files = [result.folder / shard.file for shard in split.shards]
    logs = np.log(np.array(all_values(read_columns(files, ["label"], split.examples)["label"])))
    assert target.logarithmic and len(logs) == split.examples
    assert (target.mean[0], target.deviation[0]) == pytest.approx((logs.mean(), logs.std()))


def test_a_target_without_a_logarithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="A target is 0, and only positive numbers have a logarithm") as error:
        prepared(tmp_path, range(40))
    assert error.value.fix == "--set data.target=null"


def test_training_and_exports_agree_on_what_an_output_means(manifest: Manifest, prices: Any) -> None:
    import tensorflow as tf

    from slipway.trainer.data.features import standardize
    from slipway.trainer.engines.keras.objective import Objective, objective
    from slipway.trainer.export.saved_model import _answers

    true, predicted = prices[:50], prices[50:100]
    labels = standardize(tf.constant(true), manifest.target)
    np.testing.assert_allclose(labels, standardized(true, manifest), atol=1e-5)
    outputs = standardized(predicted, manifest)[:, None].astype(np.float32)
    of_classes = Objective(lambda *_: None, lambda *_: None, np.take)
    mae = np.asarray(objective(manifest, of_classes, TrainSettings(epochs=1)).metric(outputs, labels))
    np.testing.assert_allclose(mae, np.abs(predicted - true), rtol=2e-3, atol=1e-2)
    np.testing.assert_allclose(_answers(tf.constant(outputs), manifest, None)["prediction"], predicted, rtol=1e-5)
    np.testing.assert_allclose(predictions(outputs, manifest), predicted, rtol=1e-5)


def test_the_evaluated_loss_is_that_of_the_logarithm(manifest: Manifest, prices: Any) -> None:
    from sklearn.metrics import mean_absolute_error

    measures = RegressionMeasures.of(manifest, 50)
    measures.update(Values(np.float64(prices[:50]), np.float64(prices[50:100])))
    values = measures.values()
    true, predicted = (standardized(part, manifest) for part in (prices[:50], prices[50:100]))
    assert values["loss"] == pytest.approx(((true - predicted) ** 2).mean())
    assert values["mae"] == pytest.approx(mean_absolute_error(prices[:50], prices[50:100]))
    assert measures.influences()["loss"].mean() == pytest.approx(0, abs=1e-12)
    assert json.loads(manifest.model_dump_json())["target"]["logarithmic"] is True
