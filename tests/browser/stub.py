"""A prediction server of models that answer at once, and of answers that wait for the test."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from slipway.core.manifest import Input, Manifest
from slipway.serving.app import Server
from slipway.serving.kinds import Field
from slipway.serving.model import INSTANCES, PREDICTIONS, Model
from slipway.serving.reloader import Served
from slipway.trainer.export.examples import FILE_NAME
from slipway.trainer.export.export import inputs_and_classes
from tests.components.evaluate.conftest import png
from tests.serving.client import serving, settings
from tests.serving.conftest import HOUSES

DARK, BRIGHT = png(np.zeros((8, 8))), png(np.full((8, 8), 255))


def images(folder: Path) -> Model:
    """Recognizes dark and bright images."""

    def function(arrays: Any) -> Any:
        means = [np.asarray(Image.open(io.BytesIO(data))).mean() / 255 for data in arrays["image_bytes"]]
        return None, {"probabilities": np.array([[1 - mean, mean] for mean in means])}

    inputs = {"image_bytes": Field("image", np.dtype(object))}
    names = ["dark", "bright"]
    return Model(folder, "classification", inputs, ("classes", "probabilities"), {}, function, names)


def labels(folder: Path) -> Model:
    """Has 80 labels, of which 29 are likely, whatever the input."""

    def function(arrays: Any) -> Any:
        row = [0.9 - 0.01 * index if index < 29 else 0.4 - 0.005 * (index - 29) for index in range(80)]
        return None, {"probabilities": np.array([row] * len(arrays["x"]))}

    names = [f"label {index}" for index in range(80)]
    inputs = {"x": Field("number", np.dtype(np.float32))}
    return Model(folder, "multilabel", inputs, ("labels", "probabilities"), {}, function, names)


def table(folder: Path, manifest: Manifest = HOUSES, scale: float = 1.0) -> Model:
    """Adds up the numbers of a row."""
    types = {"number": np.float32, "integer": np.int64, "category": object}
    inputs = {name: Field(one.kind, np.dtype(types[one.kind]), one.shape) for name, one in manifest.inputs.items()}

    def function(arrays: Any) -> Any:
        numbers = [np.asarray(one).reshape(len(one), -1).sum(1) for one in arrays.values() if one.dtype != object]
        return None, {"prediction": sum(numbers) * scale}

    description = json.loads(json.dumps(inputs_and_classes(manifest)))
    return Model(folder, "regression", inputs, ("prediction",), description, function)


def listing(folder: Path) -> Model:
    """Adds the brightness of a photo, from 0 to 1, to an area."""

    def function(arrays: Any) -> Any:
        means = [np.asarray(Image.open(io.BytesIO(data))).mean() / 255 for data in arrays["photo_bytes"]]
        return None, {"prediction": arrays["area"] + np.array(means)}

    inputs = {"photo_bytes": Field("image", np.dtype(object)), "area": Field("number", np.dtype(np.float32))}
    return Model(folder, "regression", inputs, ("prediction",), {}, function)


def wide(folder: Path) -> Model:
    """Has 200 inputs."""
    number = Input(kind="number", mean=(1.0,), deviation=(2.0,))
    return table(folder, HOUSES.model_copy(update={"inputs": {f"band_{index}": number for index in range(200)}}))


def custom(folder: Path) -> Model:
    """Returns its instances."""
    inputs = {INSTANCES: Field("other", np.dtype(object))}
    return Model(folder, None, inputs, (PREDICTIONS,), {}, lambda arrays: (None, {PREDICTIONS: arrays[INSTANCES]}))


class Stub:
    """A server and its address.

    Attributes:
        held: Numbers of the prediction requests, from 1, whose answers wait until they are removed here.
    """

    def __init__(self, model: Model, name: str, port: int | None = None, **values: Any) -> None:
        self.server = Server(
            settings(**values, **({"port": port} if port else {})), lambda: Served(self._name, model.folder)
        )
        self.held: set[int] = set()
        self.requests = 0
        self.use(model, name)
        predict, numbers = self.server.batcher.predict, itertools.count(1)

        async def later(*arguments: Any) -> Any:
            self.requests = number = next(numbers)
            found = await predict(*arguments)
            while number in self.held:
                await asyncio.sleep(0.01)
            return found

        self.server.batcher.predict = later  # type: ignore[method-assign]

    def use(self, model: Model, name: str) -> None:
        (model.folder / "weights").touch()
        self._name = name
        self.server.reloader.use(model, Served(name, model.folder))

    @property
    def port(self) -> int:
        return self.server.settings.port

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/"

    @contextlib.contextmanager
    def serving(self) -> Iterator[Stub]:
        with serving(self.server):
            yield self


def write_examples(folder: Path, keys: list[str], *instances: Any) -> None:
    (folder / FILE_NAME).write_text(json.dumps({"split": "test", "keys": keys, "instances": instances}))
