"""Settings of data preparation: the data section of a run's configuration."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import (
    AwareDatetime,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from slipway.components.prepare_data.examples import COLUMN
from slipway.core.errors import UserError
from slipway.core.formatted import NumberFormat
from slipway.core.images import NAMES
from slipway.core.manifest import ResizeMode
from slipway.core.values import text_of
from slipway.trainer.settings import Settings, Untyped

Check = Literal["sample", "decode", "header"]
# Smaller images are decoded in a millisecond or two, so they are not stored at another size unless data.resize is set.
LARGE_SIDE = 512
# The largest data.resize.size.
MAX_STORED = 4096
# Sizes in bytes: a number and a unit.
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]i?b|b|bytes|)", re.IGNORECASE)
UNITS = {"": 1, "b": 1, "bytes": 1}
for power, letter in enumerate("kmgt", 1):
    UNITS |= {f"{letter}b": 1000**power, f"{letter}ib": 1024**power}


class SplitFractions(Settings):
    """The fraction of the examples in each split; the three sum to 1. Splits defined by the source are kept."""

    train: float = Field(default=0.8, gt=0, lt=1, description="Fraction of the examples in the training split.")
    validation: float = Field(default=0.1, gt=0, lt=1, description="Fraction in the validation split.")
    test: float = Field(default=0.1, gt=0, lt=1, description="Fraction in the test split.")

    @model_validator(mode="after")
    def _whole(self) -> SplitFractions:
        total = self.train + self.validation + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the fractions of train, validation and test must sum to 1; they sum to {total:g}")
        return self


class TfdsSettings(Settings):
    """Options of the source `tfds:`."""

    data_dir: str | None = Field(
        default=None,
        description="Folder or gs:// URI of the data sets that TFDS prepared; a missing data set is prepared there. "
        "null: TFDS_DATA_DIR, or ~/tensorflow_datasets if that is not set.",
    )
    try_gcs: bool = Field(
        default=False, description="Allow TFDS to copy a missing data set from Google's public bucket."
    )
    splits: dict[str, Literal["train", "validation", "test"]] | None = Field(
        default=None,
        min_length=1,
        description="Maps the data set's splits to train, validation or test, such as {train: train, extra: train}; "
        "other splits are not used. null: the splits keep their names.",
    )


class HuggingFaceSettings(Settings):
    """Options of the source `hf:`."""

    splits: dict[str, Literal["train", "validation", "test"]] = Field(
        min_length=1,
        description="Maps the data set's splits to train, validation or test, such as {train: train, dev: validation}; "
        "other splits are not used.",
    )


class ModuleSettings(Settings):
    """Options of the source `MODULE:FUNCTION`."""

    check_repeatable: bool = Field(
        default=False,
        description="Call the function a second time, concurrently, in a process with another hash seed; the run stops "
        "if it yields other examples or another order there.",
    )


class BeamSettings(Settings):
    """Listing and writing with Apache Beam instead of local processes."""

    runner: str = Field(
        default="DataflowRunner",
        pattern=r"^[A-Za-z][\w.]*$",
        description="Beam runner, such as DirectRunner or DataflowRunner, or a class such as "
        "apache_beam.runners.dask.dask_runner.DaskRunner.",
    )
    options: dict[str, Untyped] = Field(
        default_factory=dict,
        description="The runner's pipeline options, by the flags that Beam documents, without dashes, such as "
        "{machine_type: n2-standard-4}. On Vertex AI, DataflowRunner's project, region, temp_location and "
        "service_account_email default to the run's project, region, bucket and account, its sdk_container_image to "
        "one that is built.",
    )
    access: Literal["bucket", "paths"] = Field(
        default="bucket",
        description="How workers on other machines read the source and write the data set. bucket: both are in Cloud "
        "Storage. paths: the workers see them at the same paths as the step, on a shared volume (a PVC, NFS).",
    )
    from_gigabytes: NonNegativeFloat = Field(
        default=100.0, description="Smallest source from which Beam prepares the data set, in gigabytes; 0: any source."
    )

    @property
    def on_dataflow(self) -> bool:
        """Whether the runner is Dataflow's."""
        return "Dataflow" in self.runner


