"""The two names of an input: the source's, such as a column's header, and the signature's, an identifier."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from slipway.core.manifest import Input, SignatureName, signature_names
from slipway.serving import instances, tables
from slipway.serving.kinds import BadRequest, Field
from slipway.serving.model import Model


def named() -> Model:
    """A model of two columns whose names make one identifier."""
    number = np.dtype(np.float32)
    fields = {
        SignatureName("a_b_1"): Field("number", number, source="a b"),
        SignatureName("a_b_2"): Field("number", number, source="a/b"),
    }
    return Model(
        Path(), "regression", fields, ("prediction",), {}, lambda arrays: (None, {"prediction": arrays["a_b_1"]})
    )


@pytest.mark.parametrize("names", [("a b", "a/b"), ("a_b_1", "a_b_2"), ("a/b", "a_b_1")])
def test_requests_have_the_names_of_the_source_or_of_the_signature(names: tuple[str, str]) -> None:
    lines = [json.dumps(dict(zip(names, row, strict=True))) for row in ([1.0, 2.0], [3.0, 4.0])]
    expected = {"a_b_1": [1.0, 3.0], "a_b_2": [2.0, 4.0]}
    if names[0] == "a/b":
        expected = {"a_b_1": [2.0, 4.0], "a_b_2": [1.0, 3.0]}
    body = f'{{"instances": [{", ".join(lines)}]}}'.encode()
    arrays = [instances.of_body(named(), body, b"application/json")]
    quick = tables.of_lines(named(), [line.encode() for line in lines], None)
    assert quick is not None
    for found in (*arrays, quick[0]):
        assert {name: values.tolist() for name, values in found.items()} == expected


def test_problems_have_the_names_of_the_source() -> None:
    with pytest.raises(BadRequest, match=r"instances\[0\]\.a/b: The value is missing"):
        instances.row(named(), {"a b": 1})
    with pytest.raises(BadRequest, match="a b and a_b_1 are names of one input"):
        instances.row(named(), {"a b": 1, "a_b_1": 2, "a/b": 3})
    with pytest.raises(BadRequest, match="no input 'a-b'; the closest is a/b"):
        instances.row(named(), {"a-b": 1, "a/b": 3})


def test_names_of_the_signature_differ_whatever_else_is_an_input() -> None:
    text, image = Input(kind="category"), Input(kind="image", shape=(8, 8, 3))
    names = signature_names({"a b": text, "a/b": text, "a_b": text, "age": text, "photo": image, "class": text})
    assert {names["age"], names["photo"], names["class"]} == {"age", "photo_bytes", "input_class"}
    assert len(set(names.values())) == 6
    assert all(name.startswith("a_b_") for name in (names["a b"], names["a/b"], names["a_b"]))
    assert signature_names({"a/b": text, "a b": text, "a_b": text})["a b"] == names["a b"]  # in any order
    assert signature_names({"image": image, "image_bytes": text})["image"].endswith("_bytes")


def test_a_data_set_is_matched_by_the_names_of_the_source() -> None:
    text = Input(kind="category")
    fields = {SignatureName("a_b"): Field("category", np.dtype(object), source="a b")}
    model = Model(Path(), "regression", fields, ("prediction",), {}, lambda _: (None, {}))
    signature = signature_names({"a/b": text, "a b": text})
    assert model.matched(signature) == {"a_b": signature["a b"]}
    assert model.matched(signature_names({"c": text})) == {}
    image = {SignatureName("image_bytes"): Field("image", np.dtype(object), source="image")}
    images_only = Model(Path(), "regression", image, ("prediction",), {}, lambda _: (None, {}))
    assert images_only.matched({"image": SignatureName("image_bytes")}) == {"image_bytes": "image_bytes"}
    keyed = {SignatureName("source_key"): Field("category", np.dtype(object), source="key")}
    records = Model(Path(), "regression", keyed, ("prediction",), {}, lambda _: (None, {}))
    assert records.matched(signature_names({"source_key": text})) == {"source_key": "source_key"}
