"""The encoded records are byte-identical to TensorFlow's."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.encoding import records
from slipway.components.prepare_data.encoding.messages import bytes_feature, features_of, float_feature
from slipway.components.prepare_data.encoding.records import (
    DamagedRecord,
    RecordEncoder,
    read_at,
    read_columns,
    read_records,
)
from tests.components.prepare_data.conftest import example_parts

# Lengths around the values at which a varint needs one more byte.
contents = st.one_of(st.binary(max_size=300), st.integers(16_000, 17_000).map(lambda size: b"\x01" * size))
labels = st.one_of(st.integers(0, 300), st.integers(0, 2**31))


@pytest.fixture(scope="module")
def tensorflow():  # type: ignore[no-untyped-def]
    import tensorflow

    return tensorflow


@given(examples=st.lists(st.tuples(contents, st.binary(max_size=200), labels), max_size=6))
def test_a_file_is_the_one_that_tensorflow_writes(tensorflow, tmp_path_factory, examples) -> None:
    encoder = RecordEncoder()
    ours = b"".join(encoder.encode(image, key, label) for image, key, label in examples)
    path = tmp_path_factory.getbasetemp() / "tensorflow.tfrecord"
    feature = tensorflow.train.Feature
    with tensorflow.io.TFRecordWriter(str(path)) as writer:
        for image, key, label in examples:
            values = {
                "image": feature(bytes_list=tensorflow.train.BytesList(value=[image])),
                "key": feature(bytes_list=tensorflow.train.BytesList(value=[key])),
                "label": feature(int64_list=tensorflow.train.Int64List(value=[label])),
            }
            example = tensorflow.train.Example(features=tensorflow.train.Features(feature=values))
            writer.write(example.SerializeToString(deterministic=True))
    assert ours == Path(path).read_bytes()


@given(examples=st.lists(st.tuples(contents, st.binary(max_size=200), labels), max_size=6))
def test_what_is_written_is_read_back(examples: list[tuple[bytes, bytes, int]]) -> None:
    encoder = RecordEncoder()
    file = io.BytesIO(b"".join(encoder.encode(*example) for example in examples))
    assert [example_parts(message) for message in read_records(file)] == examples


def test_layouts_that_are_kept_are_told_apart() -> None:
    encoder = RecordEncoder()
    for image in (b"", b"a", b"ab" * 100):
        for key in (b"", b"k", b"k" * 200):
            for label in (0, 1, 127, 128, 70_000):
                (message,) = read_records(io.BytesIO(encoder.encode(image, key, label)))
                assert example_parts(message) == (image, key, label)


@given(data=st.data())
def test_any_damage_is_found(data: st.DataObject) -> None:
    encoder = RecordEncoder()
    whole = encoder.encode(b"image", b"key", 1) + encoder.encode(b"another", b"name", 2)
    offset = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[offset] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedRecord):
        list(read_records(io.BytesIO(bytes(flipped))))


def test_a_file_that_ends_inside_a_record_is_damaged() -> None:
    record = RecordEncoder().encode(b"image", b"key", 1)
    for end in range(1, len(record)):
        with pytest.raises(DamagedRecord):
            list(read_records(io.BytesIO(record[:end])))


# Around the names of the key and the label, also inside of values.
names = st.sampled_from(["a", "kez", "l", "z", "n" * 130])
texts = st.one_of(
    st.binary(max_size=20), st.sampled_from([b"\n\x03key\x12", b"\n\x05label\x12", b"x" * 127, b"x" * 17_000])
)
features = st.one_of(
    texts.map(lambda text: bytes_feature([text])), st.floats(width=32).map(lambda x: float_feature([x]))
)
rows = st.tuples(texts, labels, st.fixed_dictionaries({"b": features, "label2": features}, optional={"y": features}))


@given(rows=st.lists(rows, min_size=1, max_size=8), others=st.sets(names, max_size=3), data=st.data())
def test_columns_of_many_records_are_those_of_each(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[bytes, int, dict[str, bytes]]],
    others: set[str],
    data: st.DataObject,
) -> None:
    encoder = RecordEncoder()
    additional = [{**row, **{name: data.draw(features) for name in others}} for _, _, row in rows]
    encoded = [
        encoder.encode_with(None, key, label, [(name.encode(), feature) for name, feature in row.items()])
        for (key, label, _), row in zip(rows, additional, strict=True)
    ]
    folder = tmp_path_factory.mktemp("records")
    middle = data.draw(st.integers(0, len(rows)))
    paths = [folder / "first", folder / "second"]
    for path, part in zip(paths, (encoded[:middle], encoded[middle:]), strict=True):
        path.write_bytes(b"".join(part))
    parsed = [features_of(message) for message in read_records(io.BytesIO(b"".join(encoded)))]
    chosen = sorted({"b", "label2", *others, *data.draw(st.sets(st.sampled_from(["key", "label"])))})
    count = data.draw(st.integers(0, len(rows) + 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "PIECE_BYTES", data.draw(st.sampled_from([1, 100, 1000, 1 << 20])))
        assert read_columns(paths, chosen, count) == {
            name: [each[name.encode()] for each in parsed[:count]] for name in chosen
        }
        numbers = data.draw(st.sets(st.integers(0, len(encoded[:middle]))))
        assert read_at(paths[0], numbers) == {number: parsed[number] for number in numbers if number < middle}


def test_reading_ends_after_so_many_bytes(tmp_path: Path) -> None:
    encoder = RecordEncoder()
    encoded = [encoder.encode_with(None, b"k", 1, [(b"text", bytes_feature([b"x" * size]))]) for size in (900, 90, 9)]
    for number, record in enumerate(encoded):
        (tmp_path / str(number)).write_bytes(record)
    shards = [tmp_path / str(number) for number in range(len(encoded))]
    for most, count in ((1, 1), (800, 1), (1000, 2), (2000, 3)):
        assert len(read_columns(shards, ["text"], 9, most)["text"]) == count


@given(data=st.data())
def test_no_column_of_a_damaged_file_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    encoder = RecordEncoder()
    encoded = [encoder.encode(b"image" * size, b"key", 1) for size in (1, 1, 2)]
    ends = [*itertools.accumulate(map(len, encoded))]
    content = bytearray(b"".join(encoded))
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[data.draw(st.integers(1, len(content)).filter(lambda end: end not in ends)) :]
    path = tmp_path_factory.getbasetemp() / "damaged.tfrecord"
    path.write_bytes(content)
    with pytest.raises(DamagedRecord):
        read_columns([path], ["image"], 3)
