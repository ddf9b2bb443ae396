"""Small tables in the format of prepare_data, and models of them in the format of the exporter, written by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slipway.core.manifest import FILE_NAME, Input, Manifest, Shard, Split, TaskName

CITIES = ("Bern", "Genf", "Zug")


def inputs() -> dict[str, Input]:
    return {
        "size": Input(kind="number", mean=(50.0,), deviation=(20.0,)),
        "place": Input(kind="number", shape=(2,), mean=(0.0, 0.0), deviation=(1.0, 1.0)),
        "tokens": Input(kind="integer", shape=(3,), maximum=9),
        "city": Input(kind="category", vocabulary=CITIES),
    }


def rows(examples: int, seed: int = 0) -> dict[str, Any]:
    """Raw values of `inputs`; one city in ten is not in the vocabulary."""
    generator = np.random.default_rng(seed)
    return {
        "size": generator.normal(50, 20, examples).astype(np.float32),
        "place": generator.normal(size=(examples, 2)).astype(np.float32),
        "tokens": generator.integers(0, 10, (examples, 3)),
        "city": generator.choice([*CITIES, *CITIES, *CITIES, "Wil"], examples),
    }


def write_table(
    folder: Path, task: TaskName, values: Mapping[str, Any], labels: np.ndarray, names: Sequence[str] = ()
) -> Path:
    """A prepared data set whose test split holds these rows."""
    import tensorflow as tf

    folder.mkdir(parents=True)
    described = {name: each for name, each in inputs().items() if name in values}
    path = folder / "table-test.tfrecord-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for index, label in enumerate(labels):
            features = {name: _feature(values[name][index], each.kind) for name, each in described.items()}
            features["label"] = _feature(label, "number" if task == "regression" else "integer")
            features["key"] = _feature(f"row {index}", "category")
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    shard = Shard(file=path.name, examples=len(labels), bytes=path.stat().st_size, sha256=digest)
    statistics = {"mean": (float(np.mean(labels)),), "deviation": (float(np.std(labels)) or 1.0,)}
    manifest = Manifest(
        name="homes",
        fingerprint="fedcba9876543210" * 4,
        source="csv:homes.csv",
        settings={"source": "csv:homes.csv", "seed": 0},
        task=task,
        classes=list(names),
        target=Input(kind="number", **statistics) if task == "regression" else None,
        inputs=described,
        image_size=(0, 0),
        channels=1,
        resize=False,
        encodings=[],
        splits={"test": Split(examples=len(labels), classes={}, shards=[shard])},
    )
    (folder / FILE_NAME).write_text(manifest.model_dump_json())
    return folder


def _feature(value: Any, kind: str) -> Any:
    import tensorflow as tf

    flat = np.ravel(value).tolist()
    if kind == "number":
        return tf.train.Feature(float_list=tf.train.FloatList(value=flat))
    if kind == "integer":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=flat))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[each.encode() for each in flat]))


SPECS = {"size": ([], "float32"), "place": ([2], "float32"), "tokens": ([3], "int64"), "city": ([], "string")}


def write_model(
    folder: Path, outputs: Callable[[dict[str, Any]], dict[str, Any]], names: Sequence[str], **description: Any
) -> Path:
    """A model folder whose signature has the inputs `names` and returns what `outputs` makes of them."""
    import tensorflow as tf

    module = tf.Module()
    specs = [tf.TensorSpec([None, *SPECS[name][0]], SPECS[name][1], name=name) for name in names]

    @tf.function(input_signature=specs)
    def serve(*arguments: Any) -> dict[str, Any]:
        return outputs(dict(zip(names, arguments, strict=True)))

    module.serve = serve
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    (folder / "model.json").write_text(json.dumps({"engine": "tensorflow", **description}))
    return folder
