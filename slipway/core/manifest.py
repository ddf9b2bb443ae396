"""The manifest of a prepared data set: its contents and checksums.

`prepare_data` writes `manifest.json` last, so a folder that contains it is complete. The folder also holds the TFRecord
shards, and `features.json` and `dataset_info.json` for `tensorflow_datasets.builder_from_directory`.
Each record is a tf.train.Example with `image` (the encoded bytes, unchanged from the source unless data.resize is
set), `label` (int64, an index into `classes`), `key` (the example's name in its source), and optional additional
features that training ignores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from slipway.core.errors import UserError

FILE_NAME = "manifest.json"
ResizeMode = Literal["stretch", "crop", "pad"]


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


class LeftOut(BaseModel):
    """One image that was skipped, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    key: str
    reason: str


class Checked(BaseModel):
    """Image validation: how thoroughly the images were checked before they were stored.

    `check` is "decode" (every image fully decoded), "sample" (a sample decoded) or "header" (headers only). Of the
    source's `images`, `decoded` were fully decoded; `undecodable` counts those that only decoding showed to be invalid.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    check: Literal["sample", "decode", "header"]
    images: int
    decoded: int
    undecodable: int


class Manifest(BaseModel):
    """A prepared data set.

    `image_size` is the model input's [height, width] in pixels: the size of all images, or the requested one, to which
    a reader then resizes (`resize`), with or without the aspect ratio (`resize_mode`, see data.resize_mode).
    `encodings` are the image formats in the data set: png, jpeg.
    `features` maps additional features to their descriptions. `written_by` names the writer; the shards' bytes do not
    depend on it. `checked` is the image validation, None if it was not recorded.
    `notes` are sentences for the user, such as a warning about nearly equal class names.
    `left_out` lists the first 100 skipped images; `left_out_count` counts all of them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal[1] = 1
    name: str
    fingerprint: str
    source: str
    settings: dict[str, object]
    classes: list[str]
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
    left_out_count: int = 0
    left_out: list[LeftOut] = []

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """[height, width, channels] of a decoded image as the model sees it."""
        return (*self.image_size, self.channels)


def read(folder: Path) -> Manifest:
    """Return the manifest of the data set in `folder`.

    Raises:
        UserError: It is missing (the data set is incomplete), or has another version's format.
    """
    path = folder / FILE_NAME
    fix = f"rm -r {folder}, then run again to prepare the data set"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"There is no complete data set in {folder}: {FILE_NAME} is missing.", fix=fix) from None
    except ValidationError as error:
        raise UserError(f"{path} cannot be read: {error.errors()[0]['msg']}.", fix=fix) from None


def verify(folder: Path, shards: Iterable[Shard]) -> None:
    """Check the presence, size and SHA-256 of shards in `folder`.

    Raises:
        UserError: A shard is missing or damaged; names the first one.
    """
    for shard in shards:
        verify_shard(folder / shard.file, shard)


def verify_shard(path: Path, shard: Shard) -> None:
    """Check one shard's presence, size and SHA-256; see `verify`."""
    fix = f"rm -r {path.parent}, then run again to prepare the data set"
    if not path.is_file():
        raise UserError(f"The shard {path} is missing.", fix=fix)
    size = path.stat().st_size
    if size != shard.bytes:
        raise UserError(f"The shard {path} is damaged: it has {size} bytes instead of {shard.bytes}.", fix=fix)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != shard.sha256:
        raise UserError(f"The shard {path} is damaged: its SHA-256 does not match {FILE_NAME}.", fix=fix)
