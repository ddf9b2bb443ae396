"""Additional features are encoded like TensorFlow Datasets does; invalid values are rejected."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.encoding import messages
from slipway.components.prepare_data.encoding.features import Kind, described
from slipway.components.prepare_data.encoding.records import RecordEncoder, read_records
from slipway.components.prepare_data.examples import Unusable


@pytest.fixture(scope="module")
def tfds():  # type: ignore[no-untyped-def]
    import tensorflow_datasets

    return tensorflow_datasets


def theirs(tfds: Any) -> dict[str, tuple[Any, Any]]:
    """The TFDS feature for each kind, and a value."""
    features, box = tfds.features, tfds.features.BBox(0.25, 0.0, 1.0, 0.5)
    return {
        "text": (features.Text(), "ö\n"),
        "integer": (features.Scalar(np.int64), -5),
        "number": (features.Scalar(np.float32), 0.1),
        "number[3]": (features.Tensor(shape=(3,), dtype=np.float32), [1, 2.5, -3]),
        "integer[2,2]": (features.Tensor(shape=(2, 2), dtype=np.int64), [[1, 2], [3, 2**40]]),
        "number[]": (features.Sequence(features.Scalar(np.float32)), [1.5, 2]),
        "integer[]": (features.Sequence(features.Scalar(np.int64)), []),
        "text[]": (features.Sequence(features.Text()), ["a", ""]),
        "bounding_box": (features.BBoxFeature(), box),
        "bounding_box[]": (features.Sequence(features.BBoxFeature()), [box, box]),
    }


@pytest.mark.slow
def test_features_are_those_of_tensorflow_datasets(tfds: Any) -> None:
    import tensorflow as tf
    from tensorflow_datasets.core import example_serializer

    expected = theirs(tfds)
    names = {f"f{number}": kind for number, kind in enumerate(expected)}
    features = tfds.features.FeaturesDict({name: expected[kind][0] for name, kind in names.items()})
    values = {name: expected[kind][1] for name, kind in names.items()}
    serializer = example_serializer.ExampleSerializer(features.get_serialized_info())
    wanted = tf.train.Example.FromString(serializer.serialize_example(features.encode_example(values)))
    found = messages.example((name.encode(), Kind.parse(kind).encode(values[name])) for name, kind in names.items())
    assert found == wanted.SerializeToString(deterministic=True)
    descriptions = features.to_json()["content"]["features"]
    for name, kind in names.items():
        assert Kind.parse(kind).description == descriptions[name]
        assert described(descriptions[name]) == kind == str(Kind.parse(kind))
    assert messages.values(messages.features_of(found)[b"f4"]) == [1, 2, 3, 2**40]
    assert messages.values(messages.features_of(found)[b"f1"]) == [-5]
    assert messages.values(messages.features_of(found)[b"f6"]) == []


def test_a_record_with_additional_features_is_tensorflows(tfds: Any) -> None:
    import tensorflow as tf

    additional = [(b"zoo", Kind("text").encode("x")), (b"age", Kind("integer").encode(3))]
    (message,) = read_records(io.BytesIO(RecordEncoder().encode_with(b"bytes", b"k", 7, additional)))
    found = tf.train.Example.FromString(message)
    assert found.SerializeToString(deterministic=True) == message
    assert list(found.features.feature["age"].int64_list.value) == [3]
    assert list(found.features.feature["label"].int64_list.value) == [7]


features = st.one_of(
    st.lists(st.binary(max_size=200)).map(lambda found: (messages.bytes_feature(found), found)),
    st.lists(st.floats(width=32, allow_nan=False)).map(lambda found: (messages.float_feature(found), found)),
    st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda found: (messages.integer_feature(found), found)),
)


@given(st.dictionaries(st.binary(max_size=20), features, max_size=5))
def test_what_is_written_is_read_back(given_features: dict[bytes, tuple[bytes, list[Any]]]) -> None:
    message = messages.example((name, feature) for name, (feature, _) in given_features.items())
    found = messages.features_of(message)
    assert {name: messages.values(feature) for name, feature in found.items()} == {
        name: values for name, (_, values) in given_features.items()
    }


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        for feature in messages.features_of(data).values():
            messages.values(feature)
    except Unusable:
        pass


def test_lists_that_are_not_packed_are_read() -> None:
    assert messages.values(b"\x1a\x04\x08\x05\x08\x07") == [5, 7]
    assert messages.values(b"\x12\x05\x0d\x00\x00\x80\x3f") == [1.0]


@pytest.mark.parametrize("text", ["string", "number[0]", "text[3]", "number[", "bounding_box[4]", ""])
def test_other_kinds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="kind of feature"):
        Kind.parse(text)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("integer", 1.0, "1.0 is not a valid integer"),
        ("integer", 2**63, "is not a valid integer"),
        ("integer", [1], "is not a valid integer"),
        ("number", "1", "'1' is not a valid number"),
        ("number", 1e39, "is not a valid number"),
        ("number[3]", [1, 2], "has 2 values; number.3. has 3"),
        ("text", 5, "5 is not a valid text"),
        ("text[]", ["a", None], "None is not a valid text"),
        ("bounding_box", [0, 0, 1], "is not a bounding box: a box has four"),
        ("bounding_box", [0, 0.6, 1, 0.5], "no minimum above its maximum"),
        ("bounding_box[]", [[0, 0, 1, 1], [0, 0, 1, 1.5]], "from 0 to 1"),
    ],
)
def test_values_of_another_kind_are_refused(kind: str, value: Any, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        Kind.parse(kind).encode(value)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", " 7 ", 7),
        ("number", "1e3", 1000.0),
        ("number[2]", "1 2", [1.0, 2.0]),
        ("text", "a b", "a b"),
        ("text[]", "a b", ["a", "b"]),
        ("bounding_box", "0 0 1 .5", [0, 0, 1, 0.5]),
        ("bounding_box[]", "0 0 1 1 0 0 1 1", [[0, 0, 1, 1], [0, 0, 1, 1]]),
    ],
)
def test_cells_are_read(kind: str, text: str, value: Any) -> None:
    assert Kind.parse(kind).from_text(text) == value


@pytest.mark.parametrize(("kind", "text"), [("integer", "1.5"), ("number", "x"), ("bounding_box[]", "0 0 1")])
def test_cells_of_another_kind_are_refused(kind: str, text: str) -> None:
    with pytest.raises(Unusable):
        Kind.parse(kind).from_text(text)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("a", "text"),
        (np.int32(3), "integer"),
        (True, "integer"),
        (np.float64(3), "number"),
        (np.ones((2, 2)), "number[]"),
    ],
)
def test_kinds_are_found(value: Any, kind: str) -> None:
    found = Kind.of(value)
    assert str(found) == kind
    found.encode(value)
