"""A model as it is served: arrays of raw values by input in, arrays by output out, whichever engine trained it.

The code that built the model is not needed. A SavedModel decodes images and prepares values itself. For a model in an
engine's own format, this is done as in the SavedModel, with the size, resize mode and channels in its model.json. A
custom program's model is loaded by the user's own function. Evaluation, `slipway predict` and the server load models
here, so a model is judged as it will be served.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from slipway.core import integrity
from slipway.core.errors import UserError
from slipway.core.integrity import RECORD_FILE as RECORD_FILE
from slipway.core.manifest import Input, Manifest, SignatureName, TaskName
from slipway.core.values import JsonObject, stored_name
from slipway.serving.kinds import KINDS, Field, Kind
from slipway.trainer.engines import builder, installed, quick_import
from slipway.trainer.engines.table import ENGINES, SAVED_MODEL_FILE
from slipway.trainer.tasks import TASKS

SIGNATURE = "serving_default"
IMAGE_SUFFIX = "_bytes"
# Types of the serving signature's inputs, and of a record's features, by kind.
TYPES = {name: kind.type_name for name, kind in KINDS.items() if kind.type_name}
# The input and the output of a model with a custom function.
INSTANCES, PREDICTIONS = SignatureName("instances"), "predictions"
MODULE_SETTING = "serve.module"
CONTRACT = "a function of (folder: Path) that returns a function from a list of instances to a list of predictions"

# [batch, …] by the name of an input: NumPy arrays (bytes in arrays of objects), or TensorFlow's tensors.
Arrays: TypeAlias = Mapping[SignatureName, Any]
# The outputs by name, [batch, …]; without the one that has the names of classes or labels.
Outputs: TypeAlias = dict[str, NDArray[Any]]


class NotServable(Exception):
    """The model in the folder cannot be served; the message says why."""


@dataclass
class Model:
    """A loaded model.

    Attributes:
        folder: Its folder.
        task: What it was trained for; None for a custom model.
        inputs: Its inputs by name.
        outputs: The names of all outputs.
        description: Its model.json, {} if missing.
        function: Computes the outputs.
        names: The names of the classes or labels, in the order of the probabilities; read from a SavedModel's answers,
            so known after the first prediction.
        sizes: The batch sizes that need no compilation, ascending; () if any size is as good as another.
    """

    folder: Path
    task: TaskName | None
    inputs: dict[SignatureName, Field]
    outputs: tuple[str, ...]
    description: JsonObject
    function: Callable[[Arrays], tuple[list[str] | None, Outputs]]
    names: list[str] = field(default_factory=list)
    sizes: tuple[int, ...] = ()

    @property
    def values(self) -> str | None:
        """The name of the output with the predictions; None for a custom model."""
        return TASKS[self.task].values if self.task else None

    @property
    def threshold(self) -> float | None:
        """The probability of the second of two classes from which it is predicted; None: if it is the higher one."""
        return self.description.get("threshold")

    def best(self, probabilities: NDArray[Any]) -> NDArray[np.int64]:
        """Return the index of the class that is predicted, [batch], from the probabilities [batch, classes]."""
        if self.threshold is None:
            return probabilities.argmax(axis=-1)
        return (probabilities[:, 1] >= np.float32(self.threshold)).astype(np.int64)

    @property
    def is_custom(self) -> bool:
        """Whether a custom function predicts, which receives instances as they are."""
        return INSTANCES in self.inputs and self.task is None

    @property
    def stored_inputs(self) -> dict[SignatureName, Input]:
        """The inputs, as the data set describes them; {} without model.json."""
        manifest = _manifest(self.folder, self.description)
        return {served: manifest.all_inputs[name] for name, served in manifest.signature.items()}

    @functools.cached_property
    def sources(self) -> dict[str, SignatureName]:
        """The names of the inputs, by their names in the source; those of the signature where these are not known."""
        return {self.source(name): name for name in self.inputs}

    @functools.cached_property
    def accepted(self) -> dict[str, SignatureName]:
        """The names of the inputs, by all names that requests and tables may use: the source's and the signature's."""
        return {**{str(name): name for name in self.inputs}, **self.sources}

    def source(self, name: SignatureName) -> str:
        """Return an input's name in the source, such as a column's header."""
        return self.inputs[name].source or name

    def matched(self, signature: Mapping[str, SignatureName]) -> dict[SignatureName, SignatureName]:
        """Return the names in a data set's signature of those of the inputs that the data set has."""
        served = {name: name for name in signature.values()}
        stored_names = {
            name: next(
                filter(None, map(signature.get, (input_field.source, stored_name(input_field.source), name))), None
            )
            if input_field.source
            else served.get(name)
            for name, input_field in self.inputs.items()
        }
        return {name: stored for name, stored in stored_names.items() if stored is not None}

    def predict(self, arrays: Arrays) -> Outputs:
        """Return the outputs for a batch of raw values; other arrays than the inputs are ignored.

        Raises:
            Exception: Anything that the library raises, such as for an image that cannot be decoded.
        """
        names, outputs = self.function(
            {name: input_field.matched(arrays[name]) for name, input_field in self.inputs.items()}
        )
        if names is not None and not self.names:
            self.names = names
        return outputs

    def unknown(self, arrays: Arrays) -> dict[str, list[str]]:
        """Return the values that the training data does not have, by column; see `Field.unknown`."""
        by_column = {self.source(name): input_field.unknown(arrays[name]) for name, input_field in self.inputs.items()}
        return {column: values for column, values in by_column.items() if values}

    def predict_padded(self, arrays: Arrays) -> Outputs:
        """Return the same as `predict`, from a batch that is padded to one of `sizes` so that nothing is compiled."""
        examples = len(next(iter(arrays.values())))
        size = next((size for size in self.sizes if size >= examples), examples)
        if size == examples:
            return self.predict(arrays)
        missing = size - examples
        padded = {
            name: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) for name, array in arrays.items()
        }
        return {name: array[:examples] for name, array in self.predict(padded).items()}


