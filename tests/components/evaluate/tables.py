"""Small tables in the format of prepare_data, and models of them in the format of the exporter, written by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
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


def price(values: Mapping[str, Any]) -> Any:
    """What a home costs without its city, [rows]; of NumPy arrays or tensors."""
    return values["size"] * 3 + values["place"][:, 0] * 10 + values["tokens"][:, 0] * 2


def prices_of(values: Mapping[str, Any]) -> np.ndarray:
    """What homes cost, with noise; 20 more in Bern, so that the category counts."""
    noise = np.random.default_rng(1).normal(0, 12, len(values["size"]))
    return (price(values) + noise + 20 * (values["city"] == "Bern")).astype(np.float32)


def write_price_model(folder: Path) -> Path:
    """A model that reads all inputs and predicts the prices without the noise."""
    import tensorflow as tf

    def predict(values: dict[str, Any]) -> dict[str, Any]:
        floats = {name: value if name == "city" else tf.cast(value, tf.float32) for name, value in values.items()}
        return {"prediction": price(floats) + 20 * tf.cast(values["city"] == "Bern", tf.float32)}

    return write_model(folder, predict, list(inputs()), task="regression", weights_checksum="a")


def write_table(
    folder: Path, task: TaskName, values: Mapping[str, Any], labels: np.ndarray, names: Sequence[str] = ()
) -> Path:
    """A prepared data set whose test split holds these rows; other columns than those of `inputs` are categories."""
    known = {name: each for name, each in inputs().items() if name in values}
    described = known | {name: Input(kind="category", vocabulary=CITIES) for name in values if name not in known}
    features = [{name: values[name][index] for name in described} for index in range(len(labels))]
    records = [{**row, "label": labels[index], "key": f"row {index}"} for index, row in enumerate(features)]
    statistics = {"mean": (float(np.mean(labels)),), "deviation": (float(np.std(labels)) or 1.0,)}
    return write_records(
        folder,
        records,
        shards=1,
        name="homes",
        fingerprint="fedcba9876543210" * 4,
        source="csv:homes.csv",
        settings={"source": "csv:homes.csv", "seed": 0},
        task=task,
        classes=list(names),
        target=Input(kind="number", **statistics) if task == "regression" else None,
        inputs=described,
        image_size=(0, 0),
        encodings=[],
    )


def write_records(
    folder: Path, records: Sequence[Mapping[str, Any]], shards: int, counts: Mapping[str, int] = MappingProxyType({}),
    **described: Any,
) -> Path:  # fmt: skip
    """A prepared data set whose test split holds these records, and whose manifest has these entries."""
    import tensorflow as tf

    folder.mkdir(parents=True)
    written = []
    for number, part in enumerate(np.array_split(np.arange(len(records)), shards)):
        path = folder / f"{described['name']}-test.tfrecord-{number:05d}-of-{shards:05d}"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for index in part:
                features = {name: _feature(value) for name, value in records[index].items()}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        written.append(Shard(file=path.name, examples=len(part), bytes=path.stat().st_size, sha256=digest))
    test = Split(examples=len(records), classes=dict(counts), shards=written)
    manifest = Manifest(**described, channels=1, resize=False, splits={"test": test})
    (folder / FILE_NAME).write_text(manifest.model_dump_json(indent=2))
    return folder


def _feature(value: Any) -> Any:
    import tensorflow as tf

    if isinstance(value, bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    flat = np.ravel(value)
    if flat.dtype.kind == "f":
        return tf.train.Feature(float_list=tf.train.FloatList(value=flat.tolist()))
    if flat.dtype.kind == "i":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=flat.tolist()))
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[each.encode() for each in flat.tolist()]))


SPECS = {"size": ([], "float32"), "place": ([2], "float32"), "tokens": ([3], "int64"), "city": ([], "string")}


def write_model(
    folder: Path, outputs: Callable[[dict[str, Any]], dict[str, Any]], names: Sequence[str], **description: Any
) -> Path:
    """A model folder whose signature has the inputs `names` and returns what `outputs` makes of them."""
    import tensorflow as tf

    module = tf.Module()
    specs = [
        tf.TensorSpec([None, *shape], kind, name=name)
        for name, (shape, kind) in ((name, SPECS.get(name, SPECS["city"])) for name in names)
    ]

    @tf.function(input_signature=specs)
    def serve(*arguments: Any) -> dict[str, Any]:
        return outputs(dict(zip(names, arguments, strict=True)))

    module.serve = serve
    tf.saved_model.save(module, str(folder), signatures={"serving_default": serve})
    (folder / "model.json").write_text(json.dumps({"engine": "tensorflow", **description}))
    return folder
