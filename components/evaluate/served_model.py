"""Evaluation of a model through its serving interface: an example's raw values in, predictions out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipway.components.evaluate.measures import EVALUATED
from slipway.components.evaluate.measures.base import Example, Measures
from slipway.components.evaluate.measures.significance import Counts, Floats
from slipway.core.errors import UserError
from slipway.core.integrity import unsealed, verify
from slipway.core.manifest import Manifest, signature_name
from slipway.core.values import JsonObject
from slipway.serving import model as model_files
from slipway.serving.model import RECORD_FILE, SIGNATURE, TYPES, Model, NotServable, read_json
from slipway.trainer.export.examples import EXAMPLES
from slipway.trainer.tasks import TASKS

IMAGE = "image_bytes"  # of the feature `image`
# An example's values in the report: at most so many inputs, and elements of an array.
VALUES_SHOWN, ELEMENTS_SHOWN = 12, 6

# Tensors by the name of the serving signature's input, [batch, …] each.
Features: TypeAlias = Mapping[str, Any]
# The names of the values, [] if there are none, and the values [batch, names] or [batch].
Answers: TypeAlias = tuple[list[str], NDArray[np.float32]]
Serve = Callable[[Features], Answers]
Mask: TypeAlias = NDArray[np.bool_]


class OtherData(NotServable):
    """The model is for data of another task, or with other inputs or classes; the message continues "The model …"."""


@dataclass(frozen=True)
class Batch:
    """A batch of raw features, with the labels [batch, …] and keys [batch] of the records."""

    features: Features
    labels: NDArray[np.generic]
    keys: list[bytes]

    def first(self, count: int) -> Batch:
        """Return a batch of the first examples."""
        features = {name: values[:count] for name, values in self.features.items()}
        return Batch(features, self.labels[:count], self.keys[:count])

    def example(self, index: int) -> Features:
        """Return the features of one example, as a batch of one."""
        return {name: values[index : index + 1] for name, values in self.features.items()}


@dataclass(frozen=True)
class ModelFolder:
    """An evaluated model's folder. `description` is its model.json, `registration` its metadata.json; {} if missing."""

    folder: Path
    description: JsonObject
    registration: JsonObject

    @property
    def name(self) -> str:
        """The registered version, or the folder's name."""
        version = self.registration.get("version")
        return self.folder.name if version is None else f"version {version}"

    @property
    def weights_checksum(self) -> str | None:
        checksum = self.description.get("weights_checksum") or self.registration.get("weights_checksum")
        return None if checksum is None else str(checksum)

    def has_weights_of(self, other: ModelFolder) -> bool:
        """Return whether both models are known to have the same weights."""
        return self.weights_checksum is not None and self.weights_checksum == other.weights_checksum


@dataclass(frozen=True)
class Measured(ModelFolder):
    """A model and its metrics.

    `compared` are the measures on the examples on which the champion and its challenger are compared: those that
    neither has seen. `measures` are on all of them, except the champion's. `unknown` are the data set's classes that it
    does not have, `foreign` its classes that the data set does not have.
    """

    measures: Measures[Any]
    compared: Measures[Any]
    unknown: tuple[str, ...]
    foreign: tuple[str, ...]

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        return self.measures.metrics()

    @functools.cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """95% confidence intervals of metrics."""
        return self.measures.intervals()

    @functools.cached_property
    def without_interval(self) -> dict[str, str]:
        """Why the other metrics have no confidence interval."""
        return self.measures.without()


