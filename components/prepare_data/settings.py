"""The settings of data preparation."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator, model_validator

from slipway.trainer.config import Settings, Untyped

# Before the name of a column in data.group_by.
COLUMN = "column:"

Check = Literal["sample", "decode", "header"]


class SplitFractions(Settings):
    """The share of the examples that each split gets; together they make 1. Splits that the source has are kept."""

    train: float = Field(default=0.8, gt=0, lt=1)
    validation: float = Field(default=0.1, gt=0, lt=1)
    test: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _whole(self) -> SplitFractions:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the fractions of train, validation and test must make 1, they make {total:g}")
        return self


class TfdsSettings(Settings):
    """Where a set of TensorFlow Datasets comes from.

    `data_dir` is the folder (or gs:// URI) that holds sets which TFDS prepared, TFDS_DATA_DIR or ~/tensorflow_datasets
    without it; a set that is not there yet is prepared there, where `try_gcs` allows it from Google's public bucket of
    prepared sets. `splits` names the set's splits to take and what each is here, for instance {train: train,
    extra: train}; without it they are train, validation and test.
    """

    data_dir: str | None = None
    try_gcs: bool = False
    splits: dict[str, Literal["train", "validation", "test"]] | None = Field(default=None, min_length=1)


class BeamSettings(Settings):
    """When and where Apache Beam writes the shards instead of processes of this machine.

    `runner` is a runner's name, as DirectRunner or DataflowRunner; `options` are its pipeline options by name, as
    {region: europe-west4, temp_location: gs://…}. Sets of `from_gigabytes` and more are written by Beam, all where it
    is 0.
    """

    runner: str = Field(default="DataflowRunner", pattern=r"^[A-Za-z][\w.]*$")
    options: dict[str, Untyped] = Field(default_factory=dict)
    from_gigabytes: NonNegativeFloat = 100.0


class DataSettings(Settings):
    """Where examples come from and how they are stored.

    `source` is `digits`, or `images:FOLDER` for `split/class/*.png|jpg|jpeg` or `class/*.png|jpg|jpeg`, or
    `images:ARCHIVE` for a tar, tar.gz or zip file that holds such a folder, or `csv:FILE` for a list of images with the
    columns image (or path, file), label (or class) and perhaps split, or `tfds:NAME[/CONFIG][:VERSION]` for a set of
    TensorFlow Datasets (see `tfds`), or `tfrecord:PATTERN` for TFRecord files of tf.train.Example, or `MODULE:FUNCTION`
    for a function that gives examples.

    `features` describes an example's features: the path of a file (TFDS's features.json, or YAML), or a mapping from
    names to kinds; see `kinds`. `image` and `label` name the two that a model is trained on. `image_size` is [height,
    width] that a reader resizes to; without it all images must have one size. `skip_corrupt` is the largest share of
    images that may be left out as unreadable.

    `check` says how far images are looked at: `decode` decodes each in full, `header` reads only what its header says,
    `sample` reads each one's header and decodes about `check_sample` of them in full, chosen by a hash of their keys;
    in a set that has no more than those all are decoded.

    `duplicates` says what happens to an image whose bytes are in two splits, which makes a model
    look better than it is: by default the run refuses, as only the user can say which copy, and which label, is right;
    `drop` keeps one split's, the test split's first; `keep` does not look for them.

    `group_by` keeps examples together: all of one group go to one split. It is a regular expression with one group in
    parentheses, which is searched for in each example's key (its path in the source), or
    `column:NAME` for a column of the source `csv:`, or a feature of the sources that have features.

    `store` is the folder (or gs:// URI) that holds prepared sets.
    """

    source: str
    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    features: str | dict[str, str | dict[str, list[str] | PositiveInt]] | None = None
    image: str | None = None
    label: str | None = None
    tfds: TfdsSettings = TfdsSettings()
    beam: BeamSettings | None = None
    split: SplitFractions = SplitFractions()
    seed: int = Field(default=0, ge=0, lt=2**31)
    image_size: tuple[PositiveInt, PositiveInt] | None = None
    channels: Literal[1, 3] | None = None
    skip_corrupt: float = Field(default=0.0, ge=0, lt=1)
    check: Check = "sample"
    check_sample: PositiveInt = 1_000_000
    group_by: str | None = None
    duplicates: Literal["keep", "refuse", "drop"] = "refuse"
    shard_megabytes: PositiveInt = 128
    workers: PositiveInt | None = None
    store: str = "datasets"

    @field_validator("group_by")
    @classmethod
    def _one_group(cls, value: str | None) -> str | None:
        if value is None or value.startswith(COLUMN):
            return value
        try:
            groups = re.compile(value).groups
        except re.error as error:
            raise ValueError(f"it is no regular expression: {error}") from None
        if groups != 1:
            raise ValueError(f"the regular expression must have one group in parentheses, it has {groups}")
        return value