def read_json(path: Path) -> JsonObject:
    """Return the JSON object in a file, {} if it is missing or invalid. Raises OSError if it cannot be read."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def is_model(folder: Path) -> bool:
    """Return whether `load` can load the folder without a custom function."""
    return any((folder / row.model_file).is_file() for row in ENGINES.values())


def load(folder: Path, module: str | None = None) -> Model:
    """Load the model in `folder`.

    Args:
        folder: The model's folder.
        module: The function of a custom model, as module:function; see `CONTRACT`.

    Raises:
        UserError: The model is damaged, or in the format of an engine that is not installed, or the function cannot be
            imported or fails.
        NotServable: There is no model, or the SavedModel has no serving signature.
        Exception: Anything that the library raises for a damaged file.
    """
    integrity.verify(folder)
    if module is not None:
        return _custom(folder, module)
    description = read_json(folder / RECORD_FILE)
    if (folder / SAVED_MODEL_FILE).is_file():
        return _saved_model(folder, description)
    for engine, row in ENGINES.items():
        if (folder / row.model_file).is_file():
            installed.verify(engine)
            return _program(engine, folder)
    raise NotServable(f"it has none of {', '.join(dict.fromkeys(row.model_file for row in ENGINES.values()))}")


def import_tensorflow() -> None:
    """Import TensorFlow, which decodes images for every engine, without Keras; either model may be of any engine."""
    if "tensorflow" not in sys.modules:
        quick_import.import_before_tensorflow()
        quick_import.import_tensorflow(keras=False)


def _saved_model(folder: Path, description: JsonObject) -> Model:
    import_tensorflow()
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder))
    if SIGNATURE not in loaded.signatures:
        raise NotServable(f"its SavedModel has no signature {SIGNATURE!r}")
    # Access through `loaded` keeps the object alive; the signature alone would not.
    specs = loaded.signatures[SIGNATURE].structured_input_signature[1]
    outputs = tuple(loaded.signatures[SIGNATURE].structured_outputs)
    task = description.get("task") or ("classification" if description.get("classes") else _task_of(outputs))
    names_output = TASKS[task].names if task in TASKS else None
    manifest = _manifest(folder, description)
    stored = manifest.all_inputs
    sources = {served: name for name, served in manifest.signature.items()}

    names: list[str] | None = None

    def function(arrays: Arrays) -> tuple[list[str] | None, Outputs]:
        nonlocal names
        tensors = {name: tf.convert_to_tensor(array, specs[name].dtype) for name, array in arrays.items()}
        result = loaded.signatures[SIGNATURE](**tensors)
        if names_output in result and names is None:  # every example of every answer has the same
            names = [name.decode(errors="replace") for name in result[names_output].numpy()[0]]
        return names, {name: tensor.numpy() for name, tensor in result.items() if name != names_output}

    def described(name: SignatureName, spec: Any) -> Field:
        dtype = np.dtype(object if spec.dtype == tf.string else spec.dtype.as_numpy_dtype)
        guessed: Kind = "other"
        if spec.dtype == tf.string:
            guessed = "image" if name.endswith(IMAGE_SUFFIX) else "category"
        shape = tuple(spec.shape.as_list()[1:])
        source = sources.get(name)
        return (
            Field.of(stored[source], dtype, shape, manifest.sources[source]) if source else Field(guessed, dtype, shape)
        )

    order = {str(name): position for position, name in enumerate(sources)}  # the signature's is alphabetic
    inputs = {
        SignatureName(name): described(SignatureName(name), specs[name])
        for name in sorted(specs, key=lambda name: order.get(name, len(order)))
    }
    row = ENGINES.get(str(description.get("engine")))
    sizes = tuple(2**power for power in range(11)) if row and row.compiles_each_batch else ()
    return Model(folder, task if task in TASKS else None, inputs, outputs, description, function, sizes=sizes)


def _task_of(outputs: tuple[str, ...]) -> TaskName | None:
    """Return the task of a SavedModel without model.json that has the outputs of one."""
    for name, task in TASKS.items():
        if all(output in outputs for output in (task.values, task.names) if output):
            return name
    return None


def _program(engine: str, folder: Path) -> Model:
    """Load a model in the engine's own format; see `load` in slipway/trainer/engines/ENGINE/export.py."""
    import_tensorflow()
    import tensorflow as tf

    from slipway.trainer.data import features as preparation
    from slipway.trainer.data.images import traced

    description: JsonObject = json.loads((folder / RECORD_FILE).read_bytes())
    manifest = _manifest(folder, description)
    decoder = preparation.Features(manifest)
    predictions = importlib.import_module(f"slipway.trainer.engines.{engine}.export").load(folder)
    inputs = fields_of(manifest)
    row = TASKS[manifest.task]

    @traced(input_signature=[decoder.requests()])
    def decode(requests: Any) -> Any:
        return decoder.decode(requests, standardized=False)  # the model has the statistics itself

    def function(arrays: Arrays) -> tuple[list[str] | None, Outputs]:
        requests = {
            name: tf.convert_to_tensor(arrays[name], inputs[name].type_name) for name in manifest.signature.values()
        }
        return None, {row.values: predictions(preparation.each(_array, decode(requests)))}

    outputs = tuple(filter(None, (row.names, row.values)))
    return Model(folder, manifest.task, inputs, outputs, description, function, names=list(manifest.classes))


