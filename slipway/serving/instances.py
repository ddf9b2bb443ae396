"""Vertex AI's prediction contract: JSON instances to arrays, and a model's outputs to JSON predictions.

A request is `{"instances": […]}`, or outside of Vertex AI also a file: CSV with an instance in each row, or an image.
An instance is an object of the model's inputs, by their names in the source or in the signature, or the bare value if
there is only one: a number, a text, nested lists of these for an input with a shape, and for an image `{"b64": "…"}`,
its encoded bytes in base64. A prediction is an object, by task: `label`, `classes` and `probabilities`
(classification); `labels` and `probabilities` (multilabel); `prediction` (regression); the outputs by name for other
SavedModels. A custom model receives and returns any JSON.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slipway.core import images
from slipway.core.cores import available_cores
from slipway.core.errors import nearest
from slipway.core.formatting import brief
from slipway.core.manifest import Input, SignatureName
from slipway.core.values import JsonObject
from slipway.serving.kinds import KINDS, BadRequest, Field, array_of, checked, needs_conversion, noun, objects
from slipway.serving.model import IMAGE_SUFFIX, INSTANCES, PREDICTIONS, Arrays, Model, Outputs
from slipway.trainer.tasks import TASKS

PNG_END, JPEG_END = b"IEND\xaeB`\x82", b"\xff\xd9"
LABEL = "label"
# What the media type of a body begins with that is one value, such as image/.
FILE_TYPES = tuple(f"{row.media_types.partition('/')[0]}/".encode() for row in KINDS.values() if row.media_types)
CSV = b"text/csv"
# What libraries say when memory is short: smaller batches may fit.
OUT_OF_MEMORY = ("ResourceExhausted", "OutOfMemory")
# The words of a text's usual value.
EXAMPLE_WORDS = 3
# Longest part of a library's error message in an answer.
MAX_CHARACTERS = 200
# Where in its graph TensorFlow raised an error.
_OPERATION = re.compile(r"\{\{.*?\}\}|\[Op:\w+\].*")

Row = Mapping[SignatureName, Any]


class ModelFailed(Exception):
    """The model raised an exception, or returned NaN; the message says which."""


def of_body(model: Model, body: bytes, media_type: bytes) -> dict[SignatureName, NDArray[Any]]:
    """Return a model's inputs for a request: of its JSON, a CSV file's rows, or one file as it is, such as an image.

    Raises:
        BadRequest: It is not JSON or CSV, has no instances, or one does not fit the model's inputs.
    """
    if media_type.startswith(CSV):
        from slipway.serving import tables

        return tables.of_body(model, body)
    if media_type.startswith(FILE_TYPES) or images.format_of(body):  # curl's default type is that of a form
        return arrays(model, [of_image(body) if model.is_custom else body])
    return arrays(model, read(body))


def read(body: bytes) -> list[Any]:
    """Return the instances of a request's JSON.

    Raises:
        BadRequest: It is not JSON, or has no list of instances.
    """
    if body.startswith(b"--"):  # multipart/form-data
        raise BadRequest(
            "The body is a form; send an image as it is: --data-binary @FILE -H 'Content-Type: image/jpeg'"
        )
    request = parse(body, "The body")
    if not isinstance(request, dict) or not isinstance(request.get("instances"), list):
        raise BadRequest('The body has no list of instances: {"instances": […]}')
    if not request["instances"]:
        raise BadRequest("The list of instances is empty")
    instances: list[Any] = request["instances"]
    return instances


def example(stored: Input) -> Any:
    """Return an input's usual value: the training split's mean, first category, frequent words; None for an image."""
    shape = stored.stored_shape
    if stored.kind == "image" or len(shape) > 1:
        return None
    if stored.kind == "category":
        first = next(filter(None, stored.vocabulary), "")
        return [first] * shape[0] if shape else first
    if stored.kind == "text":
        return " ".join([entry for entry in stored.vocabulary if entry.isalpha()][:EXAMPLE_WORDS])
    if stored.kind == "date":
        return stored.usual_date
    values = [float(f"{value:.4g}") for value in stored.mean] or [0] * (shape[0] if shape else 1)
    return values if shape else values[0]


def usual(stored: Input) -> str:
    """Return which values an input has in the training split, in words; "" if that is not known."""
    match stored.kind:
        case "number" if len(stored.mean) == 1:
            words = f"mean {brief(stored.mean[0])}, standard deviation {brief(stored.deviation[0])}"
            return f"{words}, may be missing" if stored.nullable else words
        case "integer" if stored.maximum is not None:
            return f"up to {stored.maximum:,}"
        case "category":
            return f"{len(stored.vocabulary):,} categories"
        case "text":
            return f"the first {stored.shape[0]:,} words or subwords"
        case "date":
            return f"such as {stored.usual_date}, or with a time" + ", may be missing" * stored.nullable
    return ""


def parse(text: bytes, name: str) -> Any:
    """Return the value of JSON in UTF-8; `name` names the text in the error.

    Raises:
        BadRequest: It is not JSON, which has neither NaN nor infinite numbers.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{name} is not JSON: {error}"[:MAX_CHARACTERS]) from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def arrays(model: Model, instances: Sequence[Any]) -> dict[SignatureName, NDArray[Any]]:
    """Return a model's inputs for instances of JSON.

    Raises:
        BadRequest: An instance does not fit the model's inputs, or an image is not valid.
    """
    if model.is_custom:
        return {INSTANCES: objects(instances)}
    return stack(model, [row(model, instance, index) for index, instance in enumerate(instances)])


