"""The manifest of a prepared data set: its contents and checksums.

`prepare_data` writes `manifest.json` last, so a folder that contains it is complete. The folder also holds the TFRecord
shards, and `features.json` and `dataset_info.json` for `tensorflow_datasets.builder_from_directory`.
Each record is a tf.train.Example with `key` (the example's name in its source), `label`, and the inputs of the network
as they are in the source, such as `image` (the encoded bytes, unchanged unless data.resize is set). The label is, by
task: an index into `classes` (classification, int64), 0 or 1 for each of `classes` (multilabel, int64 [classes]), or
the target (regression, float32). Other features that a record has are ignored by training.
"""

from __future__ import annotations

import datetime
import hashlib
import keyword
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NewType

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slipway.core import formats, integrity
from slipway.core.atomic import read_regular
from slipway.core.dates import EPOCH, Order, written
from slipway.core.errors import UserError
from slipway.core.formatted import NumberFormat
from slipway.core.paths import in_bucket, remote_uri
from slipway.core.values import RECORD_NAMES, stored_name

FILE_NAME = "manifest.json"
# Says where the shards of the test split are, if not in the data set's folder; see `locked`.
LOCK_FILE = "locked.json"
# The name of a data set's folder in a store: the first digits of its fingerprint.
IDENTITY = re.compile(r"[0-9a-f]{16}")
TaskName = Literal["classification", "multilabel", "regression"]
ResizeMode = Literal["stretch", "crop", "pad"]
# An input's name in the serving signature; its name in the source, such as a column's header, is any text.
SignatureName = NewType("SignatureName", str)


class Shard(BaseModel):
    """One TFRecord file: its name in the data set's folder, examples, bytes and SHA-256 (hex)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file: str
    examples: int
    bytes: int
    sha256: str


class Split(BaseModel):
    """One split: its number of examples, the number of each class, and its shards in order."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    examples: int
    classes: dict[str, int]
    shards: list[Shard]


class ExampleIssue(BaseModel):
    """An image that was skipped or is damaged, and the reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    key: str
    reason: str


class Checked(BaseModel):
    """Image validation: how thoroughly the images were checked before they were stored.

    `check` is "decode" (every image fully decoded), "sample" (a sample decoded) or "header" (headers only). Of the
    source's `images`, `decoded` were fully decoded; `undecodable` counts those that only decoding showed to be invalid,
    `damaged` those that decoders accept with warnings, which were skipped if data.damaged is "refuse".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    check: Literal["sample", "decode", "header"]
    images: int
    decoded: int
    undecodable: int
    damaged: int


class Input(BaseModel):
    """An input of the network, and how a record's value becomes it; the same in training, evaluation and serving.

    - image: encoded bytes; decoded to uint8 `shape` = (height, width, channels), resized if `resize`.
    - number: float32 `shape`; the network receives (value - mean) / deviation, with the mean and the standard deviation
      (1 if it is 0) of each element over the training split. If it is `nullable`, one number or NaN is stored, and the
      network receives two, `shape` = (2,): 0 instead of a missing one, and whether it is missing, as 0 or 1. The mean
      and the deviation of a `logarithmic` one, a target, are those of its natural logarithm, which is standardized.
    - integer: int64 `shape`, such as token ids from 0 to `maximum` in all splits; passed on as int32.
    - category: text; the network receives its position in `vocabulary` plus 1 as int32, and 0 for a category that the
      training split does not have. The vocabulary is the training split's categories, sorted.
    - date: text with a date, whose parts are in this `order`, and optionally a time; the network receives float32
      `shape` = (7,): the standardized days since 1970, and the sines and cosines of the positions in the year, the week
      and the day. If it is `nullable`, that is (8,), like a number's.
    - text: the network receives the first words and subwords (see `slipway.core.words`), int32 `shape` = (number,): the
      position of each in `vocabulary` plus 2, 1 for a word that is unknown, and 0 after the last one. The vocabulary is
      those of the training split, the most frequent first. Data sets prepared earlier have words only.

    In tables, numbers are `written` in this format, and the texts `missing` stand for missing values.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    kind: Literal["image", "number", "integer", "category", "date", "text"]
    shape: tuple[int, ...] = ()
    resize: bool = False
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    maximum: int | None = None
    vocabulary: tuple[str, ...] = ()
    nullable: bool = False
    order: Order = "ymd"
    logarithmic: bool = Field(default=False, exclude_if=lambda is_set: not is_set)
    written: NumberFormat | None = Field(default=None, exclude_if=lambda value: value is None)
    missing: tuple[str, ...] = Field(default=(), exclude_if=lambda value: not value)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of a value in a record and in a request; images, dates and texts are one value."""
        return () if self.kind in ("image", "date", "text") or self.nullable else self.shape

    @property
    def usual_date(self) -> str:
        """The training split's mean date as the source writes dates; "" of another input."""
        if self.kind != "date" or not self.mean:
            return ""
        try:
            when = datetime.date(1970, 1, 1) + datetime.timedelta(days=math.floor(self.mean[0]))
        except OverflowError:
            return EPOCH[self.order]
        return written(when, self.order)

    @property
    def accepts_null(self) -> bool:
        """Whether an example without this value can be predicted on."""
        return self.nullable or self.kind == "text" or "" in self.vocabulary

    @property
    def dtype(self) -> Literal["float32", "int32"]:
        """The data type that the network receives; images are float32 in [0, 1]."""
        return "float32" if self.kind in ("image", "number", "date") else "int32"

    @property
    def decoded_bytes(self) -> int:
        """Size of one example's value as a reader holds it: images as uint8, others as the network receives them."""
        return math.prod(self.shape) * (1 if self.kind == "image" else 4)

    @property
    def values(self) -> int:
        """Number of different values of a category, integer or entry of a text: an embedding's rows."""
        return len(self.vocabulary) + self.first_position if self.first_position else (self.maximum or 0) + 1

    @property
    def first_position(self) -> int:
        """What the network receives for the first entry of the vocabulary."""
        return {"category": 1, "text": 2}.get(self.kind, 0)