def fields_of(manifest: Manifest) -> dict[SignatureName, Field]:
    """Return the inputs of a model that Slipway's trainer wrote."""
    names, inputs = manifest.signature, dict[SignatureName, Field]()
    for name, feature in manifest.all_inputs.items():
        dtype = np.dtype(object if TYPES[feature.kind] == "string" else TYPES[feature.kind])
        inputs[names[name]] = Field.of(feature, dtype, feature.stored_shape, manifest.sources[name])
    return inputs


def described(folder: Path, description: JsonObject) -> Model:
    """Return a model by its model.json alone, which cannot predict; one without a task there is a custom model."""

    def function(_arrays: Arrays) -> NoReturn:
        raise NotServable("only its description is loaded")

    if not description.get("task"):
        return Model(folder, None, {INSTANCES: Field("other", np.dtype(object))}, (), description, function)
    manifest = _manifest(folder, description)
    return Model(folder, manifest.task, fields_of(manifest), (), description, function)


def _array(tensor: Any) -> NDArray[Any]:
    array: NDArray[Any] = tensor.numpy()
    return array.astype(np.int64) if array.dtype == np.int32 else array


def _manifest(folder: Path, description: JsonObject) -> Manifest:
    """Return the part of the data set's manifest that model.json repeats: how raw values become inputs."""
    height, width = description.get("image_size", (0, 0))
    return Manifest(
        name=folder.name,
        fingerprint="",
        source="",
        settings={},
        task=description.get("task", "classification"),
        classes=[str(name) for name in description.get("classes", ())],
        inputs={name: Input.model_validate(entry) for name, entry in description.get("inputs", {}).items()},
        image_size=(height, width),
        channels=description.get("channels", 3),
        resize=True,
        resize_mode=description.get("resize_mode", "stretch"),
        encodings=[],
        splits={},
    )


def check_signature(module: str, signature: inspect.Signature) -> None:
    """Raise UserError if a function with this signature cannot be called with the model's folder."""
    try:
        signature.bind(None)
    except TypeError as error:
        raise UserError(
            f"The function {module} cannot be called with (folder): {error}.",
            setting=MODULE_SETTING,
            value=module,
            allowed=CONTRACT,
            fix=f"def {module.partition(':')[2]}(folder): …",
        ) from None


def _custom(folder: Path, module: str) -> Model:
    """Load a model with the user's function.

    Raises:
        UserError: The function cannot be imported, fails, or returns nothing that can be called.
    """
    make = builder.load(module, MODULE_SETTING, CONTRACT)
    with contextlib.suppress(ValueError):  # a C function without a signature
        check_signature(module, inspect.signature(make))
    try:
        with builder.user_code():
            predict = make(folder)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The function {module} {builder.what_happened(error)}",
            setting=MODULE_SETTING,
            value=module,
            fix=f"fix the function; it was called with {folder}",
        ) from error
    if not callable(predict):
        raise UserError(
            f"The function {module} returned a {type(predict).__name__}, which cannot be called.",
            setting=MODULE_SETTING,
            value=module,
            allowed=CONTRACT,
        )

    def function(arrays: Arrays) -> tuple[None, Outputs]:
        instances = list(arrays[INSTANCES])
        try:
            predictions = list(predict(instances))
        except SystemExit as error:  # would end the server, or the command without a word
            raise NotServable(f"{module} raised SystemExit: {error}") from error
        if len(predictions) != len(instances):
            raise NotServable(f"{module} returned {len(predictions)} predictions for {len(instances)} instances")
        answers = np.empty(len(predictions), object)
        answers[:] = predictions
        return None, {PREDICTIONS: answers}

    inputs = {INSTANCES: Field("other", np.dtype(object))}
    return Model(folder, None, inputs, (PREDICTIONS,), read_json(folder / RECORD_FILE), function)
