"""Initial weights from a file (`model.weights`): Keras's `.weights.h5`, `.keras` and `.h5`, or a PyTorch state dict.

Layers are matched by name. Either side may have the other's layers inside of another model, such as a backbone's file
for a classifier on that backbone.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import itertools
import logging
import sys
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import Field

from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.paths import is_remote, local_path
from slipway.trainer.settings import Settings

if TYPE_CHECKING:
    import h5py
    import keras
    import numpy as np
    import torch
    from numpy.typing import NDArray

KERAS = (".keras", ".h5")
TORCH = (".pt", ".pth")
_NAMED = 5  # layers, in a message

logger = logging.getLogger(__name__)


class WeightsSettings(Settings):
    """Initial weights from a file, loaded by layer name. Layers that the file does not have keep their own."""

    file: str = Field(
        description="File of weights: Keras's .weights.h5, .keras or .h5, or for a torch.nn.Module a state dict (.pt, "
        ".pth). A path in the project's folder, or a gs:// URI."
    )
    skip: tuple[str, ...] = Field(
        default=(),
        description="Patterns of layer names, such as head*: layers that keep their own initial weights though the "
        "file has some.",
    )
    sha256: str | None = Field(
        default=None, pattern="^[0-9a-f]{64}$", description="SHA-256 of the file, in hex; null: not compared."
    )


# A layer's arrays, in the order of its variables, by the layer's path.
Layers: TypeAlias = "dict[str, list[NDArray[np.generic]]]"


def find(settings: WeightsSettings) -> Path:
    """Return the path of the file, in the working directory or on Python's path, as for the builder's module.

    Raises:
        UserError: It does not exist, or has another format.
    """
    allowed = (*KERAS, *TORCH)
    if not settings.file.endswith(allowed):
        raise _wrong(settings, f"{settings.file!r} is not a file of weights.", f"a file ending in {', '.join(allowed)}")
    path = local_path(settings.file)
    for folder in [Path.cwd(), *map(Path, sys.path)]:
        if (folder / path).is_file():
            return folder / path
    raise _wrong(
        settings,
        f"There is no file {settings.file}.",
        "a file in the project's folder, or in a container a gs:// URI",
        f"gcloud storage cp {settings.file} . and set the copy's name"
        if is_remote(settings.file)
        else "correct the path, which is relative to the folder in which slipway runs; or download the weights of a "
        "backbone: python -m slipway.trainer.models.pretrained BACKBONE",
    )


def with_checksum(settings: WeightsSettings) -> WeightsSettings:
    """Return the settings with the file's SHA-256, by which a run is recognized when it resumes.

    Raises:
        UserError: The file does not exist, or its SHA-256 is not the configured one.
    """
    with find(settings).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if settings.sha256 not in (None, digest):
        raise UserError(
            f"The file {settings.file} has the SHA-256 {digest}.",
            setting="model.weights.sha256",
            value=settings.sha256,
            fix="restore the file, or change the setting",
        )
    return settings.model_copy(update={"sha256": digest})


def load_keras(model: keras.Model, settings: WeightsSettings) -> None:
    """Load the file's weights into the layers of a Keras network that have the same names.

    Raises:
        UserError: The file cannot be read, no layer has a name that it has, or a layer has other shapes.
    """
    if not settings.file.endswith(KERAS):
        raise _wrong(settings, f"{settings.file} is not of a Keras network.", f"a file ending in {', '.join(KERAS)}")
    layers = {path: layer for path, layer in walk(model) if own_variables(layer)}
    file_weights = _read_keras(find(settings), settings)
    chosen = _chosen(settings, layers, file_weights)
    for path, other in chosen.items():
        shapes = [tuple(variable.shape) for variable in own_variables(layers[path])]
        _verify(settings, path, shapes, [array.shape for array in file_weights[other]])
    for path, other in chosen.items():
        layers[path].load_own_variables({str(number): array for number, array in enumerate(file_weights[other])})
    _tell(settings, layers, chosen)


def load_torch(module: torch.nn.Module, settings: WeightsSettings) -> None:
    """Load the file's state dict into the parameters and buffers of a module that have the same names.

    Raises:
        UserError: As in `load_keras`.
    """
    import torch

    if not settings.file.endswith(TORCH):
        raise _wrong(settings, f"{settings.file} is not of a torch.nn.Module.", f"a file ending in {', '.join(TORCH)}")
    tensors = {name.replace(".", "/"): tensor for name, tensor in module.state_dict().items()}
    try:
        read = torch.load(find(settings), map_location="cpu", weights_only=True)
        file_tensors = {name.replace(".", "/"): tensor for name, tensor in read.items()}
    except Exception as error:
        raise _unreadable(settings, error) from None
    chosen = _chosen(settings, tensors, file_tensors)
    for path, other in chosen.items():
        _verify(settings, path.rpartition("/")[0], [tuple(tensors[path].shape)], [tuple(file_tensors[other].shape)])
    with torch.no_grad():
        for path, other in chosen.items():
            tensors[path].copy_(file_tensors[other])
    _tell(settings, tensors, chosen)


def _chosen(settings: WeightsSettings, paths: Collection[str], file_paths: Collection[str]) -> dict[str, str]:
    """Return the file's name of each of the network's names that it has and that are not skipped."""
    pairs = {path: other for path, other in aligned(paths, file_paths).items() if not matches(path, settings.skip)}
    if not pairs:
        names = ", ".join(sorted(file_paths)[:_NAMED])
        raise _wrong(settings, f"{settings.file} has no weights for the network's layers.", f"the file has {names}, …")
    return pairs


def aligned(paths: Collection[str], file_paths: Collection[str]) -> dict[str, str]:
    """Return for each path in `paths` the one in `file_paths`, which may all be below another model on either side."""
    outer: Counter[tuple[str, str]] = Counter()
    ends = {path.rpartition("/")[2] for path in paths}
    for other in file_paths:
        if other.rpartition("/")[2] in ends:
            for path in paths:
                if path == other or path.endswith(f"/{other}"):
                    outer[path.removesuffix(other), ""] += 1
                elif other.endswith(f"/{path}"):
                    outer["", other.removesuffix(path)] += 1
    if not outer:
        return {}
    (here, there), _ = max(outer.items(), key=lambda item: (item[1], item[0] == ("", "")))
    pairs = {path: there + path.removeprefix(here) for path in paths if path.startswith(here)}
    return {path: other for path, other in pairs.items() if other in file_paths}


def matches(path: str, patterns: Collection[str]) -> bool:
    """Whether a pattern matches the path or the name of a layer, or those of a model that contains it."""
    outer = containers(path)
    names = [*outer, *path.split("/"), *(prefix.replace("/", ".") for prefix in outer)]  # as in PyTorch: features.0
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def containers(path: str) -> list[str]:
    """Return the paths of the models that contain a layer, from the outermost on, and its own."""
    return list(itertools.accumulate(path.split("/"), "{}/{}".format))


def walk(layer: keras.Layer, path: str = "") -> Iterator[tuple[str, keras.Layer]]:
    """Yield all layers inside of `layer` with their paths, such as mobilenet/conv1."""
    for inner in layer._flatten_layers(include_self=False, recursive=False):
        name = f"{path}{inner.name}"
        yield name, inner
        yield from walk(inner, f"{name}/")


def own_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Return a layer's variables without those of the layers inside of it, in the order in which Keras saves them."""
    return [*layer._trainable_variables, *layer._non_trainable_variables]


