"""The encoded records are byte-identical to TensorFlow's."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.encoding.records import DamagedRecord, RecordEncoder, read_records
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