def row(model: Model, instance: Any, index: int = 0) -> Row:
    """Return an instance's values by input, checked: an image's bytes, a category's bytes, numbers, and lists of them.

    Raises:
        BadRequest: It does not fit the model's inputs, or an image is not valid.
    """
    values, names = instance, model.accepted
    if len(model.inputs) == 1 and not (isinstance(instance, dict) and names.keys() & instance.keys()):
        values = {next(iter(model.sources)): instance}
    if not isinstance(values, dict):
        raise BadRequest(
            f"{noun(instance).capitalize()} is not an object of the inputs {', '.join(model.sources)}", index
        )
    spelled: dict[SignatureName, str] = {}
    for name in values:
        if name not in names:
            near = nearest(str(name), model.sources)
            hint = f"; the closest is {near}" if near else f"; it has {', '.join(model.sources)}"
            raise BadRequest(f"The model has no input {str(name)!r:.80}{hint}", index, str(name)[:80])
        if spelled.setdefault(names[name], name) != name:
            raise BadRequest(f"{spelled[names[name]]} and {name} are names of one input", index, name)
    by_input = {}
    for source, name in model.sources.items():
        if name not in spelled:
            raise BadRequest("The value is missing", index, source)
        field = model.inputs[name]
        try:
            by_input[name] = checked(field, values[spelled[name]], field.shape)
        except ValueError as error:
            raise BadRequest(str(error), index, spelled[name]) from None
    return by_input


def stack(model: Model, rows: Sequence[Row]) -> dict[SignatureName, NDArray[Any]]:
    """Return rows as arrays by input, [rows, …].

    Raises:
        BadRequest: Values of one input have different shapes.
    """
    stacked = {}
    for name, field in model.inputs.items():
        try:
            stacked[name] = array_of(field, [values[name] for values in rows])
        except ValueError:
            raise BadRequest(
                "The instances have values of different shapes", len(rows) - 1, model.source(name)
            ) from None
    return stacked


def undecodable(model: Model, batch: Arrays) -> Iterator[tuple[int, str, str]]:
    """Yield the images of a batch that fail to decode: the example, the input and the reason."""
    for name, field in model.inputs.items():
        if not field.is_image:
            continue
        import tensorflow as tf

        channels = int(model.description.get("channels", 3))
        for index, data in enumerate(batch[name]):
            try:
                tf.io.decode_image(data, channels=channels, expand_animations=False)
            except tf.errors.OpError as error:
                end = PNG_END if data.startswith(images.PNG_START) else JPEG_END
                reason = sentence(error) if data.rstrip(b"\0").endswith(end) else "it is cut short"
                yield index, model.source(name), f"The image cannot be decoded: {reason}"