class ServedModel:
    """A trained model that is being evaluated on a data set.

    Args:
        folder: The model's folder.
        data: The data set's manifest.
        examples: The number of examples.
        worst: The number of worst examples to keep.
        compared: Whether each example is one on which champion and challenger are compared, [examples]; None for all.
        is_champion: Whether it is the champion, which is measured only on these.

    Raises:
        OtherData: It is the champion, and cannot be measured on this data set.
        UserError: It cannot be loaded.
    """

    def __init__(
        self, folder: Path, data: Manifest, examples: int, worst: int, compared: Mask | None, *, is_champion: bool
    ) -> None:
        self._folder = folder
        self._is_champion = is_champion
        self._data = data
        self._outputs = TASKS[data.task]
        self._measures = EVALUATED[data.task].measures(data, examples, worst)
        self._mask, self._done, self._compared = compared, 0, self._measures
        if compared is not None:
            self._compared = EVALUATED[data.task].measures(data, int(compared.sum()), 0)
            self._measures = self._compared if is_champion else self._measures
        self.model = self._load()
        if is_champion:
            self._check_classes(read_json(folder / RECORD_FILE).get("classes") or [])
        self._serve = serving(self.model, data)
        # A few examples for the contract test.
        self.sample: Batch | None = None
        # The model's classes or labels, and the index of each in the data set; known after the first batch.
        self._names: list[str] | None = None
        self._order: Counts = np.zeros(0, np.int64)

    def update(self, batch: Batch, answers: Answers) -> None:
        """Update the metrics by a batch and the answers of `predict`; batches have to be in order."""
        if self.sample is None:
            self.sample = batch.first(EXAMPLES)
        answered = self._values(batch, answers)
        predictions = self._measures.predictions(batch.labels, answered, self._order)
        if self._mask is not None:
            kept = self._mask[self._done : self._done + len(batch.labels)]
            self._done += len(batch.labels)
            if kept.any():
                self._compared.update(self._compared.predictions(batch.labels[kept], answered[kept], self._order))
        if self._measures is not self._compared or self._mask is None:
            self._measures.update(predictions)
        worst, scores = self._measures.worst, self._measures.scores(predictions)
        examples = []
        for index in worst.candidates(scores).tolist():
            true, predicted = self._measures.describe(predictions, index)
            image, values = _shown(batch.example(index))
            key = batch.keys[index].decode(errors="replace")
            examples.append(Example(key, true, predicted, float(scores[index]), image, values))
        worst.add(examples)

    def measured(self) -> Measured:
        """Return the metrics so far."""
        names = self._names or []
        return Measured(
            folder=self._folder,
            description=unsealed(read_json(self._folder / RECORD_FILE)),
            registration=read_json(self._folder / "metadata.json"),
            measures=self._measures,
            compared=self._compared,
            unknown=tuple(name for name in self._data.classes if name not in set(names)),
            foreign=tuple(name for name in names if name not in set(self._data.classes)),
        )

    def _load(self) -> Model:
        try:
            return load_model(self._folder, self._data)
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

    def _check_classes(self, names: list[str]) -> None:
        """Raise OtherData if the model has classes, and none of the data set's."""
        if names and self._data.classes and not set(names) & set(self._data.classes):
            raise OtherData(f"has none of the data set's {self._outputs.names}, but {_few(names)}")

    def predict(self, batch: Batch) -> Answers:
        """Return what the model answers to a batch; several threads may call this at once."""
        try:
            return self._serve(batch.features)
        except Exception as error:  # a failing model may raise anything
            logging.exception("predicting with %s", self._folder)
            raise self._blame(batch, error) from None

    def _values(self, batch: Batch, answers: Answers) -> Floats:
        """Return the values of a batch, finite, and learn the order of their names from the first batch."""
        names, raw = answers
        if self._names is None:
            self._names, self._order = names, self._align(names)
        values: Floats = raw.astype(np.float64)
        expected = (len(batch.labels), len(names)) if self._outputs.names else (len(batch.labels),)
        if values.size != np.prod(expected):
            found = list(values.shape)
            raise self._problem(f"returned {self._outputs.values} of the shape {found}, not {list(expected)}")
        if not np.isfinite(values).all():
            raise self._problem(f"returned NaN or infinite {self._outputs.values.removesuffix('s')}s")
        return values.reshape(expected)

    def _align(self, names: list[str]) -> Counts:
        index = {name: position for position, name in enumerate(self._data.classes)}
        if not self._is_champion and set(names) != set(index):
            raise self._problem(
                f"has other {self._outputs.names} than the data set {self._data.name}: "
                f"{_class_difference(names, list(index))}"
            )
        return np.array([index.get(name, len(index)) for name in names], np.int64)

    def _blame(self, batch: Batch, error: Exception) -> UserError:
        """Return the error for a failing batch: an example that the model cannot read, or else the model."""
        passes = list(self._alone(batch))
        failing = [key.decode(errors="replace") for key, ok in zip(batch.keys, passes, strict=True) if not ok]
        if not failing or (len(failing) == len(batch.keys) > 1) or IMAGE not in batch.features:
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

    def _alone(self, batch: Batch) -> Iterator[bool]:
        """Yield for each example whether the model accepts it in a batch of one."""
        for index in range(len(batch.keys)):
            try:
                self._serve(batch.example(index))
                yield True
            except Exception:  # any exception, as in predict; the first one is already logged
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


def _shown(features: Features) -> tuple[bytes, dict[str, str]]:
    """Return the encoded image of an example, b"" without one, and its other values as texts."""
    image, texts = b"", dict[str, str]()
    for name, tensor in features.items():
        value = tensor[0].numpy()
        if name == IMAGE:
            image = bytes(value)
        elif len(texts) < VALUES_SHOWN and not (isinstance(value, bytes) and name.endswith("_bytes")):
            flat = np.ravel(np.asarray(value, object) if isinstance(value, bytes) else value).tolist()
            cells = [_cell(each) for each in flat[:ELEMENTS_SHOWN]]
            texts[name] = ", ".join([*cells, "…"] if len(flat) > ELEMENTS_SHOWN else cells)
    return image, texts


def _cell(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:g}" if isinstance(value, float) else str(value)


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


def load(folder: Path, data: Manifest) -> Serve:
    """Load the model in `folder`; see `load_model` for the arguments and errors."""
    return serving(load_model(folder, data), data)


def serving(model: Model, data: Manifest) -> Serve:
    """Return a model's prediction of the values that the data set's task has."""
    output = TASKS[data.task].values

    def serve(features: Features) -> Answers:
        values = model.predict(features)[output]
        return model.names, values

    return serve


def load_model(folder: Path, data: Manifest) -> Model:
    """Load the model in `folder`.

    Args:
        folder: The model's folder.
        data: The manifest of the data set. Of its inputs, the model may use a part.

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
    _check_inputs({name: each.type_name for name, each in model.inputs.items()}, data)
    return model


def _check_inputs(types: Mapping[str, str], data: Manifest) -> None:
    """Raise OtherData unless the data set has inputs of these names and types of the serving signature."""
    given = {signature_name(name, each): TYPES[each.kind] for name, each in data.all_inputs.items()}
    for name, kind in types.items():
        if name not in given:
            raise OtherData(f"has the input {name}, which the data set {data.name} does not have: {', '.join(given)}")
        if kind != given[name]:
            raise OtherData(f"reads the input {name} as {kind}, but it is {given[name]} in the data set {data.name}")
