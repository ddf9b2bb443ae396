"""Writes prepared data sets with named inputs, for any task, as prepare_data does."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipway.core import manifest as manifests
from slipway.core.manifest import Input, Manifest, Shard, Split
from tests.trainer.conftest import encode


@dataclass(frozen=True)
class Column:
    """An input's values, one for each example: uint8 pixels, numbers, integers or text."""

    kind: str
    values: Any


def write(
    folder: Path,
    task: str,
    columns: Mapping[str, Column],
    labels: Any,
    classes: Sequence[str] = (),
    *,
    validation: int,
    shards: int = 4,
) -> Manifest:
    """Write all examples but the last `validation` ones as the training split, those as the validation split."""
    import tensorflow as tf

    folder.mkdir(parents=True)
    labels = np.asarray(labels)
    total = len(labels)
    ends = {"train": (0, total - validation), "validation": (total - validation, total)}
    splits = {}
    for split, (first, end) in ends.items():
        parts = np.array_split(np.arange(first, end), shards)
        written = []
        for number, part in enumerate(parts):
            path = folder / f"{split}-{number}.tfrecord"
            with tf.io.TFRecordWriter(str(path)) as writer:
                for index in part:
                    features = {name: _feature(column, index) for name, column in columns.items()}
                    features |= {
                        "label": _label(task, labels[index]),
                        "key": _texts([f"{index}".encode()]),
                    }
                    writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            written.append(Shard(file=path.name, examples=len(part), bytes=len(content), sha256=digest))
        counts = {}
        if task == "classification":
            counts = {name: int((labels[first:end] == number).sum()) for number, name in enumerate(classes)}
        splits[split] = Split(examples=end - first, classes=counts, shards=written)
    train = slice(0, total - validation)
    inputs = {name: _input(column, train) for name, column in columns.items()}
    image = inputs.pop("image", None)
    manifest = Manifest(
        name="named",
        fingerprint=f"{task} {sorted(columns)} {total}",
        source="csv:named.csv",
        settings={},
        task=task,
        classes=list(classes),
        target=_input(Column("number", labels), train) if task == "regression" else None,
        inputs=inputs,
        image_size=image.shape[:2] if image else (0, 0),
        channels=image.shape[2] if image else 1,
        resize=False,
        encodings=["png"] if image else [],
        splits=splits,
    )
    (folder / manifests.FILE_NAME).write_text(manifest.model_dump_json())
    return manifest


def _input(column: Column, train: slice) -> Input:
    values = np.asarray(column.values)
    if column.kind == "image":
        return Input(kind="image", shape=(*values.shape[1:3], 1))
    if column.kind == "category":
        return Input(kind="category", vocabulary=tuple(sorted(set(values[train].tolist()))))
    if column.kind == "text":
        return Input(kind="text", shape=(5,), vocabulary=("a", "of", "dry", "hot", "un", "##se", "##en"))
    if column.kind == "date":
        return Input(kind="date", shape=(8,), mean=(18_000.0,), deviation=(300.0,), nullable=True, order="dmy")
    if column.kind == "integer":
        return Input(kind="integer", shape=values.shape[1:], maximum=int(values[train].max()))
    known = values[train].astype(np.float64)
    spread = np.nanstd(known, axis=0)
    nullable = bool(np.isnan(values).any())
    return Input(
        kind="number",
        shape=(2,) if nullable else values.shape[1:],
        mean=tuple(np.ravel(np.nanmean(known, axis=0)).tolist()),
        deviation=tuple(np.ravel(np.where(spread == 0, 1.0, spread)).tolist()),
        nullable=nullable,
    )


def _feature(column: Column, index: int) -> Any:
    import tensorflow as tf

    value = column.values[index]
    if column.kind == "image":
        return _texts([encode(value)])
    if column.kind in ("category", "text", "date"):
        return _texts([str(value).encode()])
    if column.kind == "integer":
        return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value).tolist()))
    return tf.train.Feature(float_list=tf.train.FloatList(value=np.ravel(value).tolist()))


def _label(task: str, value: Any) -> Any:
    import tensorflow as tf

    if task == "regression":
        return tf.train.Feature(float_list=tf.train.FloatList(value=[float(value)]))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=np.ravel(value).astype(int).tolist()))


def _texts(values: list[bytes]) -> Any:
    import tensorflow as tf

    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def every_kind(folder: Path, task: str, count: int = 160) -> Manifest:
    """Write a small set with an input of every kind, on which the label depends; names as in a spreadsheet."""
    random = np.random.default_rng(5)
    images = random.integers(0, 120, (count, 8, 8), np.uint8)
    images[: count // 2, :4] += 100
    images = images[random.permutation(count)]
    second = random.integers(0, 255, (count, 4, 6), np.uint8)
    age = random.normal(50.0, 9.0, count).astype(np.float32)
    track = random.normal([5.0, -100.0, 0.1], [1.0, 30.0, 0.01], (count, 3)).astype(np.float32)
    tokens = random.integers(0, 7, (count, 4))
    income = np.where(np.arange(count) % 5 == 0, np.nan, 3000.0 + 10.0 * np.arange(count)).astype(np.float32)
    place = random.choice(["Bern", "Zürich", "Genf"], count)
    place[-5:] = "Olten"  # only in the validation split
    columns = {
        "area (m²)": Column("category", place),
        "image": Column("image", images),
        "age": Column("number", age),
        "track": Column("number", track),
        "tokens": Column("integer", tokens),
        "income": Column("number", income),
        "second": Column("image", second),
        "report": Column("text", [" ".join(random.choice(["A", "of", "dry,", "unseen"], 4)) for _ in range(count)]),
        "day": Column("date", ["" if index % 7 == 0 else f"{index % 28 + 1}.03.2019" for index in range(count)]),
    }
    columns = {"image": columns.pop("image"), **columns}  # the image is the first input
    value = (age - 50) / 9 + (track[:, 1] + 100) / 30 + (place == "Bern") * 2.0 + images[:, :4].mean(axis=(1, 2)) / 100
    if task == "regression":
        return write(folder, task, columns, 1000.0 + 40.0 * value, validation=40)
    labels = np.stack([value > np.median(value), tokens[:, 0] > 3, place == "Genf"], axis=1).astype(np.int64)
    if task == "multilabel":
        return write(folder, task, columns, labels, ["high", "long", "west"], validation=40)
    return write(folder, task, columns, labels[:, 0] + labels[:, 1], ["a", "b", "c"], validation=40)
