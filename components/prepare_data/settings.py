"""The settings of data preparation."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from trainer.config import Settings

# Before the name of a column in data.group_by.
COLUMN = "column:"


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


class DataSettings(Settings):
    """Where examples come from and how they are stored.

    `source` is `digits`, or `images:FOLDER` for `split/class/*.png|jpg|jpeg` or `class/*.png|jpg|jpeg`, or
    `images:ARCHIVE` for a tar, tar.gz or zip file that holds such a folder, or `csv:FILE` for a list of images with the
    columns image (or path, file), label (or class) and perhaps split. `image_size` is [height, width] that a
    reader resizes to; without it all images must have one size. `skip_corrupt` is the largest share of images that
    may be left out as unreadable. `check` says how far each image is looked at: `decode` decodes it whole, `header`
    reads its size only.

    `duplicates` says what happens to an image whose bytes are in two splits, which makes a model
    look better than it is: by default the run refuses, as only the user can say which copy, and which label, is right;
    `drop` keeps one split's, the test split's first; `keep` does not look for them.

    `group_by` keeps examples together: all of one group go to one split. It is a regular expression with one group in
    parentheses, which is searched for in each example's key (its path in the source), or
    `column:NAME` for a column of the source `csv:`.

    `store` is the folder (or gs:// URI) that holds prepared sets.
    """

    source: str
    name: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]*$")
    split: SplitFractions = SplitFractions()
    seed: int = Field(default=0, ge=0, lt=2**31)
    image_size: tuple[PositiveInt, PositiveInt] | None = None
    channels: Literal[1, 3] | None = None
    skip_corrupt: float = Field(default=0.0, ge=0, lt=1)
    check: Literal["decode", "header"] = "decode"
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
