"""Which files of a repository are examples, of which split, and what a reference names."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from slipway.components.prepare_data.huggingface.hub import Repository
from slipway.components.prepare_data.huggingface.layout import Layout, layout_of
from slipway.components.prepare_data.huggingface.reference import Reference
from slipway.core.errors import UserError

CONFIGS = """
configs:
- config_name: large
  data_files: large/*.parquet
- config_name: small
  data_files:
  - {split: train, path: "small/**"}
  - {split: dev, path: [other/dev.parquet]}
dataset_info:
- config_name: small
  features:
  - {name: label, dtype: {class_label: {names: {'0': cat, '1': dog}}}}
"""
MANY = ["large/a.parquet", "small/x/b.parquet", "other/dev.parquet", "README.md"]


def layout(reference: str, paths: list[str], card: str = "{}", splits: Any = None) -> Layout:
    named = Reference.of(reference)
    return layout_of(
        Repository("dataset", named.repo, "data.source", reference), named, paths, yaml.safe_load(card), splits
    )


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("hf:org/name", ("org/name", None, None)),
        ("hf:org/name@v1.0", ("org/name", None, "v1.0")),
        ("hf:org/name/en-US@refs/convert/parquet", ("org/name", "en-US", "refs/convert/parquet")),
        (f"hf:o.r-g/na_me/20220301.en@{'a1' * 20}", ("o.r-g/na_me", "20220301.en", "a1" * 20)),
    ],
)
def test_a_reference_is_read_and_written(source: str, parts: tuple[str, ...]) -> None:
    reference = Reference.of(source)
    assert (reference.repo, reference.config, reference.revision) == parts
    assert str(reference) == source
    assert reference.is_pinned == source.endswith("a1")


@pytest.mark.parametrize("source", ["hf:name", "hf:org/", "hf:org/name/a/b", "hf:org/name@", "hf:org/na me"])
def test_another_form_is_refused(source: str) -> None:
    with pytest.raises(UserError, match="is not a valid data set") as caught:
        Reference.of(source)
    assert caught.value.allowed == "hf:ORG/NAME[/CONFIG][@REVISION]"


@pytest.mark.parametrize(
    ("paths", "splits"),
    [
        (
            [
                "data/train-00000-of-00002.parquet",
                "data/train-00001-of-00002.parquet",
                "data/test-00000-of-00001.parquet",
            ],
            {"train": 2, "test": 1},
        ),
        (["train.csv", "my-dev.csv", "evaluation_2.csv"], {"train": 1, "validation": 1, "test": 1}),
        (["a/training/x.parquet", "a/val/y.parquet"], {"train": 1, "validation": 1}),
        (["rows.parquet", "more.parquet", "logo.png"], {"train": 2}),
        (["x.parquet", ".hidden/y.parquet", "__pycache__/z.parquet", "dataset_infos.json"], {"train": 1}),
    ],
)
def test_splits_have_the_names_of_files_and_folders(paths: list[str], splits: dict[str, int]) -> None:
    assert {split: len(files) for split, files in layout("hf:org/name", paths).tables.items()} == splits


def test_images_in_folders_are_read_if_there_is_no_table() -> None:
    images = ["train/cat/1.png", "train/dog/2.JPG", "test/cat/3.png"]
    plain = layout("hf:org/name", images)
    assert not plain.tables
    assert plain.images == {"train": images[:2], "test": images[2:]}
    listed = layout("hf:org/name", [*images, "train/metadata.csv", "test/metadata.jsonl"])
    assert listed.tables == {"train": ["train/metadata.csv"], "test": ["test/metadata.jsonl"]}
    assert listed.paths == sorted([*images, "train/metadata.csv", "test/metadata.jsonl"])


def test_configurations_of_the_metadata_apply() -> None:
    small = layout("hf:org/name/small", MANY, CONFIGS)
    assert small.tables == {"train": ["small/x/b.parquet"], "validation": ["other/dev.parquet"]}
    assert [*small.features] == ["label"]
    assert layout("hf:org/name/large", MANY, CONFIGS).tables == {"train": ["large/a.parquet"]}
    default = CONFIGS.replace("config_name: large", "config_name: large\n  default: true")
    assert layout("hf:org/name", MANY, default).tables == {"train": ["large/a.parquet"]}


def test_files_that_the_hub_converted_are_in_a_folder_for_each_configuration() -> None:
    paths = ["en/train/0000.parquet", "en/test/0000.parquet", "fr/train/0000.parquet"]
    assert layout("hf:org/name/en@refs/convert/parquet", paths).tables == {"train": paths[:1], "test": paths[1:2]}
    with pytest.raises(UserError, match="has 2 configurations, and none is the default") as caught:
        layout("hf:org/name@refs/convert/parquet", paths)
    assert caught.value.fix == "--set data.source=hf:org/name/en@refs/convert/parquet"


@pytest.mark.parametrize(
    ("reference", "paths", "card", "message", "fix"),
    [
        ("hf:org/name/smal", MANY, CONFIGS, "no configuration 'smal'", "--set data.source=hf:org/name/small"),
        ("hf:org/name", MANY, CONFIGS, "2 configurations, and none", "--set data.source=hf:org/name/large"),
        ("hf:org/name", ["script.py"], "{}", "no file that can be read", "--set data.source=hf:org/name@refs/convert/"),
        (
            "hf:org/name",
            ["data/train-00000-of-00001.parquet", "data/unsupervised-00000-of-00001.parquet"],
            "{}",
            "splits other than train, validation and test: unsupervised",
            "--set 'data.huggingface.splits={train: train}'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_fix(
    reference: str, paths: list[str], card: str, message: str, fix: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        layout(reference, paths, card)
    assert (caught.value.fix or "").startswith(fix)


def test_splits_are_mapped() -> None:
    paths = [f"data/{split}-00000-of-00001.parquet" for split in ("train", "extra", "odd")]
    mapped = layout("hf:org/name", paths, splits={"train": "train", "extra": "train"})
    assert mapped.tables == {"train": paths[:2]}
    with pytest.raises(UserError, match="no split 'exta'") as caught:
        layout("hf:org/name", paths, splits={"exta": "train"})
    assert caught.value.nearest == "extra"