def sentence(error: BaseException) -> str:
    """Return the first line of a library's error, without its full stop."""
    text = _OPERATION.sub("", str(getattr(error, "message", None) or error)).strip()
    return (text.splitlines() or [type(error).__name__])[0].strip().rstrip(".")[:MAX_CHARACTERS]


def answers(
    model: Model, arrays: Arrays, examples: int, predict: Callable[[Arrays], Outputs]
) -> list[Any | BadRequest | ModelFailed]:
    """Return the predictions, or the fault, of each example; see `outputs_of`."""
    outputs, faults = outputs_of(model, arrays, examples, predict)
    remaining = iter(in_words(model, outputs))
    return [faults[index] if index in faults else next(remaining) for index in range(examples)]


def outputs_of(
    model: Model, arrays: Arrays, examples: int, predict: Callable[[Arrays], Outputs]
) -> tuple[Outputs, dict[int, BadRequest | ModelFailed]]:
    """Return the outputs of the examples without a fault, {} if there is none, and the faults of the others by index.

    A fault is an image that cannot be decoded, or outputs that are not finite. Images that the model cannot decode as
    they are, are converted. A batch that does not fit in memory is halved.

    Args:
        model: The model.
        arrays: Its inputs.
        examples: Number of examples in them.
        predict: Returns the outputs for arrays.

    Raises:
        Exception: The model fails, whatever the images.
    """
    arrays, unreadable = _readable(model, arrays)
    if unreadable:
        return _others(model, arrays, examples, unreadable, predict)
    try:
        outputs = predict(arrays)
    except Exception as error:  # a failing model may raise anything
        values = {name: np.asarray(arrays[name]) for name in model.inputs}
        if examples > 1 and any(word in type(error).__name__ for word in OUT_OF_MEMORY):
            return _halves(model, values, examples, predict)
        damaged = {index: BadRequest(reason, index, name) for index, name, reason in undecodable(model, values)}
        if not damaged:
            raise
        return _others(model, values, examples, damaged, predict)
    failed = {index: ModelFailed(reason) for index, reason in not_finite(outputs).items()}
    if not failed:
        return outputs, {}
    sound = [index for index in range(examples) if index not in failed]
    return {name: values[sound] for name, values in outputs.items()} if sound else {}, {**failed}


def _halves(
    model: Model, arrays: Arrays, examples: int, predict: Callable[[Arrays], Outputs]
) -> tuple[Outputs, dict[int, BadRequest | ModelFailed]]:
    half = examples // 2
    first, faults = outputs_of(model, {name: array[:half] for name, array in arrays.items()}, half, predict)
    last, last_faults = outputs_of(
        model, {name: array[half:] for name, array in arrays.items()}, examples - half, predict
    )
    outputs = {name: np.concatenate([first[name], last[name]]) for name in first.keys() & last.keys()} or first or last
    return outputs, faults | {half + index: fault for index, fault in last_faults.items()}


def _others(
    model: Model,
    arrays: Arrays,
    examples: int,
    damaged: Mapping[int, BadRequest],
    predict: Callable[[Arrays], Outputs],
) -> tuple[Outputs, dict[int, BadRequest | ModelFailed]]:
    """Predict without the examples that are damaged."""
    sound = [index for index in range(examples) if index not in damaged]
    if not sound:
        return {}, {**damaged}
    rest = {name: np.asarray(arrays[name])[sound] for name in model.inputs}
    outputs, faults = outputs_of(model, rest, len(sound), predict)
    return outputs, {**damaged, **{sound[index]: fault for index, fault in faults.items()}}


def _readable(model: Model, arrays: Arrays) -> tuple[Arrays, dict[int, BadRequest]]:
    """Return arrays with images as the model decodes them, and the errors of those that cannot be converted."""
    readable, faults = dict(arrays), {}
    for name in (name for name, field in model.inputs.items() if field.is_image):
        values = np.array(arrays[name], object)
        indices = [index for index, data in enumerate(values) if needs_conversion(data)]
        if not indices:
            continue
        with ThreadPoolExecutor(min(available_cores(), len(indices))) as pool:
            converted = pool.map(_converted, values[indices])
        for index, result in zip(indices, converted, strict=True):
            if isinstance(result, images.BadImage):
                faults[index] = BadRequest(f"The image cannot be decoded: {result}", index, model.source(name))
            else:
                values[index] = result
        readable[name] = values
    return readable, faults


