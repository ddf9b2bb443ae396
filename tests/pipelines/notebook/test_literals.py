"""Constants are written as source text that has the same value."""

from __future__ import annotations

import collections
import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.pipelines.notebook.literals import MAX_CHARACTERS, NotLiteralError, has_path, literal

HASHABLE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.complex_numbers()
    | st.just(...),
    lambda inner: st.tuples(inner, inner) | st.tuples(inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
LITERALS = st.recursive(
    HASHABLE,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(HASHABLE, inner, max_size=3) | st.sets(HASHABLE, max_size=3)
    ),
    max_leaves=8,
)


def evaluated(text: str) -> Any:
    return eval(text, {"pathlib": pathlib})


@given(LITERALS)
def test_round_trip(value: object) -> None:
    text = literal(value)
    again = evaluated(text)
    assert type(again) is type(value)
    assert literal(again) == text  # NaN is not equal to itself
    assert "nan" in text or again == value


@given(st.floats(width=32), st.sampled_from([np.float16, np.float32, np.float64]))
def test_scalar_of_numpy(value: float, kind: Any) -> None:
    """The constant is the number that NumPy shows, and the same number in NumPy's precision."""
    with np.errstate(over="ignore"):
        scalar = kind(value)
    again = evaluated(literal(scalar))
    assert type(again) is float
    assert str(kind(again)) == str(scalar)


def test_scalars_of_numpy() -> None:
    assert literal(np.float32(0.002)) == "0.002"
    assert literal([np.int64(3), np.bool_(False), np.str_("a")]) == "[3, False, 'a']"


def test_paths() -> None:
    value = {"a": [pathlib.Path("data") / "b"], "c": pathlib.PurePosixPath("/d")}
    text = "{'a': [pathlib.Path('data/b')], 'c': pathlib.PurePosixPath('/d')}"
    assert literal(value) == text
    assert evaluated(text) == value
    assert has_path(value)
    assert not has_path({"a": ["b"]})


def test_long_number() -> None:
    value = 10**10_000 + 1  # more digits than Python converts to decimal text
    assert evaluated(literal(value)) == value


class Text(str):
    pass


@pytest.mark.parametrize(
    "value",
    [Text("a"), collections.OrderedDict(a=1), [np.zeros(2)], object(), np.datetime64("2026-01-01"), bytearray(b"a")],
)
def test_no_literal(value: object) -> None:
    """A subclass or another type would come back as something else."""
    with pytest.raises(NotLiteralError, match="an object of the type"):
        literal(value)


def test_limits() -> None:
    endless: list[Any] = []
    endless.append({"a": endless})
    with pytest.raises(NotLiteralError, match="contains itself"):
        literal(endless)
    assert literal("a" * (MAX_CHARACTERS - 2))
    with pytest.raises(NotLiteralError, match="a constant of 100,001 characters"):
        literal("a" * (MAX_CHARACTERS - 1))
