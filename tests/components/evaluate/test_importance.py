"""Which inputs matter: the permutation importance is scikit-learn's, of the same predictions."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import permutation_importance

from slipway.components.evaluate import importance, occlusion
from slipway.components.evaluate.evaluate import Evaluation, evaluate
from slipway.components.evaluate.measures.base import Example
from slipway.components.evaluate.report import render
from slipway.components.evaluate.settings import EvaluateSettings
from slipway.core.manifest import FILE_NAME
from tests.components.evaluate.conftest import png
from tests.components.evaluate.tables import price, prices_of, rows, write_model, write_price_model, write_table
from tests.trainer.conftest import manifest_of

NAMES = ("size", "place", "tokens", "city")
EXAMPLES = 250


class OfRows(RegressorMixin, BaseEstimator):
    """An estimator whose columns are numbers of rows, from each of which one input of the table is taken."""

    def __init__(self, table: dict[str, Any]) -> None:
        self.table = table

    def fit(self, *_: Any) -> None: ...

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def predict(self, chosen: np.ndarray) -> np.ndarray:
        values = {name: self.table[name][chosen[:, column]] for column, name in enumerate(NAMES)}
        return price(values) + 20 * (values["city"] == "Bern")


def with_validation(folder: Path) -> Path:
    """The same examples as a validation split."""
    manifest = json.loads((folder / FILE_NAME).read_text())
    manifest["splits"]["validation"] = manifest["splits"]["test"]
    (folder / FILE_NAME).write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    return rows(EXAMPLES)


@pytest.fixture(scope="module")
def prices(table: dict[str, Any]) -> np.ndarray:
    return prices_of(table)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_price_model(tmp_path_factory.mktemp("model") / "1")


@pytest.fixture(scope="module")
def homes(table: dict[str, Any], prices: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_validation(write_table(tmp_path_factory.mktemp("data") / "homes", "regression", table, prices))


@pytest.fixture(scope="module")
def evaluation(homes: Path, model: Path) -> Evaluation:
    settings = EvaluateSettings(batch_size=64, slices=["city", "size>60"], gate={"metric": "rmse"})
    return evaluate(settings, model, homes, None)


@pytest.mark.parametrize(
    ("metric", "scoring"),
    [("rmse", "neg_root_mean_squared_error"), ("mae", "neg_mean_absolute_error"), ("r2", "r2")],
)
def test_it_is_that_of_scikit_learn(
    metric: str, scoring: str, table: dict[str, Any], prices: np.ndarray, homes: Path, model: Path
) -> None:
    measured = evaluate(EvaluateSettings(gate={"metric": metric}), model, homes, None).importance
    row_numbers = np.tile(np.arange(EXAMPLES)[:, None], len(NAMES))
    expected = permutation_importance(
        OfRows(table), row_numbers, prices, scoring=scoring, n_repeats=importance.REPEATS, random_state=importance.SEED
    )
    means = dict(zip(NAMES, expected.importances_mean, strict=True))
    assert {importance_of.input: importance_of.loss for importance_of in measured} == pytest.approx(means, rel=1e-4)
    assert [importance_of.input for importance_of in measured] == sorted(NAMES, key=lambda name: -means[name])


def test_its_interval_contains_the_loss_of_many_more_examples(evaluation: Evaluation, table: dict[str, Any]) -> None:
    """Of the size, whose exchange adds the variance of the difference of two independent prices."""
    size, *_ = evaluation.importance
    assert size.input == "size"
    assert size.interval is not None
    low, high = size.interval
    assert low < np.hypot(np.sqrt(2) * 3 * 20, 12) - 12 < high
    assert 0 < high - low < size.loss / 2


def test_an_input_that_says_nothing_has_an_interval_around_nothing(homes: Path, tmp_path: Path) -> None:
    ignoring = write_model(
        tmp_path / "2",
        lambda values: {"prediction": values["size"] * 3 + 0 * values["place"][:, 0]},
        ["size", "place"],
        task="regression",
    )
    measured = evaluate(EvaluateSettings(gate={"metric": "mae"}), ignoring, homes, None).importance
    assert [importance_of.input for importance_of in measured] == ["size", "place"]  # the model has no other inputs
    assert measured[1].interval is not None
    assert (measured[1].loss, *measured[1].interval) == pytest.approx((0, 0, 0), abs=1e-9)


def test_of_an_accuracy_the_interval_is_that_of_the_mean_over_the_examples(
    table: dict[str, Any], tmp_path: Path
) -> None:
    import tensorflow as tf

    def predict(values: dict[str, Any]) -> dict[str, Any]:
        house = tf.sigmoid((values["size"] - 60 + 0 * values["place"][:, 0]) / 5)
        names = tf.tile(tf.constant([["flat", "house"]]), [tf.shape(house)[0], 1])
        return {"classes": names, "probabilities": tf.stack([1 - house, house], axis=1)}

    labels = (table["size"] + np.random.default_rng(3).normal(0, 10, EXAMPLES) > 60).astype(np.int64)
    kinds = with_validation(write_table(tmp_path / "kinds", "classification", table, labels, ["flat", "house"]))
    model = write_model(tmp_path / "model", predict, ["size", "place"], classes=["flat", "house"])
    size, place = evaluate(EvaluateSettings(), model, kinds, None).importance
    orders = importance.exchanges(EXAMPLES)
    lost = np.mean([(table["size"] > 60) == labels] * 5, axis=0) - np.mean(
        [(table["size"][order] > 60) == labels for order in orders], axis=0
    )
    assert size.interval is not None
    assert size.loss == pytest.approx(lost.mean())
    half = 1.97 * lost.std() / np.sqrt(EXAMPLES)
    assert size.interval == pytest.approx((size.loss - half, size.loss + half), abs=half / 50)
    assert (place.input, place.loss, place.interval) == ("place", 0, (0, 0))


def test_slices_have_their_own(evaluation: Evaluation, table: dict[str, Any]) -> None:
    by_input = {measured.input: measured.slices for measured in evaluation.importance}
    assert set(by_input["city"]) == {"city=Bern", "city=Genf", "city=Zug", "city=Wil", "size>60"}
    # Of homes in Bern, two thirds lose 20; of the others, a third gain as much: both are larger errors.
    assert by_input["city"]["city=Bern"] > by_input["city"]["city=Zug"] > 0


def test_the_record_and_the_report_say_it(evaluation: Evaluation) -> None:
    record = evaluation.as_dict()["importance"]
    assert list(record) == [measured.input for measured in evaluation.importance]
    assert record["size"]["interval"][0] < record["size"]["loss"] < record["size"]["interval"][1]
    page = render(evaluation, "homes-1")
    assert "Which inputs matter" in page
    assert page.index('class="break">size</th>') < page.index('class="break">place</th>')


def test_without_a_validation_split_or_with_the_setting_nothing_is_measured(
    homes: Path, model: Path, table: dict[str, Any], prices: np.ndarray, tmp_path: Path
) -> None:
    unsplit = write_table(tmp_path / "homes", "regression", table, prices)
    without_split = evaluate(EvaluateSettings(), model, unsplit, None)
    switched_off = evaluate(EvaluateSettings(importance=False), model, homes, None)
    assert [without_split.importance, switched_off.importance] == [[], []]
    assert "Which inputs matter" not in render(without_split)


def test_a_confident_error_shows_which_part_of_the_image_it_is_due_to() -> None:
    """A model that looks at a bright corner only."""
    pixels = np.full((16, 24), 40, np.uint8)
    pixels[:2, :3] = 255
    example = Example("a/1.png", "b", "a", 0.9, png(pixels))
    description = manifest_of((16, 24, 1), classes=2)

    def predict(images: Sequence[bytes]) -> np.ndarray:
        bright = np.array([np.asarray(Image.open(io.BytesIO(image)))[:2, :3].mean() / 255 for image in images])
        return np.stack([bright, 1 - bright], axis=1)

    damaged = Example("a/2.png", "b", "a", 0.9, b"nothing")
    ((key, part),) = occlusion.maps([example, damaged], description, predict).items()
    assert key == example.key
    assert part.argmax() == 0
    assert part[0, 0] > 0.7
    assert np.abs(part.ravel()[1:]).max() < 1e-6
    content = base64.b64decode(occlusion.overlay(part, example.image).partition(",")[2])
    with Image.open(io.BytesIO(content)) as over:
        assert over.size == (96, 64)  # the image's proportions
        assert over.getpixel((2, 2))[3] > over.getpixel((90, 60))[3] == 0


@pytest.mark.parametrize("mode", ["stretch", "crop", "pad"])
def test_parts_of_a_cameras_photograph_are_covered_at_the_networks_size(mode: str) -> None:
    sizes = set()

    def predict(images: Sequence[bytes]) -> np.ndarray:
        sizes.update(Image.open(io.BytesIO(image)).size for image in images)
        return np.tile([0.9, 0.1], (len(images), 1))

    description = manifest_of((16, 24, 1), classes=2, resize=True, resize_mode=mode)
    occlusion.maps([Example("a/1.png", "b", "a", 0.9, png(np.zeros((300, 400))))], description, predict)
    assert sizes == {(24, 18)}