def signature_names(inputs: Mapping[str, Input]) -> dict[str, SignatureName]:
    """Return the names of inputs in the serving signature, by their names in records.

    They are different identifiers of ASCII letters, digits and underscores: of names that differ in other characters
    only, such as "a b" and "a/b", each has a hash. An image's ends in `_bytes`, since the signature accepts its encoded
    bytes.
    """
    suffixes = {name: "_bytes" if feature.kind == "image" else "" for name, feature in inputs.items()}
    stems = {name: _identifier(name) for name in inputs}
    counts = Counter(stems[name] + suffix for name, suffix in suffixes.items())
    for name, suffix in suffixes.items():
        if counts[stems[name] + suffix] > 1:
            stems[name] += f"_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return {name: SignatureName(stems[name] + suffix) for name, suffix in suffixes.items()}


def _identifier(name: str) -> str:
    safe = re.sub(r"\W", "_", name, flags=re.ASCII)
    return safe if safe[:1].isalpha() and not keyword.iskeyword(safe) else f"input_{safe}"


class Manifest(BaseModel):
    """A prepared data set.

    `task` is what is learned. `classes` are the names of the network's outputs: classes, or labels (multilabel); empty
    for regression, whose `target` is the label as a number input, with its statistics. `inputs` are the inputs of the
    network by feature name, in order, beside the image.

    `image_size` is the image input's [height, width] in pixels: the size of all images, or the requested one, to which
    a reader then resizes (`resize`), with or without the aspect ratio (`resize_mode`, see data.resize_mode); (0, 0)
    without an image. `encodings` are the image formats in the data set: png, jpeg.
    `features` maps additional features to their descriptions. `written_by` names the writer; the shards' bytes do not
    depend on it. `revision` is that of its source, such as a commit. `checked` is the image validation, None if it was
    not recorded.
    `notes` are sentences for the user, such as a warning about nearly equal class names.
    `skipped` lists the first 100 skipped examples; `skipped_count` counts all of them, `skipped_reasons` by the most
    frequent reasons. `damaged` lists the first 100 damaged images that are used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: int = Field(default=formats.FORMAT, le=formats.FORMAT)
    name: str
    fingerprint: str
    source: str
    revision: str = Field(default="", exclude_if=lambda value: not value)
    settings: dict[str, object]
    task: TaskName = "classification"
    classes: list[str]
    target: Input | None = None
    inputs: dict[str, Input] = {}
    image_size: tuple[int, int]
    channels: Literal[1, 3]
    resize: bool
    resize_mode: ResizeMode = "stretch"
    encodings: list[str]
    splits: dict[str, Split]
    features: dict[str, str] = {}
    written_by: str = "processes of one machine"
    checked: Checked | None = None
    notes: list[str] = []
    skipped_count: int = 0
    skipped: list[ExampleIssue] = []
    skipped_reasons: dict[str, int] = {}
    damaged: list[ExampleIssue] = []

    @property
    def has_image(self) -> bool:
        """Whether the feature `image` is an input of the network."""
        return self.image_size != (0, 0)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """[height, width, channels] of a decoded image as the model sees it."""
        return (*self.image_size, self.channels)

    @property
    def all_inputs(self) -> dict[str, Input]:
        """All inputs of the network by name, the image first."""
        image = Input(kind="image", shape=self.image_shape, resize=self.resize)
        return {"image": image, **self.inputs} if self.has_image else self.inputs

    @property
    def signature(self) -> dict[str, SignatureName]:
        """The names of all inputs in the serving signature, by their names in records."""
        return signature_names(self.all_inputs)

    @property
    def sources(self) -> dict[str, str]:
        """The names of all inputs in the source, such as columns' headers, by their names in records."""
        inputs = self.all_inputs
        renamed = {stored_name(name): name for name in RECORD_NAMES if name not in inputs}
        return {name: renamed.get(name, name) for name in inputs}

    @property
    def noun(self) -> str:
        """What an example is called in sentences."""
        return "image" if self.has_image else "example"

    @property
    def target_name(self) -> str:
        """What the number that a regression predicts is called in sentences."""
        return str(self.settings.get("label") or "target")

    @property
    def skipped_text(self) -> str:
        """A phrase about the skipped examples with reasons and counts; empty if none was skipped."""
        if not self.skipped_count:
            return ""
        total = self.skipped_count + sum(split.examples for split in self.splits.values())
        named = [f"{reason}: {count:,}" for reason, count in self.skipped_reasons.items()]
        if unnamed := self.skipped_count - sum(self.skipped_reasons.values()):
            named += [f"other reasons: {unnamed:,}"] if named else []
        reasons = f" ({'; '.join(named)})" if named else ""
        return f"{self.skipped_count:,} of {total:,} {self.noun}s skipped{reasons}"

    @property
    def is_image_only(self) -> bool:
        """Whether the image is the network's only input, which then receives it without a name."""
        return self.has_image and not self.inputs

    @property
    def decoded_bytes(self) -> int:
        """Size of one example's inputs as a reader holds them, in bytes."""
        return sum(feature.decoded_bytes for feature in self.all_inputs.values())

    @property
    def outputs(self) -> int:
        """Number of outputs of the network."""
        return len(self.classes) or 1