class BigQuerySettings(Settings):
    """Options of the source `bigquery:`."""

    project: str | None = Field(
        default=None,
        pattern=r"^(?:[a-z0-9.-]+:)?[a-z0-9][a-z0-9-]*$",
        description="Project that is billed for reading. null: on Vertex AI that of the run, elsewhere that of "
        "GOOGLE_CLOUD_PROJECT or of the credentials, else that of the table.",
    )
    max_bytes: PositiveInt | str = Field(
        default="100 GiB",
        description="Largest number of bytes that BigQuery may bill for reading the source, such as 50 GiB, 2 TiB or "
        "5000000. What it would bill is asked first, at no cost; more is refused.",
    )
    snapshot: AwareDatetime | None = Field(
        default=None,
        description="Time, such as 2026-11-20T06:00:00Z, as of which tables are read: at most 7 days ago. Queries use "
        "it with `FOR SYSTEM_TIME AS OF @snapshot`. null: the time of the last change, so that an unchanged source is "
        "read once.",
    )
    endpoints: dict[str, str] = Field(
        default={},
        description="Private endpoints, host[:port], of the services bigquery and bigquerystorage. On Vertex AI, those "
        "of `vertex.endpoints` are the default.",
    )

    @field_validator("max_bytes")
    @classmethod
    def _is_size(cls, value: int | str) -> int | str:
        bytes_of(value)
        return value


def bytes_of(size: int | str) -> int:
    """Return the bytes of a size, such as 100 GiB.

    Raises:
        ValueError: It is not a size.
    """
    match = SIZE.fullmatch(str(size).strip())
    if match is None or not (count := int(float(match[1]) * UNITS[match[2].lower()])):
        raise ValueError(f"{size!r} is not a size, such as 100 GiB or 5000000")
    return count


class TextSettings(Settings):
    """Inputs that are texts, whose words and subwords the network receives."""

    words: PositiveInt = Field(
        default=20_000,
        description="Largest vocabulary: the words and subwords that occur at least twice in the training split, by "
        "byte-pair encoding. Not with `vocabulary`.",
    )
    vocabulary: str | None = Field(
        default=None,
        description="File with the vocabulary of a pretrained network, an entry in each line, as in BERT's vocab.txt: "
        "words in lower case, subwords after ##, and [UNK]. A path, or in a container a gs:// URI. null: the "
        "vocabulary is learned from the training split.",
    )
    length: PositiveInt | None = Field(
        default=None,
        description="Words and subwords of a text that the network receives, its first ones; null: about as many as "
        "95 % of the training split's texts have, at most 256.",
    )


class ResizeSettings(Settings):
    """Storing images at training size instead of their original bytes."""

    size: int = Field(ge=1, le=MAX_STORED, description="Size in pixels; see `mode`.")
    mode: Literal["shorter_side", "crop", "pad"] = Field(
        default="shorter_side",
        description="How images are stored. shorter_side: the shorter side has `size` pixels and the aspect ratio is "
        "kept; smaller images are stored unchanged. crop: the middle of the image, a square of `size` pixels. pad: the "
        "whole image in such a square, with black bars at both ends of the shorter side.",
    )
    quality: int = Field(
        default=95, ge=1, le=100, description="Quality of the stored JPEG images. PNG images are stored as PNG."
    )
    above: int = Field(
        default=0,
        ge=0,
        description="Images whose shorter side has at most this many pixels keep their size; with the mode "
        "`shorter_side` only.",
    )

    @model_validator(mode="after")
    def _squares_are_all_alike(self) -> ResizeSettings:
        if self.above and self.mode != "shorter_side":
            raise ValueError(f"above applies to the mode shorter_side; {self.mode} stores all images as squares")
        return self


