"""How the features of a record become the inputs of the network: once, for training, evaluation and the exported model.

The inputs of a batch are one array if the image is the only one, and otherwise a dict by name, in the manifest's order.
`tf.nest`, `jax.tree` and `each` treat both alike. Readers hold images as uint8, which the devices scale (`scaled`);
other inputs are held as the network receives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.core.manifest import Input, Manifest, SignatureName
from slipway.trainer.data.images import decode_images, decode_prepared, scale
from slipway.trainer.data.texts import date_features, word_ids

# A batch's inputs, or those of a whole split: [examples, …].
Inputs: TypeAlias = NDArray[Any] | dict[str, NDArray[Any]]
# int32 [examples] (classification), float32 [examples, labels] of 0 and 1 (multilabel), or float32 [examples], the
# standardized target (regression).
Labels: TypeAlias = NDArray[Any]
# The same as tensors: one, or a dict by name.
Tensors: TypeAlias = Any

One = TypeVar("One")
# A category with more values is one column of positions in a matrix.
MAX_INDICATORS = 32
_STORED = {
    "image": tf.string, "number": tf.float32, "integer": tf.int64, "category": tf.string, "date": tf.string,
    "text": tf.string,
}  # fmt: skip


def each(function: Callable[..., Any], *inputs: Any) -> Any:
    """Apply `function` to each input: to the arrays, or to those with the same name."""
    first = inputs[0]
    if isinstance(first, dict):
        return {name: function(*(values[name] for values in inputs)) for name in first}
    return function(*inputs)


def with_image(function: Callable[[One], One], inputs: Any) -> Any:
    """Apply `function` to the input `image` only."""
    return {**inputs, "image": function(inputs["image"])} if isinstance(inputs, dict) else function(inputs)


def in_order(inputs: Any, manifest: Manifest) -> Any:
    """Return inputs in the manifest's order; JAX sorts the names of a dict that a function receives."""
    return {name: inputs[name] for name in manifest.all_inputs} if isinstance(inputs, dict) else inputs


def scaled(inputs: Tensors) -> Tensors:
    """Convert decoded inputs to the network's: uint8 pixels to float32 in [0, 1]."""
    return each(lambda values: scale(values) if values.dtype == tf.uint8 else values, inputs)


def blank(manifest: Manifest, examples: int, *, standardized: bool = True) -> tuple[Inputs, Labels]:
    """Return decoded inputs and labels that are all zero; numbers as they are in a record if not `standardized`."""
    arrays = {
        name: np.zeros(
            (examples, *(feature.stored_shape if feature.kind == "number" and not standardized else feature.shape)),
            np.uint8 if feature.kind == "image" else feature.dtype,
        )
        for name, feature in manifest.all_inputs.items()
    }
    kind = np.int32 if manifest.task == "classification" else np.float32
    return _inputs(manifest, arrays), np.zeros((examples, *_label_shape(manifest)), kind)


def specs(manifest: Manifest, examples: int | None, *, decoded: bool) -> tuple[Tensors, tf.TensorSpec]:
    """Return the tf.TensorSpecs of a batch's inputs and labels: decoded, or as the network receives them."""
    inputs, labels = blank(manifest, 1)

    def spec(array: NDArray[Any]) -> tf.TensorSpec:
        kind = np.float32 if array.dtype == np.uint8 and not decoded else array.dtype
        return tf.TensorSpec([examples, *array.shape[1:]], kind)

    return each(spec, inputs), spec(labels)