def _read_keras(path: Path, settings: WeightsSettings) -> Layers:
    import h5py

    try:
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as archive:
                content: Any = io.BytesIO(archive.read("model.weights.h5"))
        else:
            content = path
        with h5py.File(content, "r") as file:
            group = file.get("model_weights", file)  # in the file of a whole model
            if "layer_names" in group.attrs:
                return _legacy(group)
            return dict(_groups(file, ""))
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise _unreadable(settings, error) from None


def _groups(group: h5py.Group, path: str) -> Iterator[tuple[str, list[NDArray[np.generic]]]]:
    """Yield the layers below `group` in the format of Keras 3, which names each in an attribute of its variables."""
    for key, inner in group.items():
        if key in ("vars", "optimizer") or not hasattr(inner, "items"):
            continue
        name = inner["vars"].attrs.get("name") if "vars" in inner else None
        below = f"{path}{name}/" if name else path
        if name and (arrays := inner["vars"]):
            yield below.rstrip("/"), [arrays[str(number)][()] for number in range(len(arrays))]
        yield from _groups(inner, below)


def _legacy(file: h5py.Group) -> Layers:
    """Return the layers of a file in the format of Keras 2, in which keras.applications' weights are published."""
    layers: Layers = {}
    for layer in file.attrs["layer_names"]:
        outer = _text(layer)
        for weight in map(_text, file[outer].attrs["weight_names"]):
            path = weight.rpartition("/")[0] or outer
            path = path if path.split("/")[0] == outer else f"{outer}/{path}"
            layers.setdefault(path, []).append(file[outer][weight][()])
    return layers


def _text(name: bytes | str) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _verify(
    settings: WeightsSettings, layer: str, shapes: list[tuple[int, ...]], file_shapes: list[tuple[int, ...]]
) -> None:
    if shapes != file_shapes:
        name = layer.rpartition("/")[2]
        raise UserError(
            f"The layer {layer} has weights of the shapes {_shapes(shapes)}, and in {settings.file} of "
            f"{_shapes(file_shapes)}.",
            setting="model.weights.skip",
            value=list(settings.skip),
            allowed="layers of the same shapes, except for skipped ones",
            nearest=name,
            fix=f"--set model.weights.skip='[{', '.join([*settings.skip, name])}]'",
        )


def _shapes(shapes: list[tuple[int, ...]]) -> str:
    return " and ".join(str(list(shape)) for shape in shapes) or "none"


def _tell(settings: WeightsSettings, paths: Collection[str], chosen: Mapping[str, str]) -> None:
    rest = [path for path in paths if path not in chosen]
    text = f"weights of {len(chosen)} of {len(paths)} layers read from {settings.file}"
    if rest:
        text += f"; keeping their own: {', '.join(rest[:_NAMED])}{', …' if len(rest) > _NAMED else ''}"
    logger.info("%s", text)
    events.message(text)


def _unreadable(settings: WeightsSettings, error: Exception) -> UserError:
    return _wrong(
        settings,
        f"The file {settings.file} cannot be read: {type(error).__name__}: {error}".partition("\n")[0],
        "model.save_weights('NAME.weights.h5') or torch.save(module.state_dict(), 'NAME.pt')",
    )


def _wrong(settings: WeightsSettings, message: str, allowed: str, fix: str = "correct model.weights.file") -> UserError:
    return UserError(message, setting="model.weights.file", value=settings.file, allowed=allowed, fix=fix)
