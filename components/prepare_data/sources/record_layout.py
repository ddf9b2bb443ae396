"""The layout of existing records: which feature is the image, the label and the key, and the additional features.

It is derived from a features file: `features.json` as written by TensorFlow Datasets, or a mapping from names to kinds
(see `encoding.features`). In the mapping, the label is a kind, {classes: [NAME, …]} or {classes: COUNT}.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from slipway.components.prepare_data.encoding import features as kinds
from slipway.components.prepare_data.encoding.features import Kind, described
from slipway.components.prepare_data.encoding.inputs import choose_inputs
from slipway.components.prepare_data.encoding.messages import bytes_feature, float_feature, values
from slipway.components.prepare_data.examples import LABEL_SEPARATOR, Unusable
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import TaskName
from slipway.core.paths import local_path
from slipway.core.values import RECORD_NAMES, JsonObject, stored_name

FORM = "TFDS's features.json, or YAML with lines NAME: KIND; for a label, NAME: {classes: [NAME, …]}"

NAMES = ".labels.txt"
CLASSES = "; {classes: [NAME, …]} or {classes: COUNT}"

Descriptions = dict[str, JsonObject]
LabelType = Literal["class", "integer", "text", "number", "indicators"]
# The kinds that a label can have for each task, and what its values are; the first is chosen without data.label.
LABELS: dict[TaskName, dict[str, LabelType]] = {
    "classification": {"class": "class", "integer": "integer", "text": "text"},
    "multilabel": {
        "class": "class", "class[]": "class", "integer[]": "integer", "text[]": "text", "integer[N]": "indicators",
        "bool[N]": "indicators",
    },
    "regression": {"number": "number", "float64": "number", "integer": "number", "int32": "number"},
}  # fmt: skip


@dataclass(frozen=True)
class Features:
    """All features of an example in the format of `features.json`, and the class names of those that are labels.

    In the keys of `names`, `-` replaces the `/` of a nested feature, as in `objects-label`.
    """

    descriptions: Descriptions
    names: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordLayout:
    """The role of each feature of an example.

    Attributes:
        task: What is learned.
        image: The name of the image feature; None if there is none.
        label: The name of the label feature.
        label_is: The label's type: a class index, any integer, text, a number, or 0 or 1 for each of `names`.
        names: The class names by index, if the label is a class index.
        key: The name of the key feature, if there is one.
        additional: The additional features by stored name, in the format of `features.json`.
        renamed: Stored names of renamed features, by their names in the source.
        class_names: The class names of the additional features that are labels.
        inputs: The inputs of the network beside the image, by stored name.
    """

    task: TaskName
    image: str | None
    label: str
    label_is: LabelType
    names: list[str] | None
    key: str | None
    additional: Descriptions
    renamed: dict[str, str]
    class_names: dict[str, list[str]]
    inputs: dict[str, Kind]

    def image_of(self, features: Mapping[bytes, bytes]) -> bytes:
        """Return the encoded image.

        Raises:
            Unusable: The example has no image.
        """
        feature_values = values(features.get((self.image or "").encode(), b""))
        if len(feature_values) != 1 or not isinstance(feature_values[0], bytes):
            raise Unusable(f"it has no image in {self.image}")
        return feature_values[0]

    def label_of(self, features: Mapping[bytes, bytes]) -> str:
        """Return the class, or the labels, or "" for a target.

        Raises:
            Unusable: The label is missing or is not one of the classes.
        """
        if self.task == "regression":
            self.target(features)
            return ""
        if self.task == "multilabel":
            return LABEL_SEPARATOR.join(self._labels(features))
        feature_values = values(features.get(self.label.encode(), b""))
        if len(feature_values) != 1:
            several = f"it has {len(feature_values)} labels in {self.label}; for several, use task=multilabel"
            raise Unusable(several if feature_values else f"it has no label {self.label}")
        return self._name(feature_values[0])

    def target(self, features: Mapping[bytes, bytes]) -> float:
        """Return the target.

        Raises:
            Unusable: It is missing or not a finite number.
        """
        feature_values = values(features.get(self.label.encode(), b""))
        if len(feature_values) != 1 or isinstance(feature_values[0], bytes) or not math.isfinite(feature_values[0]):
            listed = ", ".join(map(repr, feature_values[:3])) or "missing"
            raise Unusable(f"its target {self.label} is {listed}, not a finite number")
        return feature_values[0]

    def _labels(self, features: Mapping[bytes, bytes]) -> list[str]:
        feature_values = values(features.get(self.label.encode(), b""))
        if self.label_is == "indicators":
            if len(feature_values) != len(self.names or ()) or any(value not in (0, 1) for value in feature_values):
                raise Unusable(f"its {self.label} is not 0 or 1 for each of {len(self.names or ())} labels")
            feature_values = [index for index, value in enumerate(feature_values) if value]
        return sorted({self._name(value) for value in feature_values})

    def _name(self, label: bytes | float | int) -> str:
        """Return the class of a stored label.

        Raises:
            Unusable: It is not one of the classes.
        """
        if self.label_is == "text" and isinstance(label, bytes):
            text = label.decode("utf-8", "replace")
            if not text or not text.isprintable():
                raise Unusable(f"its label {text!r} is empty or unprintable")
            return text
        if isinstance(label, float) and label.is_integer():
            label = int(label)
        if self.label_is == "text" or not isinstance(label, int):
            raise Unusable(f"its label {label!r} is {'not text' if self.label_is == 'text' else 'not an integer'}")
        if self.names is None:
            return str(label)
        if not 0 <= label < len(self.names):
            raise Unusable(f"its label is {label}, not in 0 to {len(self.names) - 1}")
        return self.names[label]

    def key_of(self, features: Mapping[bytes, bytes]) -> bytes | None:
        """Return the key, or None if the records have no key feature.

        Raises:
            Unusable: The example has no key.
        """
        if self.key is None:
            return None
        feature_values = values(features.get(self.key.encode(), b""))
        if len(feature_values) != 1 or not isinstance(feature_values[0], bytes) or not feature_values[0]:
            raise Unusable(f"it has no {self.key}")
        return feature_values[0]

    def additional_of(self, features: Mapping[bytes, bytes]) -> Iterable[tuple[bytes, bytes]]:
        """Yield the additional features under their stored names, and the label if it is not one class."""
        taken = {self.image, self.label, self.key}
        for stored, feature in features.items():
            name = stored.decode("utf-8", "replace")
            if name in taken:
                continue
            top = name if name in self.renamed or name in self.additional else name.partition("/")[0]
            new = self.renamed.get(top, top)
            if new in self.additional:
                yield (new + name[len(top) :]).encode(), feature
        if self.task == "regression":
            yield b"label", float_feature([self.target(features)])
        elif self.task == "multilabel":
            yield b"label", bytes_feature(name.encode() for name in self._labels(features))

    def classes(self, listed: Iterable[str]) -> list[str]:
        """Return all classes in the order of their labels."""
        if self.names is not None:
            return self.names
        return sorted(listed, key=int) if self.label_is == "integer" else sorted(listed)


def read_features(settings: DataSettings, beside: Path | None) -> Features:
    """Return the features from data.features, else from `features.json` in the folder `beside`.

    Raises:
        UserError: The description is missing or cannot be read.
    """
    if isinstance(settings.features, Mapping):
        return _ours(settings.features, "data.features")
    path = local_path(settings.features).expanduser() if settings.features else None
    if path is None and beside is not None:
        path = beside / "features.json"
    if path is None or not path.is_file():
        raise UserError(
            f"There is no features file {path}." if path else "The source requires data.features.",
            setting="data.features",
            value=settings.features,
            allowed=FORM,
            fix="set data.features to a file, or to a mapping such as {image: image, label: {classes: [cat, dog]}}",
        )
    from slipway.core.yaml_loader import NotYaml, load_yaml  # yaml takes 10 ms to import: few sources need it

    try:
        content = load_yaml(path.read_text(encoding="utf-8"), str(path))
    except NotYaml as error:
        raise _unreadable(path, error.message.rstrip("."), settings) from None
    except (UnicodeDecodeError, OSError) as error:
        raise _unreadable(path, str(error).splitlines()[0], settings) from None
    if not isinstance(content, dict) or not content:
        raise _unreadable(path, "it contains no features", settings)
    features = content.get("featuresDict", {}).get("features") if "featuresDict" in content else None
    if features is None:
        return _ours(content, str(path))
    # TFDS stores the class names in separate files in the same folder.
    names = {
        file.name.removesuffix(NAMES): file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for file in path.parent.glob(f"*{NAMES}")
    }
    return Features(features, names)


def _ours(content: Mapping[str, object], where: str) -> Features:
    descriptions: Descriptions = {}
    names: dict[str, list[str]] = {}
    for name, kind in content.items():
        if isinstance(kind, Mapping) and set(kind) == {"classes"}:
            classes = kind["classes"]
            labels = [str(number) for number in range(classes)] if isinstance(classes, int) else list(map(str, classes))
            if len(set(labels)) < len(labels) or not labels:
                raise UserError(f"The classes of {name} in {where} are empty or not unique.", setting="data.features")
            names[str(name).replace("/", "-")] = labels
            descriptions[str(name)] = class_label(len(labels))
            continue
        descriptions[str(name)] = _parse(f"The kind of {name} in {where}", name, kind, CLASSES).description
    return Features(descriptions, names)


def class_label(count: int) -> JsonObject:
    """Return a label of `count` classes in the format of `features.json`."""
    return {
        "pythonClassName": "tensorflow_datasets.core.features.class_label_feature.ClassLabel",
        "classLabel": {"numClasses": str(count)},
    }


def _unreadable(path: Path, reason: str, settings: DataSettings) -> UserError:
    return UserError(
        f"The features file {path} cannot be read: {reason}.",
        setting="data.features",
        value=settings.features,
        allowed=FORM,
    )


def record_layout(
    features: Features, settings: DataSettings, task: TaskName = "classification", group_column: str | None = None
) -> RecordLayout:
    """Determine the role of each feature.

    Raises:
        UserError: The image or label feature is ambiguous, or the configured one is unsuitable.
    """
    kinds_found = {name: described(value) for name, value in features.descriptions.items()}
    image = None
    if settings.image or "image" in kinds_found.values():
        image = _choose("image", settings.image, kinds_found, task)
    label = _choose("label", settings.label, kinds_found, task)
    label_is = LABELS[task][_without_size(kinds_found[label])]
    names = None
    if label_is in ("class", "indicators"):
        about = features.descriptions[label]
        count = int(
            about["tensor"]["shape"]["dimensions"][0]
            if label_is == "indicators"
            else about.get("sequence", {}).get("feature", about)["classLabel"]["numClasses"]
        )
        names = features.names.get(label.replace("/", "-")) or [str(number) for number in range(count)]
    key = "key" if kinds_found.get("key") == "text" and "key" not in (image, label) else None
    extras = [name for name in features.descriptions if name not in (image, label, key)]
    renamed = {name: stored_name(name) for name in extras if name in RECORD_NAMES}
    if clash := next((new for new in renamed.values() if new in features.descriptions), None):
        raise UserError(f"The features have both {clash} and {clash.removeprefix('source_')}.", setting="data.features")
    additional = {renamed.get(name, name): features.descriptions[name] for name in extras}
    tops = {other.replace("/", "-").partition("-")[0] for other in extras}
    class_names = {
        stored_name(name): feature_classes
        for name, feature_classes in features.names.items()
        if name != label.replace("/", "-") and name.partition("-")[0] in tops
    }
    inputs = choose_inputs(
        settings,
        {name: kinds_found[name] for name in extras},
        image=image,
        but=(group_column or "", settings.order_column or ""),
    )
    return RecordLayout(task, image, label, label_is, names, key, additional, renamed, class_names, inputs)


def _without_size(kind: str) -> str:
    """Return a kind with N in place of the size of a list."""
    return re.sub(r"\[\d+\]$", "[N]", kind)


def _choose(use: Literal["image", "label"], named: str | None, kinds_found: Mapping[str, str], task: TaskName) -> str:
    """Return the image or label feature: the configured one, else the one of that name, else the only candidate."""
    possible = {"image": "image"} if use == "image" else LABELS[task]
    candidates = [name for name, kind in kinds_found.items() if _without_size(kind) in possible]
    if named is None:
        if use in candidates:
            return use
        first = next(iter(possible))
        only = [name for name, kind in kinds_found.items() if kind in (first, f"{first}[]") and name in candidates]
        if len(only) == 1:
            return only[0]
    elif named in candidates:
        return named
    other = None
    several = next((kind for kind in kinds_found.values() if kind == "class[]"), "")
    if use == "label" and (kind := kinds_found.get(named or use, several)):
        other = next((name for name, kinds in LABELS.items() if _without_size(kind) in kinds), None)
    listed = ", ".join(f"{name}: {kind}" for name, kind in list(kinds_found.items())[:12])
    of_task = f" of the task {task}" if use == "label" and (other or task != "classification") else ""
    raise UserError(
        f"The feature {named or use!r} cannot be the {use}{of_task}; the features are {listed}."
        if named or (other and use in kinds_found)
        else f"Cannot tell which feature is the {use}; the features are {listed}.",
        setting=f"data.{use}",
        value=named,
        allowed=" or ".join(candidates) or f"a feature of the kind {' or '.join(possible)}, but there is none",
        nearest=nearest(named, candidates) if named else None,
        fix=f"--set task={other}" if other else f"--set data.{use}={candidates[0]}" if candidates else None,
    )


def additional_kinds(settings: DataSettings) -> dict[str, Kind]:
    """Return the kinds in data.features, by name.

    Raises:
        UserError: data.features is not a mapping of names to kinds.
    """
    described = settings.features
    if described is None:
        return {}
    if not isinstance(described, Mapping):
        raise UserError(
            f"For the source {settings.source}, data.features must be a mapping from names to kinds.",
            setting="data.features",
            value=described,
            allowed=kinds.ALLOWED,
            fix="--set 'data.features={age: integer, weight: number}'",
        )
    return {name: _parse(f"data.features.{name}", name, kind) for name, kind in described.items()}


def _parse(subject: str, name: str, kind: object, also_allowed: str = "") -> Kind:
    try:
        return Kind.parse(str(kind))
    except ValueError as error:
        raise UserError(
            f"{subject} is invalid: {error}.",
            setting=f"data.features.{name}",
            value=kind,
            allowed=kinds.ALLOWED + also_allowed,
            nearest=nearest(str(kind), kinds.NAMES),
        ) from None
