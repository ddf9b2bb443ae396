"""Exported models without a training: a classifier of small images, and a regression on named inputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core.manifest import Input, Manifest
from slipway.serving import model
from slipway.serving.model import Model
from tests.components.evaluate.conftest import export_model

HOUSES = Manifest(
    name="houses",
    fingerprint="0" * 64,
    source="csv:houses.csv",
    settings={"label": "price"},
    task="regression",
    classes=[],
    target=Input(kind="number", mean=(100.0,), deviation=(10.0,)),
    inputs={
        "area": Input(kind="number", mean=(50.0,), deviation=(5.0,)),
        "sides": Input(kind="number", shape=(2,), mean=(0.0, 0.0), deviation=(1.0, 1.0)),
        "rooms": Input(kind="integer", maximum=9),
        "street": Input(kind="category", vocabulary=("Elm", "Oak")),
    },
    image_size=(0, 0),
    channels=3,
    resize=False,
    encodings=[],
    splits={},
)
HOUSE = {"area": 55.0, "sides": [1.0, 2.0], "rooms": 3, "street": "Oak"}
# (1 + (1 + 2) + 3 + 2) * 10 + 100
HOUSE_PRICE = 190.0


def assert_predictions_equal(answers: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Compare answers of a classifier in other batches, where the last digits differ on some processors."""
    for answer, other in zip(answers, expected, strict=True):
        assert answer["probabilities"] == pytest.approx(other["probabilities"], rel=1e-5)
        assert answer | {"probabilities": None} == other | {"probabilities": None}


@pytest.fixture(scope="session")
def classifier_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model.import_tensorflow()
    weights = np.random.default_rng(0).normal(size=(64, 10))
    return export_model(tmp_path_factory.mktemp("models") / "classifier", weights, np.zeros(10))


@pytest.fixture(scope="session")
def classifier(classifier_folder: Path) -> Model:
    return model.load(classifier_folder)


def export_houses(folder: Path) -> Path:
    """Export a regression that returns the sum of its standardized inputs."""
    model.import_tensorflow()
    import tensorflow as tf

    from slipway.trainer.export import saved_model
    from slipway.trainer.export.export import inputs_and_classes

    def network(inputs):
        numbers = inputs["area"] + tf.reduce_sum(inputs["sides"], axis=1)
        return (numbers + tf.cast(inputs["rooms"] + inputs["street"], tf.float32))[:, tf.newaxis]

    folder.mkdir()
    saved_model.write(folder, network, [], HOUSES)
    (folder / "model.json").write_text(json.dumps(inputs_and_classes(HOUSES)))
    return folder


@pytest.fixture(scope="session")
def houses_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_houses(tmp_path_factory.mktemp("models") / "houses")


@pytest.fixture(scope="session")
def houses(houses_folder: Path) -> Model:
    return model.load(houses_folder)