class DataSettings(Settings):
    """The source of the examples and how they are stored; or `uri` alone, for a custom program that reads it itself."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["source"]}, {"required": ["uri"]}]})

    source: str = Field(
        default="",
        description="Source of the examples; required, except with `uri`:\n\n"
        "- `digits`: scikit-learn's handwritten digits\n"
        f"- `images:FOLDER`: a folder laid out as `split/class/IMAGE` or `class/IMAGE`; images are {NAMES} files\n"
        "- `images:ARCHIVE`: a tar, tar.gz or zip file of such a folder\n"
        "- `csv:FILE`: a list of images with the columns image (or path, file), label (or class), optionally split; "
        "without a column for images, a table of numbers, categories, dates and texts\n"
        "- `parquet:FILE`: the same from a Parquet file\n"
        "- `bigquery:PROJECT.DATASET.TABLE`: a table of BigQuery, with the columns of `csv:`; see `bigquery`\n"
        "- `bigquery:FILE.sql`: the rows of a query\n"
        "- `tfds:NAME[/CONFIG][:VERSION]`: a data set of TensorFlow Datasets; see `tfds`\n"
        "- `hf:ORG/NAME[/CONFIG][@REVISION]`: a data set of the Hugging Face Hub; see `huggingface`\n"
        "- `tfrecord:PATTERN`: TFRecord files of tf.train.Example\n"
        "- `MODULE:FUNCTION`: a Python function that yields examples; see `module`",
    )
    uri: str | None = Field(
        default=None,
        min_length=1,
        description="URI or folder that a custom program receives as it is, in `SLIPWAY_DATA`: nothing is prepared. No "
        "other setting of this section applies. null: the data are prepared from `source`.",
    )
    name: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9_]*$",
        description="Name of the prepared data set; null: derived from the source.",
    )
    features: str | dict[str, str | dict[str, list[str] | PositiveInt]] | None = Field(
        default=None,
        description="Features of an example: the path of a file (TFDS's features.json, or YAML), or a mapping from "
        "names to kinds. null: image and label, or those that the source declares.",
    )
    image: str | None = Field(
        default=None,
        description="Column or feature used as the image; null: image, or the source's only image feature.",
    )
    id: str | None = Field(
        default=None,
        min_length=1,
        description="Column of a table (`csv:`, `parquet:`) that has the key of each row, by which reports name it, "
        "and is no input. null: the key is a hash of the row's values.",
    )
    label: str | None = Field(
        default=None,
        description="Column or feature used as the label; null: label, or the source's only class label feature. For "
        "`task: multilabel`, it has any number of names: in a CSV cell separated by `|`, elsewhere a list. For "
        "`task: regression`, it is a number.",
    )
    target: Literal["log"] | None = Field(
        default=None,
        description="For `task: regression` with a positive target, such as a price: log lets the network learn its "
        "natural logarithm, so that relative errors count; predictions and metrics keep the target's unit. null: the "
        "target as it is.",
    )
    inputs: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Features that the network receives, in order: image, and columns or features of the kinds number, "
        "integer, category, date, text and image. null: the image if the source has one, else all features.",
    )
    text: TextSettings = Field(default=TextSettings(), description="Inputs that are texts.")
    tfds: TfdsSettings = Field(default=TfdsSettings(), description="Options of the source `tfds:`.")
    huggingface: HuggingFaceSettings | None = Field(
        default=None,
        exclude_if=lambda value: value is None,
        description="Options of the source `hf:`; null: the splits of the data set keep their names.",
    )
    module: ModuleSettings = Field(default=ModuleSettings(), description="Options of the source `MODULE:FUNCTION`.")
    bigquery: BigQuerySettings = Field(default=BigQuerySettings(), description="Options of the source `bigquery:`.")
    beam: BeamSettings | None = Field(
        default=None, description="Prepare large data sets with Apache Beam; null: local processes prepare all."
    )
    split: SplitFractions = Field(default=SplitFractions(), description="Fractions of the splits.")
    seed: int = Field(
        default=0, ge=0, lt=2**31, description="Seed for splits that the source does not define, and for shuffling."
    )
    image_size: tuple[PositiveInt, PositiveInt] | None = Field(
        default=None,
        description="[height, width] in pixels to which images are resized when they are read; null: all images must "
        "have the same size.",
    )
    resize_mode: ResizeMode | None = Field(
        default=None,
        description="How images of another aspect ratio are resized to `image_size`, in training, evaluation and the "
        "exported model: stretch distorts them; crop keeps the aspect ratio and cuts off both ends of the longer side; "
        "pad keeps it and adds black bars at both ends of the shorter side. null: the mode of `resize` if that is crop "
        "or pad, else stretch.",
    )
    resize: ResizeSettings | Literal["original"] | None = Field(
        default=None,
        description="Store images at training size, so that large photographs are decoded only once, when the data set "
        "is prepared; original: store all images at their own size. null: with `image_size`, images whose shorter side "
        f"has more than {LARGE_SIDE} pixels, and more than twice the longer side of `image_size`, are stored with that "
        "side.",
    )
    channels: Literal[1, 3] | None = Field(
        default=None, description="1: grayscale, 3: RGB; null: detected from the images."
    )
    skip_corrupt: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Largest fraction of images that may be skipped as unusable, for which all images are read twice, "
        "first to validate them; 0: any unusable image is refused.",
    )
    truncated: Literal["refuse", "keep"] = Field(
        default="refuse",
        description="TFRecord files that were cut off, also those of TFDS: refuse stops the run, whatever "
        "`skip_corrupt` allows; keep uses their whole records, and counts the lost ones as unusable, see "
        "`skip_corrupt`: one of each file, unless the data set says how many it had.",
    )
    check: Check = Field(
        default="sample",
        description="Image validation: decode decodes every image, header checks only the headers, sample checks every "
        "header and decodes about `check_sample` images, chosen by a hash of their keys. With `resize`, every image is "
        "decoded.",
    )
    damaged: Literal["warn", "refuse"] = Field(
        default="warn",
        description="Images that decode, but with warnings, since some of their data is corrupt and their pixels are "
        "partly wrong: warn uses and reports them, refuse treats them as unusable, see `skip_corrupt`. Found among the "
        "images that `check` decodes.",
    )
    check_sample: PositiveInt = Field(
        default=1_000_000,
        description="Number of images that the check sample decodes; it decodes all images of smaller data sets.",
    )
    missing: Literal["mean", "refuse"] = Field(
        default="mean",
        description="Missing numbers among the inputs, such as empty cells: mean replaces them by the training split's "
        "mean, and the network also receives whether the number is missing, in training and from the exported model; "
        "refuse treats their examples as unusable, see `skip_corrupt`. A missing category is a category of its own.",
    )
    missing_values: list[str] = Field(
        default=[],
        description="Further texts that stand for a missing value in cells of a table, such as [unknown, -999], in "
        "training and in predictions; those of pandas and Excel, such as NA and #N/A, are known.",
    )
    number_format: dict[str, NumberFormat] = Field(
        default={},
        description="How columns of a table write the number 1234.56, such as {price: '1.234,56'}: with separators of "
        "thousands, a decimal comma, and signs of a currency or percent, which are removed, in training and in "
        "predictions.",
    )
    group_by: str | None = Field(
        default=None,
        description="Puts all examples of a group into the same split: a regular expression with one capturing group, "
        "searched for in each example's key (its path in the source), or column:NAME for a column of `csv:` or "
        "`parquet:`, or a feature of a source that has features. null: no groups.",
    )
    order_by: str | None = Field(
        default=None,
        description="Splits in time: the earliest examples train, later ones validate, and the latest test; equal "
        "values are in one split, and a group of `group_by` is where its latest example is. Either column:NAME, for a "
        "column of numbers or dates, which is then an input only if `inputs` names it (if dates begin with the day or "
        "the month, declare it in `features` as date_dmy or date_mdy); or a regular expression with one capturing "
        "group, searched for in each example's key. null: splits at random.",
    )
    horizon: NonNegativeFloat = Field(
        default=0.0,
        description="With `order_by`, how long after its value the label of an example is known, in days for dates, "
        "else in the unit of the values: examples whose labels are known only after the next split begins are not "
        "used.",
    )
    duplicates: Literal["keep", "refuse", "drop"] = Field(
        default="refuse",
        description="Copies in two splits, which inflate the evaluation metrics. Images with identical bytes: refuse "
        "stops the run, drop keeps one copy (preferably the test split's), keep does not check. Examples without an "
        "image, such as rows of a table, with equal inputs and labels: refuse keeps equal ones in one split, unless "
        "there are too few different ones or the source has splits; drop uses one of them; keep divides them like "
        "different ones.",
    )
    near_duplicates: Literal["off", "report", "group"] = Field(
        default="report",
        description="Images of at least 64 pixels that look the same but differ in their bytes, such as one that was "
        "saved again at another size: report names those that are in two splits, group keeps them in one split, for "
        "which all images are read twice, off does not compare. Found among the images that `check` decodes.",
    )
    shard_megabytes: PositiveInt = Field(default=128, description="Approximate size of a shard, in megabytes.")
    workers: PositiveInt | None = Field(
        default=None, description="Number of processes that prepare the data; null: one per CPU core."
    )
    store: str = Field(default="datasets", description="Folder or gs:// URI of the prepared data sets.")

    @property
    def reading_mode(self) -> ResizeMode:
        """How images are resized when they are read."""
        explicit = self.explicit_resize
        if self.resize_mode is None and explicit is not None and explicit.mode != "shorter_side":
            return explicit.mode
        return self.resize_mode or "stretch"

    @property
    def explicit_resize(self) -> ResizeSettings | None:
        """How all images are stored at another size, if the user says so."""
        return self.resize if isinstance(self.resize, ResizeSettings) else None

    @property
    def divided_by(self) -> str:
        """The setting that decides the split of an example, in a source without splits; "" if a hash does."""
        return "data.order_by" if self.order_by else "data.group_by" if self.group_by else ""

    @property
    def order_column(self) -> str | None:
        """The column that orders the examples; None if no column does."""
        return self.order_by.removeprefix(COLUMN) if self.order_by and self.order_by.startswith(COLUMN) else None

    @property
    def has_gaps(self) -> bool:
        """Whether inputs that are one number may be missing."""
        return self.missing == "mean"

    @property
    def stored_size(self) -> ResizeSettings | None:
        """How images are stored at another size; None if all keep their own."""
        if self.resize is None and self.image_size is not None:
            side = max(self.image_size)
            return ResizeSettings(size=side, above=max(LARGE_SIDE, 2 * side)) if side <= MAX_STORED else None
        return self.explicit_resize

    @field_validator("resize")
    @classmethod
    def _same_when_read(
        cls, value: ResizeSettings | Literal["original"] | None, info: ValidationInfo
    ) -> ResizeSettings | Literal["original"] | None:
        """Refuse stored images that training would enlarge, or see otherwise than the exported model sees originals."""
        size, mode = info.data.get("image_size"), info.data.get("resize_mode")
        if not isinstance(value, ResizeSettings):
            return value
        if size and min(size) > value.size:
            raise ValueError(
                f"images stored with size {value.size} would be enlarged again to data.image_size {list(size)}; "
                f"data.resize.size must be at least {min(size)}"
            )
        if value.mode == "shorter_side":
            return value
        if size and size[0] != size[1]:
            raise ValueError(f"{value.mode} stores squares; data.image_size {list(size)} must be a square or null")
        if mode not in (None, value.mode):
            raise ValueError(
                f"the exported model must resize images like the stored ones, with {value.mode}; data.resize_mode is "
                f"{mode}; remove it, or use shorter_side"
            )
        return value

    @field_validator("missing_values", mode="before")
    @classmethod
    def _as_texts(cls, value: object) -> object:
        return [text_of(marker) for marker in value] if isinstance(value, list) else value

    @field_validator("group_by", "order_by")
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

    @model_validator(mode="after")
    def _source_or_uri(self) -> DataSettings:
        if not self.source and self.uri is None:
            raise UserError(
                "The section data has neither source nor uri.",
                setting="data.source",
                value=None,
                allowed="source, from which Slipway prepares the data; or uri, for a custom program that reads it",
                fix="--set data.source=digits",
            )
        for name in self.changed() if self.uri is not None else ():
            if name != "uri":
                raise UserError(
                    f"data.{name} applies only to data that Slipway prepares; with data.uri, the program reads them.",
                    setting=f"data.{name}",
                    value=getattr(self, name),
                    allowed="data.uri alone, or data.source and the other settings",
                    fix=f"remove data.{name}; or, to prepare the data, replace data.uri by data.source",
                )
        return self

    @model_validator(mode="after")
    def _horizon_of_order(self) -> DataSettings:
        if self.horizon and self.order_by is None:
            raise UserError(
                "data.horizon has no effect on splits at random.",
                setting="data.horizon",
                value=self.horizon,
                allowed="only with data.order_by",
                fix="remove data.horizon, or --set data.order_by=column:NAME",
            )
        return self

    @model_validator(mode="after")
    def _decodes(self) -> DataSettings:
        decoding_settings = {"damaged": ("refuse", "warn"), "near_duplicates": ("group", "report and off")}
        for name, (value, undecoded) in decoding_settings.items():
            if getattr(self, name) == value and self.check == "header" and self.explicit_resize is None:
                raise UserError(
                    f"data.{name}={value} has no effect with data.check=header, which decodes no image.",
                    setting=f"data.{name}",
                    value=value,
                    allowed=f"{value} with data.check=sample or decode; {undecoded} with any",
                    fix="--set data.check=decode",
                )
        return self

    @model_serializer(mode="wrap")
    def _uri_alone(self, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        values: dict[str, object] = serialize(self)
        return values if self.uri is None else {"uri": self.uri}
