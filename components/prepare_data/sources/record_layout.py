"""What the records of existing files hold: which feature is the image, which the label, which the key, and the others.

A features file says it: `features.json` as TensorFlow Datasets writes it, or a mapping of ours from names to kinds (see
`kinds`), where a label is a kind too, or {classes: [NAME, …]} or {classes: COUNT}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from slipway.components.prepare_data.encoding import features as kinds
from slipway.components.prepare_data.encoding.features import Kind, described
from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.encoding.unusable import Unusable
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.columns import stored_name
from slipway.components.prepare_data.sources.source import OWN
from slipway.core.errors import UserError, nearest
from slipway.core.paths import local_path
from slipway.core.yaml_loader import NotYaml, load_yaml

FORM = "TFDS's features.json, or YAML: NAME: KIND lines, a label as NAME: {classes: [NAME, …]}"

NAMES = ".labels.txt"

Descriptions = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Features:
    """All features of an example as `features.json` describes them, and the classes' names of those that are labels.

    There, `-` stands for the `/` in a name, as in `objects-label`, a label inside another feature.
    """

    descriptions: Descriptions
    names: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordLayout:
    """How an example is taken apart.

    Attributes:
        image: The image's feature.
        label: The label's feature.
        label_is: What the label is stored as: the number of a class, any integer, or text.
        names: The names of the classes by number, where the label is one.
        key: The feature that is the key, where one is.
        further: The other features, by the name that they get, as `features.json` describes them.
        renamed: The names that differ from those in the source, by these.
        class_names: The classes' names of the further features that are labels.
    """

    image: str
    label: str
    label_is: Literal["class", "integer", "text"]
    names: list[str] | None
    key: str | None
    further: Descriptions
    renamed: dict[str, str]
    class_names: dict[str, list[str]]

    def image_of(self, features: Mapping[bytes, bytes]) -> bytes:
        """The encoded image.

        Raises:
            Unusable: There is none.
        """
        found = values(features.get(self.image.encode(), b""))
        if len(found) != 1 or not isinstance(found[0], bytes):
            raise Unusable(f"it has no image in {self.image}")
        return found[0]

    def label_of(self, features: Mapping[bytes, bytes]) -> str:
        """The class.

        Raises:
            Unusable: There is none, or it is not one of the classes.
        """
        found = values(features.get(self.label.encode(), b""))
        if len(found) != 1:
            raise Unusable(f"it has {len(found)} labels in {self.label}" if found else f"it has no label {self.label}")
        label = found[0]
        if self.label_is == "text" and isinstance(label, bytes):
            text = label.decode("utf-8", "replace")
            if not text or not text.isprintable():
                raise Unusable(f"its label {text!r} cannot be printed")
            return text
        if self.label_is == "text" or not isinstance(label, int):
            raise Unusable(f"its label {label!r} is {'no text' if self.label_is == 'text' else 'no integer'}")
        if self.names is None:
            return str(label)
        if not 0 <= label < len(self.names):
            raise Unusable(f"its label is {label}, of {len(self.names)} classes from 0 on")
        return self.names[label]

    def key_of(self, features: Mapping[bytes, bytes]) -> bytes | None:
        """The key, where the records have one.

        Raises:
            Unusable: This one has none.
        """
        if self.key is None:
            return None
        found = values(features.get(self.key.encode(), b""))
        if len(found) != 1 or not isinstance(found[0], bytes) or not found[0]:
            raise Unusable(f"it has no {self.key}")
        return found[0]

    def further_of(self, features: Mapping[bytes, bytes]) -> Iterable[tuple[bytes, bytes]]:
        """The other features as they are stored, under the names that they get."""
        taken = {self.image, self.label, self.key}
        for stored, feature in features.items():
            name = stored.decode("utf-8", "replace")
            if name in taken:
                continue
            top = name if name in self.renamed or name in self.further else name.partition("/")[0]
            new = self.renamed.get(top, top)
            if new in self.further:
                yield (new + name[len(top) :]).encode(), feature

    def classes(self, found: Iterable[str]) -> list[str]:
        """All classes in their order."""
        if self.names is not None:
            return self.names
        return sorted(found, key=int) if self.label_is == "integer" else sorted(found)


def read_features(settings: DataSettings, beside: Path | None) -> Features:
    """The features that data.features describes, else those of `features.json` in the folder `beside`.

    Raises:
        UserError: There is no description, or it cannot be read.
    """
    if isinstance(settings.features, Mapping):
        return _ours(settings.features, "data.features")
    path = local_path(settings.features).expanduser() if settings.features else None
    if path is None and beside is not None:
        path = beside / "features.json"
    if path is None or not path.is_file():
        raise UserError(
            f"There is no features file {path}." if path else "Nothing describes the features.",
            setting="data.features",
            value=settings.features,
            allowed=FORM,
            fix="set data.features to a file, or to a mapping such as {image: image, label: {classes: [cat, dog]}}",
        )
    try:
        content = load_yaml(path.read_text(encoding="utf-8"), str(path))
    except NotYaml as error:
        raise _unreadable(path, error.message.rstrip("."), settings) from None
    except (UnicodeDecodeError, OSError) as error:
        raise _unreadable(path, str(error).splitlines()[0], settings) from None
    if not isinstance(content, dict) or not content:
        raise _unreadable(path, "it holds no features", settings)
    features = content.get("featuresDict", {}).get("features") if "featuresDict" in content else None
    if features is None:
        return _ours(content, str(path))
    # TFDS keeps the names in files beside it.
    names = {
        file.name.removesuffix(NAMES): file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        for file in path.parent.glob(f"*{NAMES}")
    }
    return Features(features, names)


def _ours(content: Mapping[str, Any], where: str) -> Features:
    """Features that are described by kinds."""
    descriptions: Descriptions = {}
    names: dict[str, list[str]] = {}
    for name, kind in content.items():
        if isinstance(kind, Mapping) and set(kind) == {"classes"}:
            classes = kind["classes"]
            found = [str(number) for number in range(classes)] if isinstance(classes, int) else list(map(str, classes))
            if len(set(found)) < len(found) or not found:
                raise UserError(
                    f"The classes of {name} in {where} are not all different, or none.", setting="data.features"
                )
            names[str(name).replace("/", "-")] = found
            descriptions[str(name)] = class_label(len(found))
            continue
        try:
            descriptions[str(name)] = Kind.parse(str(kind)).description
        except ValueError as error:
            text = str(error)
            raise UserError(
                f"{where} describes {name} wrongly: {text}.",
                setting=f"data.features.{name}",
                value=kind,
                allowed=f"{kinds.ALLOWED}; {{classes: [NAME, …]}} or {{classes: COUNT}}",
                nearest=nearest(str(kind), kinds.NAMES),
            ) from None
    return Features(descriptions, names)


def class_label(count: int) -> dict[str, Any]:
    """A label of `count` classes as `features.json` has it."""
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


def record_layout(features: Features, settings: DataSettings) -> RecordLayout:
    """Which feature is which.

    Raises:
        UserError: It is not clear which one is the image or the label, or the one that is named is not possible.
    """
    kinds_found = {name: described(value) for name, value in features.descriptions.items()}
    image = _choose("image", settings.image, kinds_found, ("image",), ("image",))
    label = _choose("label", settings.label, kinds_found, ("class",), ("class", "integer", "text"))
    label_is: Literal["class", "integer", "text"] = "class"
    if kinds_found[label] != "class":
        label_is = "integer" if kinds_found[label] == "integer" else "text"
    names = None
    if label_is == "class":
        count = int(features.descriptions[label]["classLabel"]["numClasses"])
        names = features.names.get(label.replace("/", "-")) or [str(number) for number in range(count)]
    key = "key" if kinds_found.get("key") == "text" and "key" not in (image, label) else None
    others = [name for name in features.descriptions if name not in (image, label, key)]
    renamed = {name: stored_name(name) for name in others if name in OWN}
    if clash := next((new for new in renamed.values() if new in features.descriptions), None):
        raise UserError(f"The features have both {clash} and {clash.removeprefix('source_')}.", setting="data.features")
    further = {renamed.get(name, name): features.descriptions[name] for name in others}
    tops = {other.replace("/", "-").partition("-")[0] for other in others}
    class_names = {
        stored_name(name): found
        for name, found in features.names.items()
        if name != label.replace("/", "-") and name.partition("-")[0] in tops
    }
    return RecordLayout(image, label, label_is, names, key, further, renamed, class_names)


def _choose(
    use: Literal["image", "label"],
    named: str | None,
    kinds_found: Mapping[str, str],
    usual: tuple[str, ...],
    possible: tuple[str, ...],
) -> str:
    """The feature that is the image or the label: the one that the setting names, else so called, else the only one."""
    candidates = [name for name, kind in kinds_found.items() if kind in possible]
    if named is None:
        if use in candidates:
            return use
        only = [name for name, kind in kinds_found.items() if kind in usual]
        if len(only) == 1:
            return only[0]
    elif named in candidates:
        return named
    listed = ", ".join(f"{name}: {kind}" for name, kind in list(kinds_found.items())[:12])
    raise UserError(
        f"The feature {named!r} cannot be the {use}: the features are {listed}."
        if named
        else f"Which feature is the {use} is not clear: the features are {listed}.",
        setting=f"data.{use}",
        value=named,
        allowed=" or ".join(candidates) or f"a feature of the kind {' or '.join(possible)}, of which there is none",
        nearest=nearest(named, candidates) if named else None,
        fix=f"--set data.{use}={candidates[0]}" if candidates else None,
    )
