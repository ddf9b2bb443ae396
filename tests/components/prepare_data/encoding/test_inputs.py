"""The statistics of inputs: exact, the same in any order, and equal to NumPy's."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from slipway.components.prepare_data.encoding.features import Kind
from slipway.components.prepare_data.encoding.inputs import (
    InputCounter,
    Statistics,
    as_input,
    choose_inputs,
    combine_statistics,
    kind_of,
)
from slipway.components.prepare_data.examples import Unusable
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError

STORED: TypeAdapter[Statistics] = TypeAdapter(Statistics)
SETTINGS = DataSettings(source="csv:x.csv")
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-(2.0**99), max_value=2.0**99)


def counted(kind: Kind, values: list[object]) -> Statistics:
    counter = InputCounter({"x": kind})
    for value in values:
        counter.add([(b"x", kind.encode(value))])
    return counter.statistics


@given(rows=st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=30), seed=st.integers(0, 9))
def test_means_and_deviations_equal_numpys_and_do_not_depend_on_the_order(
    rows: list[tuple[float, float]], seed: int
) -> None:
    kind = Kind("number", shape=(2,))
    whole = combine_statistics([counted(kind, list(rows))])["x"]
    shuffled = random.Random(seed).sample(rows, len(rows))
    cut = seed % len(rows)
    parts = [counted(kind, list(part)) for part in (shuffled[:cut], shuffled[cut:])]
    stored = [STORED.validate_json(STORED.dump_json(part)) for part in parts]
    assert combine_statistics(stored)["x"] == whole, "bit-equal, however the examples are divided"
    found = as_input("x", kind, whole, whole, SETTINGS)
    values = np.asarray(rows, np.longdouble)
    # NumPy sums in floating point: compare in units of the largest number.
    scale = float(np.abs(values).max()) or 1.0
    np.testing.assert_allclose(np.divide(found.mean, scale), (values / scale).mean(axis=0).astype(float), atol=1e-12)
    constant = values.max(axis=0) == values.min(axis=0)
    expected = np.where(constant, 1.0, (values / scale).std(axis=0).astype(float))
    deviations = np.where(constant, found.deviation, np.divide(found.deviation, scale))
    np.testing.assert_allclose(deviations, expected, atol=1e-9)


def test_a_constant_number_has_the_deviation_one() -> None:
    whole = counted(Kind("number"), [0.1] * 7)["x"]
    found = as_input("x", Kind("number"), whole, whole, SETTINGS)
    assert (found.mean, found.deviation) == ((float(np.float32(0.1)),), (1.0,))


@given(texts=st.lists(st.text(max_size=5), min_size=1, max_size=20))
def test_categories_are_the_training_splits_sorted(texts: list[str]) -> None:
    train, other = counted(Kind("category"), list(texts))["x"], counted(Kind("category"), ["unseen only here"])["x"]
    whole = combine_statistics([{"x": train}, {"x": other}])["x"]
    assert as_input("x", Kind("category"), train, whole, SETTINGS).vocabulary == tuple(sorted(set(texts)))


def test_the_maximum_is_that_of_all_splits() -> None:
    kind = Kind("integer", shape=(3,))
    train, other = counted(kind, [[1, 2, 0]])["x"], counted(kind, [[9, 0, 0]])["x"]
    whole = combine_statistics([{"x": train}, {"x": other}])["x"]
    found = as_input("x", kind, train, whole, SETTINGS)
    assert (found.shape, found.maximum, found.values) == ((3,), 9, 10), "an embedding has a row for each id"


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        (Kind("number"), float("nan"), "its x: nan is not a finite number"),
        (Kind("number"), float("-inf"), "its x: -inf is not a finite number"),
        (Kind("integer"), -3, "its x: -3 is not from 0 to 2,147,483,647"),
        (Kind("integer"), 2**40, "is not from 0 to 2,147,483,647"),
        (Kind("category"), b"\xff", r"its x: \\xff is not UTF-8"),
    ],
)
def test_values_that_no_network_can_use_are_unusable(kind: Kind, value: object, reason: str) -> None:
    counter = InputCounter({"x": kind})
    with pytest.raises(Unusable, match=reason):
        counter.add([(b"x", kind.encode(value))])
    with pytest.raises(Unusable, match="it has no x"):
        counter.add([])
    assert not counter.statistics["x"].count, "an unusable example does not count"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("number[3]", "number[3]"), ("integer[16]", "integer[16]"), ("text", "text"), ("class", "integer"),
        ("float64", "number"), ("uint8[2,2]", "integer[2,2]"), ("bounding_box", "bounding_box"), ("image", "image"),
        ("number[]", None), ("text[]", None), ("number[-1,3]", None), ("{a: number}", None), ("Video", None),
        ("class[4]", "integer[4]"), ("text[4]", None),
    ],
)  # fmt: skip
def test_kinds_of_inputs(text: str, kind: str | None) -> None:
    assert str(kind_of(text)) == str(kind)


FEATURES = {"age": "number", "tokens": "integer[]", "words": "text[]", "city": "text"}


@pytest.mark.parametrize(
    ("inputs", "image", "message", "nearest", "fix"),
    [
        (["aeg"], None, "has no feature 'aeg'", "age", None),
        (["image", "tokens"], "image", "tokens cannot be an input: its kind is integer\\[\\]", None, "integer[SIZE]"),
        (["words"], None, "words cannot be an input", None, None),
        (["age"], "photo", "has images, but data.inputs does not name them", None, "[photo, age]"),
        (["label"], None, "names 'label', which is the label", None, None),
    ],
)
def test_inputs_that_cannot_be_are_named(
    inputs: list[str], image: str | None, message: str, nearest: str | None, fix: str | None
) -> None:
    settings = DataSettings(source="csv:x.csv", inputs=inputs)
    with pytest.raises(UserError, match=message) as error:
        choose_inputs(settings, FEATURES, image=image)
    assert error.value.setting == "data.inputs"
    assert error.value.nearest == nearest
    assert (fix or "") in (error.value.fix or "")


def test_inputs_are_in_the_requested_order_and_by_default_all() -> None:
    settings = DataSettings(source="csv:x.csv", inputs=["city", "image", "age"])
    assert list(choose_inputs(settings, FEATURES, image="image")) == ["city", "age"]
    assert choose_inputs(SETTINGS, FEATURES, image="image") == {}
    assert list(choose_inputs(SETTINGS, FEATURES, image=None, but=("city",))) == ["age"]