def _converted(data: bytes) -> bytes | images.BadImage:
    try:
        return images.converted(data)
    except images.BadImage as reason:
        return reason


def predictions(model: Model, outputs: Outputs) -> list[Any]:
    """Return the JSON predictions for a model's outputs.

    Raises:
        ValueError: The model returned NaN or infinite numbers.
    """
    for fault in not_finite(outputs).values():
        raise ValueError(fault)
    return in_words(model, outputs)


def in_words(model: Model, outputs: Outputs) -> list[Any]:
    """Return the JSON predictions for outputs that are finite, [] if there are none."""
    if not outputs:
        return []
    if model.is_custom:
        return list(outputs[PREDICTIONS])
    names = model.names
    match model.task:
        case "classification" if names:
            best = model.best(outputs["probabilities"]).tolist()
            rows = outputs["probabilities"].tolist()
            json_predictions: list[dict[str, Any]] = [
                {LABEL: names[top], "classes": names, "probabilities": row} for top, row in zip(best, rows, strict=True)
            ]
        case "multilabel" if names:
            json_predictions = [{"labels": names, "probabilities": row} for row in outputs["probabilities"].tolist()]
        case "regression":
            json_predictions = [{"prediction": value} for value in outputs["prediction"].reshape(-1).tolist()]
        case _:
            json_predictions = [{} for _ in next(iter(outputs.values()))]
    for name in additional_outputs(model, outputs):
        for prediction, value in zip(json_predictions, outputs[name].tolist(), strict=True):
            prediction[name] = _in_json(name, value)
    return json_predictions


def additional_outputs(model: Model, outputs: Outputs) -> set[str]:
    """Return the names of the outputs besides those of the model's task."""
    row = TASKS[model.task] if model.task else None
    return outputs.keys() - ({LABEL, row.values, row.names} if row else set())


def not_finite(outputs: Outputs) -> dict[int, str]:
    """Return why the outputs of examples are no predictions, by the index of the example."""
    return {
        int(index): f"the model returned NaN or infinite {name}"
        for name, values in outputs.items()
        if values.dtype.kind == "f" and not np.isfinite(values).all()
        for index in np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(axis=1))
    }


def of_image(data: bytes) -> JsonObject:
    """Return an image as JSON has it."""
    return {"b64": base64.b64encode(data).decode()}


def _in_json(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_in_json(name, element) for element in value]
    if isinstance(value, bytes):
        if name.endswith(IMAGE_SUFFIX):
            return of_image(value)
        return value.decode(errors="replace")
    return value


def warm_up(model: Model, sizes: Sequence[int] = (1,)) -> None:
    """Predict blank examples in batches of these sizes: what is compiled or allocated is then ready.

    A model that is compiled for each batch size (`Model.sizes`) also predicts those between them.

    Raises:
        Exception: The model fails.
    """
    if model.is_custom:
        return  # its instances are of the user's own kind
    between = {size for size in model.sizes if min(sizes) < size < max(sizes)}
    for size in sorted({*sizes, *between}):
        outputs = model.predict_padded(stack(model, [_blank(model)] * size))
        predictions(model, outputs)
    logging.getLogger(__name__).info("the model in %s is ready", model.folder)


def _blank(model: Model) -> Row:
    from PIL import Image

    height, width = model.description.get("image_size") or (0, 0)
    file = io.BytesIO()
    Image.new("L", (width or 64, height or 64)).save(file, "PNG")
    image = file.getvalue()

    def blank(field: Field, shape: tuple[int | None, ...]) -> Any:
        if shape:
            return [blank(field, shape[1:]) for _ in range(shape[0] or 1)]
        if field.kind == "image":
            return image
        return b"" if field.dtype == object else 0

    return {name: blank(field, field.shape) for name, field in model.inputs.items()}