def read(folder: Path) -> Manifest:
    """Return the manifest of the data set in `folder`.

    Raises:
        UserError: It is missing (the data set is incomplete), or has another version's format.
    """
    path, content = folder / FILE_NAME, b""
    try:
        content = read_regular(path)
        return Manifest.model_validate_json(content)
    except FileNotFoundError:
        message = f"There is no complete data set in {folder}: {FILE_NAME} is missing."
        raise UserError(message, fix=prepare_again(folder)) from None
    except ValidationError as error:
        formats.check_text(content, path)
        raise UserError(f"{path} cannot be read: {error.errors()[0]['msg']}.", fix=prepare_again(folder)) from None


def prepare_again(folder: Path) -> str:
    """Return the fix for a data set that is not intact: to delete it, if `prepare_data` wrote what is in its folder."""
    path = folder / FILE_NAME
    is_known = path.is_file() and f'"{folder.name}' in path.read_text(errors="replace")
    if not IDENTITY.fullmatch(folder.name) or not (is_known or any(folder.glob("*.tfrecord-*-of-*"))):
        return f"name a data set of prepare_data: its folder STORE/NAME/FINGERPRINT, which has {FILE_NAME}"
    delete = "gcloud storage rm -r" if in_bucket(folder) else "rm -r"
    return f"{delete} {shlex.quote(remote_uri(folder))}, then run again to prepare the data set"


def verify(folder: Path, shards: Iterable[Shard]) -> None:
    """Check the presence, size and SHA-256 of shards in `folder`.

    Raises:
        UserError: A shard is missing or damaged; names the first one.
    """
    for shard in shards:
        verify_shard(folder / shard.file, shard)


def verify_shard(path: Path, shard: Shard) -> None:
    """Check one shard's presence, size and SHA-256; see `verify`."""
    if not path.is_file() and (path.parent / LOCK_FILE).is_file():
        raise UserError(
            f"The shard {path} is locked: only the step evaluate reads it.", fix=f"slipway data unlock {path.parent}"
        )
    if not path.is_file():
        raise UserError(f"The shard {path} is missing.", fix=prepare_again(path.parent))
    size = path.stat().st_size
    if size != shard.bytes:
        raise damaged(path, f"it has {size} bytes instead of {shard.bytes}")
    if integrity.file_digest(path) != shard.sha256:
        raise damaged(path, f"its SHA-256 does not match {FILE_NAME}")


def damaged(path: Path, reason: str) -> UserError:
    """Return the error for a damaged shard."""
    return UserError(f"The shard {path} is damaged: {reason}.", fix=prepare_again(path.parent))
