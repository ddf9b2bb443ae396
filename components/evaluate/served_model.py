"""Evaluation of a model through its serving interface: encoded images in, class probabilities out.

The code that built the model is not needed. A SavedModel decodes the images itself. A model in an engine's own
format accepts pixels; images are decoded for it as in the SavedModel, with the size, resize mode and
channels in its model.json.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.accumulators import Counts, Floats, Measures, Predictions, WrongExample
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject
from slipway.trainer.engines import installed
from slipway.trainer.engines.table import ENGINES, SAVED_MODEL_FILE

SIGNATURE = "serving_default"

# A TensorFlow tensor of encoded images, strings [batch].
Images: TypeAlias = Any
# Maps encoded images to class names and probabilities [batch, classes].
Serve = Callable[[Images], tuple[list[str], NDArray[np.float32]]]


class NotServable(Exception):
    """The model in the folder cannot be served; the message says why."""


@dataclass(frozen=True)
class Batch:
    """A batch of encoded images with their labels [batch] and keys."""

    images: Images
    labels: Counts
    keys: list[bytes]


@dataclass(frozen=True)
class Measured:
    """A model and its metrics. `description` is its model.json, `registration` its metadata.json; {} if missing.

    `unknown` are the data set's classes that it does not have, `foreign` its classes that the data set does not have.
    """

    folder: Path
    description: JsonObject
    registration: JsonObject
    measures: Measures
    unknown: tuple[str, ...]
    foreign: tuple[str, ...]

    @property
    def metrics(self) -> dict[str, float]:
        return self.measures.metrics()

    @property
    def name(self) -> str:
        """The registered version, or the folder's name."""
        version = self.registration.get("version")
        return self.folder.name if version is None else f"version {version}"

    @property
    def weights_checksum(self) -> str | None:
        checksum = self.description.get("weights_checksum") or self.registration.get("weights_checksum")
        return None if checksum is None else str(checksum)


class ServedModel:
    """A trained model that is being evaluated on a data set."""

    def __init__(self, folder: Path, data: Manifest, worst: int, *, is_champion: bool) -> None:
        self._folder = folder
        self._is_champion = is_champion
        self._data = data
        self._measures = Measures(len(data.classes), worst)
        self._serve = self._load()
        # The model's classes and the index of each in the data set; known after the first batch.
        self._classes: list[str] = []
        self._target: Counts = np.zeros(0, np.int64)

    def update(self, batch: Batch) -> None:
        """Predict a batch and update the metrics."""
        predictions = self._predict(batch)
        self._measures.update(predictions)
        worst = self._measures.worst
        chosen = worst.candidates(predictions)
        if len(chosen):
            import tensorflow as tf

            images = tf.gather(batch.images, chosen).numpy()
            worst.add(
                [
                    WrongExample(
                        key=batch.keys[index].decode(errors="replace"),
                        image=image,
                        label=int(predictions.labels[index]),
                        predicted=int(predictions.predicted[index]),
                        confidence=float(predictions.confidence[index]),
                    )
                    for index, image in zip(chosen, images, strict=True)
                ]
            )

    def measured(self) -> Measured:
        """Return the metrics so far."""
        ours, theirs = set(self._classes), set(self._data.classes)
        return Measured(
            folder=self._folder,
            description=read_json(self._folder / "model.json"),
            registration=read_json(self._folder / "metadata.json"),
            measures=self._measures,
            unknown=tuple(name for name in self._data.classes if name not in ours),
            foreign=tuple(name for name in self._classes if name not in theirs),
        )

    def _load(self) -> Serve:
        try:
            return load(self._folder, self._data)
        except UserError as error:  # its framework is not installed
            if not self._is_champion:
                raise
            raise self._problem(f"cannot be run here. {error.message.removesuffix('.')}", error.fix) from None
        except NotServable as reason:
            raise self._problem(f"does not load: {reason}") from None
        except Exception as error:  # TensorFlow and PyTorch may raise anything for a damaged file
            logging.exception("loading %s", self._folder)
            raise self._problem(f"does not load: {_sentence(error)}") from None

    def _predict(self, batch: Batch) -> Predictions:
        try:
            names, raw = self._serve(batch.images)
        except Exception as error:  # a failing model may raise anything
            logging.exception("predicting with %s", self._folder)
            raise self._blame(batch, error) from None
        probabilities: Floats = raw.astype(np.float64)
        if not self._classes:
            self._align(names)
        if not np.isfinite(probabilities).all():
            raise self._problem("returned NaN or infinite probabilities")
        return self._in_order(batch.labels, probabilities)

    def _align(self, classes: list[str]) -> None:
        index = {name: position for position, name in enumerate(self._data.classes)}
        foreign = len(self._data.classes)
        self._classes = classes
        self._target = np.array([index.get(name, foreign) for name in classes], np.int64)
        if not self._is_champion and set(classes) != set(index):
            raise self._problem(
                f"has other classes than the data set {self._data.name}: {_class_difference(classes, list(index))}"
            )

    def _in_order(self, labels: Counts, probabilities: Floats) -> Predictions:
        """Map probabilities [batch, model classes] to predictions in the data set's order of classes."""
        classes = len(self._data.classes)
        known = self._target < classes
        ordered = np.zeros((len(labels), classes))
        ordered[:, self._target[known]] = probabilities[:, known]
        best = probabilities.argmax(axis=1)
        return Predictions(labels, ordered, self._target[best], probabilities[np.arange(len(best)), best])

    def _blame(self, batch: Batch, error: Exception) -> UserError:
        """Return the error for a failing batch: an image that cannot be decoded, or else the model."""
        passes = list(self._alone(batch))
        failing = [key.decode(errors="replace") for key, ok in zip(batch.keys, passes, strict=True) if not ok]
        if not failing or (len(failing) == len(batch.keys) > 1):
            return self._problem(f"does not run: {_sentence(error)}")
        more = f" ({len(failing) - 1} more in its batch)" if len(failing) > 1 else ""
        return UserError(
            f"The image {failing[0]} of the test split cannot be decoded{more}: {_sentence(error)}.",
            setting="data.check",
            value=self._data.settings.get("check"),
            fix=f"repair or remove {failing[0]} in {self._data.source}; data.check=decode finds such images earlier",
        )

    def _alone(self, batch: Batch) -> Iterator[bool]:
        """Yield for each image whether the model accepts it in a batch of one."""
        for index in range(len(batch.keys)):
            try:
                self._serve(batch.images[index : index + 1])
                yield True
            except Exception:  # any exception, as in _predict; the first one is already logged
                yield False

    def _problem(self, what: str, fix: str | None = None) -> UserError:
        if self._is_champion:
            return UserError(
                f"The champion in {self._folder} {what}.",
                setting="evaluate.champion",
                value="registered",
                allowed="registered, none",
                fix=f"--set evaluate.champion=none to evaluate without it, or {fix or f'restore {self._folder}'}",
            )
        return UserError(
            f"The model in {self._folder} {what}.",
            fix="train it again on this data set: slipway run, without --resume",
        )