class Features:
    """The conversion of a data set's features, with the statistics and vocabularies of its training split.

    `tables` are the lookup tables of categories and words by name; a tf.Module that is saved must hold them.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        with tf.device("CPU:0"):
            self.tables = {
                name: _table(feature) for name, feature in manifest.all_inputs.items() if feature.first_position
            }

    def parse(
        self,
        raw: tf.Tensor,
        encoded: Collection[str] = (),
        decode: Callable[[tf.Tensor, Manifest], tf.Tensor] = decode_prepared,
    ) -> tuple[Tensors, tf.Tensor]:
        """Parse serialized records, string [n] with static n, to decoded inputs and labels.

        The images of the inputs `encoded` are not decoded, the others by `decode`.
        """
        manifest = self._manifest
        label = tf.float32 if manifest.task == "regression" else tf.int64
        features = self.raw(raw, label=tf.io.FixedLenFeature(_label_shape(manifest), label))
        return self._decoded(features, decode, encoded=encoded), self._labels(features["label"])

    def raw(self, raw: tf.Tensor, **additional: tf.io.FixedLenFeature) -> dict[str, tf.Tensor]:
        """Parse serialized records, string [n], to the values that they hold, with `additional` besides the inputs."""
        inputs = {name: tf.io.FixedLenFeature(*_stored(feature)) for name, feature in self._manifest.all_inputs.items()}
        values: dict[str, tf.Tensor] = tf.io.parse_example(raw, {**inputs, **additional})
        return values

    def pixels(self, name: str, files: tf.Tensor) -> tf.Tensor:
        """Decode any number of image files of a data set, string [n], of the input `name`."""
        return decode_images(files, as_image(self._manifest, name), upright=True)

    def requests(self) -> dict[SignatureName, tf.TensorSpec]:
        """Return the serving signature's inputs: raw values, as they are in a record."""
        names, tensor_specs = self._manifest.signature, {}
        for name, feature in self._manifest.all_inputs.items():
            shape, kind = _stored(feature)
            tensor_specs[names[name]] = tf.TensorSpec([None, *shape], kind, name=names[name])
        return tensor_specs

    def decode(self, requests: Mapping[SignatureName, tf.Tensor], *, standardized: bool = True) -> Tensors:
        """Convert a request, tensors by their names in `requests`, to decoded inputs.

        Args:
            requests: Raw values, [batch, …] each. Images may have any size.
            standardized: Whether to standardize numbers; a model that does so itself receives them as they are.
        """
        values = {name: requests[served] for name, served in self._manifest.signature.items()}
        return self._decoded(values, decode_images, standardized=standardized)

    def _decoded(
        self,
        values: Mapping[str, tf.Tensor],
        decode: Callable[..., tf.Tensor],
        *,
        standardized: bool = True,
        encoded: Collection[str] = (),
    ) -> Tensors:
        decoded = {}
        for name, feature in self._manifest.all_inputs.items():
            raw = values[name]
            if name in encoded:
                decoded[name] = raw
            elif feature.kind == "image":
                decoded[name] = decode(raw, as_image(self._manifest, name))
            elif feature.kind == "category":
                decoded[name] = self.tables[name].lookup(raw)
            elif feature.kind == "text":
                decoded[name] = word_ids(raw, self.tables[name], feature)
            elif feature.kind == "date":
                decoded[name] = date_features(raw, feature)
            elif feature.kind == "integer":
                decoded[name] = tf.cast(raw, tf.int32)
            else:
                decoded[name] = standardize(raw, feature) if standardized else raw
        return _inputs(self._manifest, decoded)

    def _labels(self, stored: tf.Tensor) -> tf.Tensor:
        if self._manifest.target is not None:
            return standardize(stored, self._manifest.target)
        return tf.cast(stored, tf.int32 if self._manifest.task == "classification" else tf.float32)


def matrix(inputs: Tensors, manifest: Manifest) -> tf.Tensor:
    """Return a table's decoded inputs as columns, float32 [batch, columns].

    A number has one column, or two if it is nullable; a category one for each of its values, 0 or 1, up to
    `MAX_INDICATORS`, else one of positions.
    """
    columns = []
    for name, feature in manifest.all_inputs.items():
        values = tf.convert_to_tensor(inputs[name])
        if feature.kind == "category" and feature.values <= MAX_INDICATORS:
            values = tf.one_hot(values, feature.values)
        columns.append(tf.reshape(tf.cast(values, tf.float32), [tf.shape(values)[0], math.prod(values.shape[1:])]))
    return tf.concat(columns, axis=1)


def standardize(values: Any, feature: Input) -> Any:
    """Return what the network receives of a number's `values`, [batch, *stored_shape]; see `Input`."""
    mean, deviation = statistics(feature)
    standardized = ((tf.math.log(values) if feature.logarithmic else values) - mean) / deviation
    if not feature.nullable:
        return standardized
    missing = tf.math.is_nan(values)
    return tf.stack([tf.where(missing, 0.0, standardized), tf.cast(missing, tf.float32)], axis=-1)


def statistics(feature: Input) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean and the standard deviation of a number's elements, float32 [*stored_shape]."""
    mean, deviation = (
        np.array(values, np.float32).reshape(feature.stored_shape) for values in (feature.mean, feature.deviation)
    )
    return mean, deviation


def _stored(feature: Input) -> tuple[tuple[int, ...], tf.DType]:
    return feature.stored_shape, _STORED[feature.kind]


def _label_shape(manifest: Manifest) -> tuple[int, ...]:
    return (manifest.outputs,) if manifest.task == "multilabel" else ()


def _inputs(manifest: Manifest, values: dict[str, Any]) -> Any:
    return values["image"] if manifest.is_image_only else values


def as_image(manifest: Manifest, name: str) -> Manifest:
    """Return the manifest as if the input `name` were its image."""
    if name == "image":
        return manifest
    feature = manifest.inputs[name]
    height, width, channels = feature.shape
    return manifest.model_copy(update={"image_size": (height, width), "channels": channels, "resize": feature.resize})


def _table(feature: Input) -> tf.lookup.StaticHashTable:
    """Return the table from a category or a word to what the network receives."""
    positions = tf.range(feature.first_position, feature.values, dtype=tf.int32)
    rows = tf.lookup.KeyValueTensorInitializer(tf.constant(feature.vocabulary, tf.string), positions)
    return tf.lookup.StaticHashTable(rows, default_value=feature.first_position - 1)
