"""The manifest of a prepared data set: what is in it, and how its reader checks it.

`prepare_data` writes `manifest.json` last, so a folder that has one is complete. Beside it lie the TFRecord shards, and
`features.json` and `dataset_info.json`, by which `tensorflow_datasets.builder_from_directory` reads the same folder.
Each record is a tf.train.Example with `image` (the image's encoded bytes, as they were in the source), `label`
(int64, an index into `classes`) and `key` (the example's name in its source), and perhaps further features, which
training does without.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from slipway.core.errors import UserError

FILE_NAME = "manifest.json"


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
    """One image that was left out, and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    key: str
    reason: str


class Checked(BaseModel):
    """How far the images were looked at before they were stored.

    `check` says it: all were decoded in full, or a sample of them, or of each only the header was read. Of the source's
    `images` `decoded` were decoded in full; for `undecodable` of those only that showed that they cannot be used.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    check: Literal["sample", "decode", "header"]
    images: int
    decoded: int
    undecodable: int


class Manifest(BaseModel):
    """A prepared data set.

    `image_size` is [height, width] in pixels of what a model is given: the size that all images have, or the one
    that was asked for, to which a reader then resizes (`resize`). `encodings` are those found: png, jpeg.
    `features` are the further features, by name, and what each is. `written_by` says what wrote the shards, on which
    their bytes do not depend. `checked` says how far the images were looked at, None where that was not noted.
    `notes` are sentences that the user should read, such as classes with nearly equal names.
    `left_out` lists the first 100 images that were left out; `left_out_count` counts all of them.
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
    """The manifest of the data set in `folder`.

    Raises:
        UserError: There is none (the set is not complete), or it is not one that this version wrote.
    """
    path = folder / FILE_NAME
    fix = f"rm -r {folder}, then run again: the data set is prepared anew"
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"There is no complete data set in {folder}: {FILE_NAME} is missing.", fix=fix) from None
    except ValidationError as error:
        raise UserError(f"{path} cannot be read: {error.errors()[0]['msg']}.", fix=fix) from None


def verify(folder: Path, manifest: Manifest) -> None:
    """Check every shard's presence, size and SHA-256.

    Raises:
        UserError: The first shard that is missing or not as it was written, by name.
    """
    for split in manifest.splits.values():
        for shard in split.shards:
            verify_shard(folder / shard.file, shard)


def verify_shard(path: Path, shard: Shard) -> None:
    """Check one shard's presence, size and SHA-256; see `verify`."""
    fix = f"rm -r {path.parent}, then run again: the data set is prepared anew"
    if not path.is_file():
        raise UserError(f"The shard {path} is missing.", fix=fix)
    size = path.stat().st_size
    if size != shard.bytes:
        raise UserError(f"The shard {path} is damaged: it has {size} bytes, {shard.bytes} were written.", fix=fix)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != shard.sha256:
        raise UserError(f"The shard {path} is damaged: its SHA-256 is not the one that was written.", fix=fix)
