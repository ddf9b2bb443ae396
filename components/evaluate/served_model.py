"""Evaluation of a model through its serving interface: an example's raw values in, predictions out."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measured import Batch, Features, Mask, Measured, MeasuredSlice
from slipway.components.evaluate.measures import EVALUATED
from slipway.components.evaluate.measures.base import Example, Measures, chosen
from slipway.components.evaluate.measures.significance import Counts, Floats
from slipway.components.evaluate.slices import Slice
from slipway.core.errors import UserError
from slipway.core.formatting import brief
from slipway.core.integrity import unsealed, verify
from slipway.core.manifest import Manifest, SignatureName
from slipway.serving import model as model_files
from slipway.serving.model import RECORD_FILE, SIGNATURE, TYPES, Model, NotServable, read_json
from slipway.trainer.export.examples import EXAMPLES
from slipway.trainer.tasks import TASKS

IMAGE = "image"
# An example's values in the report: at most so many inputs, and elements of an array.
VALUES_SHOWN, ELEMENTS_SHOWN = 12, 6
PREDICTED_TOGETHER = 32  # images


class OtherData(NotServable):
    """The model is for data of another task, or with other inputs or classes; the message continues "The model …"."""


class ServedModel:
    """A trained model that is being evaluated on a data set.

    Args:
        folder: The model's folder.
        data: The data set's manifest.
        examples: The number of examples.
        worst: The number of worst examples to keep.
        compared: Whether each example is one on which champion and challenger are compared, [examples]; None for all.
        slices: The slices of the split to measure.
        is_champion: Whether it is the champion, which is measured only on these.

    Raises:
        OtherData: It is the champion, and cannot be measured on this data set.
        UserError: It cannot be loaded.
    """

    def __init__(
        self, folder: Path, data: Manifest, examples: int, worst: int, compared: Mask | None,
        slices: Sequence[Slice] = (), *, is_champion: bool,
    ) -> None:  # fmt: skip
        self._folder, self._data, self._is_champion = folder, data, is_champion
        self._outputs = TASKS[data.task]
        # What is measured, each on the examples of its mask; and how many examples are done.
        self._parts: list[tuple[Mask, Measures[Any]]] = []
        self._done = 0
        self._measures, self._compared = self._part(np.ones(examples, bool), compared, worst)
        self._slices = [MeasuredSlice(part.name, *self._part(part.mask, compared)) for part in slices]
        self.model = self._load()
        self._stored = self.model.matched(data.signature)
        self._measures.threshold = self.model.threshold  # the parts receive its predictions
        classes = read_json(folder / RECORD_FILE).get("classes") or []
        if is_champion and classes and data.classes and not set(classes) & set(data.classes):
            raise OtherData(f"has none of the data set's {self._outputs.names}, but {_few(classes)}")
        # A few examples for the contract test.
        self.sample: Batch | None = None
        # The index in the data set of each of the model's classes or labels; known after the first batch.
        self._order: Counts = np.zeros(0, np.int64)

    def _part(self, mask: Mask, compared: Mask | None, worst: int = 0) -> tuple[Measures[Any], Measures[Any]]:
        """Return new measures of the examples of a mask, and of those among them that are compared."""
        masks = [mask] if compared is None else [mask & compared] if self._is_champion else [mask, mask & compared]
        measures = [EVALUATED[self._data.task].of(self._data, int(part_mask.sum()), worst) for part_mask in masks]
        self._parts += zip(masks, measures, strict=True)
        return measures[0], measures[-1]

    def predict(self, batch: Batch) -> NDArray[np.float32]:
        """Return the model's values for a batch, [batch, names] or [batch]; several threads may call this at once."""
        try:
            return self._serve(batch.features)
        except Exception as error:  # a failing model may raise anything
            logging.exception("predicting with %s", self._folder)
            raise self._blame(batch, error) from None

    def update(self, batch: Batch, answers: NDArray[np.float32]) -> None:
        """Update the metrics by a batch and the answers of `predict`; batches have to be in order."""
        if self.sample is None:
            sample = batch.part(0, EXAMPLES)
            self.sample = replace(sample, features=self._inputs(sample.features))
            self._order = self._align(self.model.names)
        predictions = self.predictions(batch, answers)
        for mask, measures in self._parts:
            kept = mask[self._done : self._done + len(batch.labels)]
            if kept.all():
                measures.update(predictions)
            elif kept.any():
                measures.update(chosen(predictions, kept))
        self._done += len(batch.labels)
        worst, scores = self._measures.worst, self._measures.scores(predictions)
        examples = []
        for index in worst.candidates(scores).tolist():
            true, predicted = self._measures.describe(predictions, index)
            image, shown = _shown(batch.part(index, index + 1).features, self._data)
            examples.append(Example(batch.key(index), true, predicted, float(scores[index]), image, shown))
        worst.add(examples)

    def predictions(self, batch: Batch, answers: NDArray[np.float32]) -> Any:
        """Return the predictions that measures are updated by, of answers of `predict`; after the first `update`."""
        return self._measures.predictions(batch.labels, self._checked(batch, answers), self._order)

    def predict_images(self, images: Sequence[bytes]) -> NDArray[np.float32]:
        """Return the model's values for encoded images, [images, names], of a data set that has only images."""
        import tensorflow as tf

        (stored,) = self._data.signature.values()
        batches = [images[start : start + PREDICTED_TOGETHER] for start in range(0, len(images), PREDICTED_TOGETHER)]
        return np.concatenate([self._serve({stored: tf.constant(batch, tf.string)}) for batch in batches])

    def used_inputs(self) -> list[str]:
        """Return the data set's inputs that the model reads."""
        return [name for name, stored in self._data.signature.items() if stored in self._stored.values()]

    def measured(self) -> Measured:
        """Return the metrics so far."""
        return Measured(
            folder=self._folder,
            description=unsealed(read_json(self._folder / RECORD_FILE)),
            metrics=self._measures.metrics(),
            measures=self._measures,
            compared=self._compared,
            slices=self._slices,
            unknown=_without(self._data.classes, self.model.names),
            foreign=_without(self.model.names, self._data.classes),
        )

    def notes(self) -> list[str]:
        """Return what the metrics so far hide, in sentences."""
        return list(filter(None, [self._measures.note(self._data.noun)]))

    def _load(self) -> Model:
        try:
            return load(self._folder, self._data)
        except UserError as error:  # its framework is not installed
            if not self._is_champion:
                raise
            raise self._problem(f"cannot be run here. {error.message.removesuffix('.')}", error.fix) from None
        except OtherData as reason:
            if self._is_champion:
                raise
            raise self._problem(str(reason)) from None
        except NotServable as reason:
            raise self._problem(f"does not load: {reason}") from None
        except Exception as error:  # TensorFlow and PyTorch may raise anything for a damaged file
            logging.exception("loading %s", self._folder)
            raise self._problem(f"does not load: {_sentence(error)}") from None

    def _serve(self, features: Features) -> NDArray[np.float32]:
        return self.model.predict(self._inputs(features))[self._outputs.values]

    def _inputs(self, features: Features) -> dict[SignatureName, Any]:
        """Return the features that are inputs of the model, by their names in its own signature."""
        return {SignatureName(name): features[stored] for name, stored in self._stored.items()}

    def _align(self, names: list[str]) -> Counts:
        classes = self._data.classes
        if not self._is_champion and set(names) != set(classes):
            lacking, extra = _without(classes, names), _without(names, classes)
            parts = [f"it lacks {_few(lacking)}"] if lacking else []
            parts += [f"it has {_few(extra)} instead" if lacking else f"it also has {_few(extra)}"] if extra else []
            difference = ", ".join(parts)
            raise self._problem(f"has other {self._outputs.names} than the data set {self._data.name}: {difference}")
        index = {name: position for position, name in enumerate(classes)}
        return np.array([index.get(name, len(index)) for name in names], np.int64)

    def _checked(self, batch: Batch, answers: NDArray[np.float32]) -> Floats:
        """Return the values of a batch, finite, in the shape that the task has."""
        values: Floats = answers.astype(np.float64)
        expected = (len(batch.labels), len(self.model.names)) if self._outputs.names else (len(batch.labels),)
        if values.size != np.prod(expected):
            shape = list(values.shape)
            raise self._problem(f"returned {self._outputs.values} of the shape {shape}, not {list(expected)}")
        if not np.isfinite(values).all():
            raise self._problem(f"returned NaN or infinite {self._outputs.values.removesuffix('s')}s")
        return values.reshape(expected)

    def _blame(self, batch: Batch, error: Exception) -> UserError:
        """Return the error for a failing batch: an example that the model cannot read, or else the model."""
        failing = [batch.key(index) for index in range(len(batch.keys)) if not self._accepts(batch, index)]
        if not failing or (len(failing) == len(batch.keys) > 1) or not self._data.has_image:
            return self._problem(f"does not run: {_sentence(error)}")
        more = f" ({len(failing) - 1} more in its batch)" if len(failing) > 1 else ""
        if self._is_champion:
            return self._problem(f"cannot read the image {failing[0]} of the test split{more}: {_sentence(error)}")
        return UserError(
            f"The image {failing[0]} of the test split cannot be decoded{more}: {_sentence(error)}.",
            setting="data.check",
            value=self._data.settings.get("check"),
            fix=f"repair or remove {failing[0]} in {self._data.source}; data.check=decode finds such images earlier",
        )

    def _accepts(self, batch: Batch, index: int) -> bool:
        """Return whether the model accepts an example in a batch of one."""
        try:
            self._serve(batch.part(index, index + 1).features)
        except Exception:  # any exception, as in predict; the first one is already logged
            return False
        return True

    def _problem(self, problem: str, fix: str | None = None) -> UserError:
        if self._is_champion:
            return UserError(
                f"The champion in {self._folder} {problem}.",
                setting="evaluate.champion",
                value="registered",
                allowed="registered, none",
                fix=f"--set evaluate.champion=none to evaluate without it, or {fix or f'restore {self._folder}'}",
            )
        return UserError(
            f"The model in {self._folder} {problem}.",
            fix="train it again on this data set: slipway run, without --resume",
        )