def _class_difference(found: list[str], wanted: list[str]) -> str:
    lacking = [name for name in wanted if name not in set(found)]
    extra = [name for name in found if name not in set(wanted)]
    parts = [f"it lacks {_few(lacking)}"] if lacking else []
    parts += [f"it has {_few(extra)} instead" if lacking else f"it also has {_few(extra)}"] if extra else []
    return ", ".join(parts)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _sentence(error: Exception) -> str:
    """Return the first line of an error without its full stop, at most 200 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")[:200]


def read_json(path: Path) -> JsonObject:
    """Return the JSON object in a file, {} if it is missing or invalid."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def load(folder: Path, data: Manifest) -> Serve:
    """Load the model in `folder`.

    Args:
        folder: The model's folder.
        data: The manifest of a data set. A model in an engine's own format may have another image size and channels.

    Raises:
        UserError: It is in the format of an engine that is not installed.
        NotServable: The SavedModel has no serving signature.
        Exception: Anything that the library raises for a damaged file.
    """
    if not (folder / SAVED_MODEL_FILE).is_file():
        for engine, row in ENGINES.items():
            if (folder / row.model_file).is_file():
                installed.verify(engine)
                return _program(engine, folder, data)
    return _saved_model(folder)


def _saved_model(folder: Path) -> Serve:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    if SIGNATURE not in loaded.signatures:
        raise NotServable(f"its SavedModel has no signature {SIGNATURE!r}")

    def serve(images: Images) -> tuple[list[str], NDArray[np.float32]]:
        # Access through `loaded` keeps the object alive; the signature alone would not.
        result = loaded.signatures[SIGNATURE](image_bytes=images)
        names = [name.decode(errors="replace") for name in result["classes"][0].numpy()]
        return names, result["probabilities"].numpy()

    return serve


def _program(engine: str, folder: Path, data: Manifest) -> Serve:
    """Load a model in the engine's own format; see `load` in slipway/trainer/engines/ENGINE/export.py."""
    from slipway.trainer.data.images import decode_images

    description = json.loads((folder / "model.json").read_bytes())
    classes = [str(name) for name in description["classes"]]
    shape = {"image_size": tuple(description["image_size"]), "channels": description["channels"]}
    own = data.model_copy(update={**shape, "resize_mode": description.get("resize_mode", "stretch")})
    probabilities = importlib.import_module(f"slipway.trainer.engines.{engine}.export").load(folder)

    def serve(images: Images) -> tuple[list[str], NDArray[np.float32]]:
        return classes, probabilities(decode_images(images, own).numpy())

    return serve
