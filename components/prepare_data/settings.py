"""Settings of data preparation: the data section of a run's configuration."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator, model_validator

from slipway.components.prepare_data.sources import COLUMN
from slipway.trainer.config import Settings, Untyped

Check = Literal["sample", "decode", "header"]


class SplitFractions(Settings):
    """The fraction of the examples in each split; the three sum to 1. Splits defined by the source are kept."""

    train: float = Field(default=0.8, gt=0, lt=1)
    validation: float = Field(default=0.1, gt=0, lt=1)
    test: float = Field(default=0.1, gt=0, lt=1)

    @model_validator(mode="after")
    def _whole(self) -> SplitFractions:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the fractions of train, validation and test must sum to 1; they sum to {total:g}")
        return self


class TfdsSettings(Settings):
    """Options of the source `tfds:`.

    `data_dir` is the folder (or gs:// URI) with the data sets that TFDS prepared; it defaults to TFDS_DATA_DIR, then to
    ~/tensorflow_datasets. A data set that is missing is prepared there; with `try_gcs`, TFDS may copy it from Google's
    public bucket of prepared data sets. `splits` maps the data set's splits to train, validation or test, for instance
    {train: train, extra: train}; other splits are not used. By default, the splits keep their names.
    """

    data_dir: str | None = None
    try_gcs: bool = False
    splits: dict[str, Literal["train", "validation", "test"]] | None = Field(default=None, min_length=1)


class ModuleSettings(Settings):
    """Options of the source `MODULE:FUNCTION`.

    With `check_repeatable`, the function is called a second time, concurrently, in a process with another hash seed;
    the run stops if it yields other examples or another order there.
    """

    check_repeatable: bool = False


class BeamSettings(Settings):
    """Writing shards with Apache Beam instead of local processes.

    `runner` is a Beam runner, such as DirectRunner or DataflowRunner; `options` are its pipeline options by name, for
    instance {region: europe-west4, temp_location: gs://…}. Beam writes data sets of at least `from_gigabytes`; with 0,
    all of them.
    """

    runner: str = Field(default="DataflowRunner", pattern=r"^[A-Za-z][\w.]*$")
    options: dict[str, Untyped] = Field(default_factory=dict)
    from_gigabytes: NonNegativeFloat = 100.0


class DataSettings(Settings):
    """The source of the examples and how they are stored.

    `source` is one of:

    - `digits`: scikit-learn's handwritten digits
    - `images:FOLDER`: a folder laid out as `split/class/*.png|jpg|jpeg` or `class/*.png|jpg|jpeg`
    - `images:ARCHIVE`: a tar, tar.gz or zip file of such a folder
    - `csv:FILE`: a list of images with the columns image (or path, file), label (or class) and optionally split
    - `tfds:NAME[/CONFIG][:VERSION]`: a data set of TensorFlow Datasets; see `tfds`
    - `tfrecord:PATTERN`: TFRecord files of tf.train.Example
    - `MODULE:FUNCTION`: a Python function that yields examples; see `module`

    `features` describes the features of an example: the path of a file (TFDS's features.json, or YAML), or a mapping
    from names to kinds; see `encoding.features`. `image` and `label` name the two features used for training.
    `image_size` is the [height, width] to which images are resized when they are read; without it, all images must
    have the same size. `skip_corrupt` is the largest fraction of images that may be skipped as unusable.

    `check` sets how thoroughly images are validated: `decode` decodes every image, `header` checks only the headers,
    `sample` checks every header and decodes about `check_sample` images, chosen by a hash of their keys. If there are
    no more than `check_sample` images, `sample` decodes all of them.

    `duplicates` handles images with identical bytes in two splits, which inflate the evaluation metrics: `refuse` (the
    default) stops the run, because only the user knows which copy and which label are right; `drop` keeps one copy,
    preferably the test split's; `keep` does not check.

    `group_by` puts all examples of a group into the same split. It is a regular expression with one capturing group,
    searched for in each example's key (its path in the source), or `column:NAME` for a column of the source `csv:` or
    a feature of a source that has features.

    `store` is the folder (or gs:// URI) of prepared data sets.
    """

    source: str
    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    features: str | dict[str, str | dict[str, list[str] | PositiveInt]] | None = None
    image: str | None = None
    label: str | None = None
    tfds: TfdsSettings = TfdsSettings()
    module: ModuleSettings = ModuleSettings()
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
            raise ValueError(f"it is not a regular expression: {error}") from None
        if groups != 1:
            raise ValueError(f"the regular expression must have exactly one capturing group; it has {groups}")
        return value
