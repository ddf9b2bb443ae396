"""Write the metadata files with which `tensorflow_datasets.builder_from_directory` reads a prepared data set.

They are written without tensorflow_datasets, whose import (with TensorFlow) takes longer than preparing most data sets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.sources.record_layout import class_label
from slipway.components.prepare_data.sources.source import Source
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject

VERSION = "1.0.0"
_FEATURES = "tensorflow_datasets.core.features."


def write_dataset_info(folder: Path, manifest: Manifest, source: Source) -> None:
    """Write `dataset_info.json`, `features.json` and the class names to the folder of the shards.

    Args:
        folder: The folder of the shards.
        manifest: The data set's manifest.
        source: The data set's source, which describes the additional features.
    """
    (folder / "dataset_info.json").write_text(_json(_dataset_info(manifest)), encoding="utf-8")
    (folder / "features.json").write_text(_json(_features(manifest, source.features)), encoding="utf-8")
    for name, classes in {**source.class_names, "label": manifest.classes}.items():
        if not classes:
            continue
        (folder / f"{name}.labels.txt").write_text("\n".join(classes) + "\n", encoding="utf-8")


def _dataset_info(manifest: Manifest) -> JsonObject:
    splits = [
        {
            "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            "name": name,
            "numBytes": str(sum(shard.bytes for shard in split.shards)),
            "shardLengths": [str(shard.examples) for shard in split.shards],
        }
        for name, split in manifest.splits.items()
    ]
    return {"fileFormat": "tfrecord", "name": manifest.name, "splits": splits, "version": VERSION}


def _features(manifest: Manifest, additional: Mapping[str, JsonObject]) -> JsonObject:
    # -1 stands for any size: stored images keep their sizes if they are resized when read.
    height, width = (-1, -1) if manifest.resize else manifest.image_size
    image: JsonObject = {
        "dtype": "uint8",
        "shape": {"dimensions": [str(height), str(width), str(manifest.channels)]},
    }
    if len(manifest.encodings) == 1:
        image["encodingFormat"] = manifest.encodings[0]
    labels = {
        "classification": class_label(len(manifest.classes)),
        "multilabel": Kind("integer", shape=(len(manifest.classes),)).description,
        "regression": Kind("number").description,
    }
    features = {
        **additional,
        "key": {"pythonClassName": f"{_FEATURES}text_feature.Text", "text": {}},
        "label": labels[manifest.task],
    }
    if manifest.has_image:
        features["image"] = {"pythonClassName": f"{_FEATURES}image_feature.Image", "image": image}
    return {"pythonClassName": f"{_FEATURES}features_dict.FeaturesDict", "featuresDict": {"features": features}}


def _json(value: JsonObject) -> str:
    return json.dumps(value, indent=4, sort_keys=True) + "\n"