def load(folder: Path, data: Manifest) -> Model:
    """Load a model for a data set, of whose inputs it may use a part.

    Raises:
        UserError: It is damaged, or in the format of an engine that is not installed.
        OtherData: It is for another task, or has inputs that the data set does not have.
        NotServable: The SavedModel has no serving signature, or one without the task's outputs.
        Exception: Anything that the library raises for a damaged file.
    """
    description = read_json(folder / RECORD_FILE)
    task = description.get("task", "classification" if description.get("classes") else data.task)
    if task != data.task:
        verify(folder)
        raise OtherData(f"was trained for the task {task}; the task of the data set {data.name} is {data.task}")
    model, row = model_files.load(folder), TASKS[data.task]
    for output in filter(None, (row.names, row.values)):
        if output not in model.outputs:
            raise NotServable(
                f"its signature {SIGNATURE!r} has no output {output!r}, which the task {data.task} needs; "
                f"it has {', '.join(model.outputs)}"
            )
    stored, names = model.matched(data.signature), ", ".join(data.all_inputs)
    inputs = {served: data.all_inputs[name] for name, served in data.signature.items()}
    for name, field in model.inputs.items():
        source = model.source(name)
        if name not in stored:
            raise OtherData(f"has the input {source}, which the data set {data.name} does not have: {names}")
        data_input = inputs[stored[name]]
        if (kind := field.type_name) != (expected := TYPES[data_input.kind]):
            raise OtherData(f"reads the input {source} as {kind}, but it is {expected} in the data set {data.name}")
        if data_input.nullable and not field.nullable:
            raise OtherData(f"needs a number for the input {source}, which examples of the data set {data.name} lack")
    return model


def _shown(features: Features, data: Manifest) -> tuple[bytes, dict[str, str]]:
    """Return the encoded image of an example, b"" without one, and its other values as texts."""
    image, texts = b"", dict[str, str]()
    inputs = data.all_inputs
    for name, served in data.signature.items():
        value = features[served][0].numpy()
        if name == IMAGE and data.has_image:
            image = bytes(value)
        elif len(texts) < VALUES_SHOWN and inputs[name].kind != IMAGE:
            flat = np.ravel(np.asarray(value, object) if isinstance(value, bytes) else value).tolist()
            cells = [_cell(element) for element in flat[:ELEMENTS_SHOWN]]
            texts[name] = ", ".join([*cells, "…"] if len(flat) > ELEMENTS_SHOWN else cells)
    return image, texts


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float):
        return "missing" if math.isnan(value) else brief(value)
    return str(value)


def _without(names: Sequence[str], excluded: Sequence[str]) -> tuple[str, ...]:
    known = set(excluded)
    return tuple(name for name in names if name not in known)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _sentence(error: Exception) -> str:
    """Return the first line of an error without its full stop, at most 200 characters."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].strip().rstrip(".")[:200]
