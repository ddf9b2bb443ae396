"""Check and inspect the Keras network that a builder returns."""

from __future__ import annotations

import hashlib
import logging
import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection
from pathlib import Path

import keras
import numpy as np

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer import weights
from slipway.trainer.config import JobConfig, ModelSettings
from slipway.trainer.data.assignment import check_even_split
from slipway.trainer.engines import builder
from slipway.trainer.engines.base import ModelSize
from slipway.trainer.engines.keras import augment
from slipway.trainer.hyperparameters import Precision, choose_precision
from slipway.trainer.tasks import TASKS

FILE_NAME = "model.keras"

logger = logging.getLogger(__name__)

# Keras matches a dict of inputs by its keys; names of features need not be valid names of its tensors.
warnings.filterwarnings("ignore", "When providing `inputs` as a dict, all keys in the dict must match the names")


def prepare(
    job: JobConfig, manifest: Manifest, devices: int, kind: str, capability: tuple[int, int] | None
) -> Precision:
    """Check the job, and seed and configure Keras for its builder; return the compute precision.

    Args:
        job: The job.
        manifest: The data set's manifest.
        devices: Number of devices per replica.
        kind: What they are: CPU, GPU or TPU.
        capability: A GPU's compute capability, None if unknown.

    Raises:
        UserError: The batch is not divisible by the devices, the augmentation does not fit the images, or the builder
            does not exist.
    """
    check_even_split(job.train, job.plan.replicas, devices)
    augment.verify(job.train.augment, manifest.image_shape)
    precision = choose_precision(job.train, kind, capability)
    keras.backend.clear_session()
    keras.utils.set_random_seed(job.train.seed)  # of Python, NumPy and the backend
    keras.config.set_dtype_policy(precision)
    builder.load(job.model.builder)
    return precision


def build_network(settings: ModelSettings, manifest: Manifest) -> keras.Model:
    """Return the builder's keras.Model, built, from the data set's inputs to what its task needs, [batch, outputs].

    Raises:
        UserError: The builder failed (`builder.build`), or its network is not such a network.
    """
    model = checked(builder.build(settings, manifest), settings)
    return check_network(model, settings, manifest)


def checked(model: object, settings: ModelSettings) -> keras.Model:
    """Return `model` if it is a keras.Model.

    Raises:
        UserError: It is not.
    """
    if not isinstance(model, keras.Model):
        raise _wrong(settings, f"returned {type(model).__name__} instead of a keras.Model", "return a keras.Model")
    return model


def check_network(model: keras.Model, settings: ModelSettings, manifest: Manifest) -> keras.Model:
    """Build the keras.Model `model` and return it.

    Raises:
        UserError: It does not accept the data set's inputs, or does not return what its task needs.
    """
    try:
        outputs = model(_symbolic(manifest))
    except Exception as error:
        raise refused_inputs(
            settings,
            manifest,
            error,
            allowed=f"a network with the input shape [batch, {', '.join(map(str, manifest.image_shape))}]",
            fix="use image_shape in the builder: keras.Input(image_shape)",
            named_fix="use {name: keras.Input(each.shape, dtype=each.dtype) for name, each in inputs.items()}",
        ) from error
    shape = getattr(outputs, "shape", None)
    _refuse_built_in_batch(model, settings, shape)
    _refuse_private_names(model, settings)
    if shape is None or list(shape) != [None, manifest.outputs]:
        result = f"[batch, {', '.join(map(str, shape[1:]))}]" if shape is not None else f"a {type(outputs).__name__}"
        raise wrong_head(settings, manifest, result, f"end in keras.layers.Dense({manifest.outputs})")
    last = getattr(getattr(model.layers[-1] if model.layers else None, "activation", None), "__name__", "")
    if last in TASKS[manifest.task].squashing:
        expected = "standardized values" if manifest.task == "regression" else "logits"
        raise _wrong(settings, f"ends in a {last}; it must return {expected}", "remove the last layer's activation")
    return model


def _symbolic(manifest: Manifest) -> keras.KerasTensor | dict[str, keras.KerasTensor]:
    if manifest.is_image_only:
        return keras.Input(manifest.image_shape)
    return {name: keras.Input(feature.shape, dtype=feature.dtype) for name, feature in manifest.all_inputs.items()}


def refused_inputs(
    settings: ModelSettings, manifest: Manifest, error: Exception, *, allowed: str, fix: str, named_fix: str
) -> UserError:
    """Return the error for a network that fails on the inputs; `allowed` and `fix` are for one image without a name."""
    if manifest.is_image_only:
        inputs = f"images of {' x '.join(map(str, manifest.image_shape))}"
    else:
        of = {name: ", ".join(["batch", *map(str, feature.shape)]) for name, feature in manifest.all_inputs.items()}
        inputs = "the inputs " + ", ".join(f"{name} [{shape}]" for name, shape in of.items())
        allowed, fix = "a network of a dict with these inputs", named_fix
    return UserError(
        f"The network of {settings.builder} cannot process {inputs}: {type(error).__name__}: {error}",
        setting="model.builder",
        value=settings.builder,
        allowed=allowed,
        fix=fix,
    )


def wrong_head(settings: ModelSettings, manifest: Manifest, result: str, fix: str) -> UserError:
    """Return the error for a network that returns `result`, of another shape than the task needs."""
    task, outputs = TASKS[manifest.task], manifest.outputs
    of = {"classification": f"the data set has {outputs} classes", "multilabel": f"the data set has {outputs} labels"}
    why = of.get(manifest.task, "the target is a number")
    return _wrong(settings, f"returns {result}; {why}: {manifest.task} needs {task.head}, [batch, {outputs}]", fix)


def _refuse_built_in_batch(model: keras.Model, settings: ModelSettings, output: keras.KerasTensor) -> None:
    """Raise UserError if the network has a fixed batch size: the devices split a batch, and the last one is smaller."""
    shapes = [
        *(tensor.shape for tensor in getattr(model, "inputs", None) or []),
        *([output] if output is not None else []),
    ]
    sizes = [shape[0] for shape in shapes if shape and shape[0] is not None]
    if sizes:
        raise _wrong(
            settings,
            f"has a fixed batch size of {sizes[0]}; each device processes a part of the batch",
            "use keras.Input without batch_size, and reshape with -1 for the batch",
        )


def _refuse_private_names(model: keras.Model, settings: ModelSettings) -> None:
    """Raise UserError if TensorFlow's export of the trained network would refuse the name of a layer."""
    private = next((variable.path for variable in model.variables if variable.path.startswith("_")), None)
    if private is not None and keras.backend.backend() == "tensorflow":
        layer = private.partition("/")[0]
        text = f"has the layer {layer}, but names in a SavedModel begin with a letter or a digit"
        raise _wrong(settings, text, f"pass name={layer.strip('_')!r} to the layer, or rename its class")


def save(model: keras.Model, folder: Path) -> None:
    """Write model.keras into `folder`; only warn if Keras cannot save the model, such as one without get_config."""
    try:
        model.save(folder / FILE_NAME)
    except (NotImplementedError, TypeError, ValueError) as error:
        (folder / FILE_NAME).unlink(missing_ok=True)
        reason = " ".join(str(error).split())[:200]
        logger.warning("warning: %s is not written, because Keras cannot save the network: %s", FILE_NAME, reason)


def size(model: keras.Model) -> ModelSize:
    """Return the size of the model's variables and of the trainable ones."""
    return ModelSize(_bytes(model.variables), _bytes(model.trainable_variables))


def layers(model: keras.Model) -> dict[str, bool]:
    """Return the path of each layer with variables, and whether it is trainable."""
    return {path: layer.trainable for path, layer in weights.walk(model) if weights.own_variables(layer)}


def freezer(model: keras.Model) -> Callable[[Collection[str]], None]:
    """Return a function that freezes all layers of `model` but those that match its patterns.

    Layers and variables that are frozen already stay so. A frozen BatchNormalization layer normalizes with its moving
    statistics and keeps them, as Keras does.
    """
    paths: dict[int, list[str]] = defaultdict(list)  # more than one for a layer that two models share
    layers: dict[int, keras.Layer] = {}
    for path, layer in weights.walk(model):
        if layer.trainable and weights.own_variables(layer):
            paths[id(layer)].append(path)
            layers[id(layer)] = layer
    variables = {
        key: [variable for variable in layer._trainable_variables if variable.trainable]
        for key, layer in layers.items()
    }

    def freeze_others(patterns: Collection[str]) -> None:
        for key, layer in layers.items():
            chosen = any(weights.matches(path, patterns) for path in paths[key])
            layer._trainable = chosen  # `layer.trainable = chosen` would also change the layers inside of it
            for variable in variables[key]:
                variable.trainable = chosen

    return freeze_others


def output_elements(model: keras.Model, _manifest: Manifest) -> int:
    """Return the number of elements in the outputs of all layers for one example."""
    count = 0
    for layer in model._flatten_layers(include_self=False):
        try:
            outputs = layer.output
        except (AttributeError, ValueError):  # a layer outside of the functional graph
            continue
        for output in outputs if isinstance(outputs, list | tuple) else [outputs]:
            count += math.prod(size for size in output.shape[1:] if size)
    return count


def _bytes(variables: list[keras.Variable]) -> int:
    return sum(int(np.prod(variable.shape)) * np.dtype(variable.dtype).itemsize for variable in variables)


def checksum(model: keras.Model) -> str:
    """Return the SHA-256 (hex) of all weights in order."""
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(np.ascontiguousarray(weight.numpy()).tobytes())
    return digest.hexdigest()


def _wrong(settings: ModelSettings, problem: str, fix: str) -> UserError:
    return UserError(
        f"The network of {settings.builder} {problem}.",
        setting="model.builder",
        value=settings.builder,
        allowed="a keras.Model from the inputs to one logit per class or label, or one number, [batch, outputs]",
        fix=fix,
    )
