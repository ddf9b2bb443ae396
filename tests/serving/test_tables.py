"""Rows of tables as a model's inputs: the same values and faults as one by one, and CSV in requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow
import pytest

from slipway.serving import instances, tables
from slipway.serving.kinds import BadRequest, Field, array_of, checked, of_cell
from slipway.serving.model import Model
from tests.serving.conftest import HOUSE_PRICE

pytestmark = pytest.mark.slow

NUMBERS = (
    "1", "-1.5", "+2", "1e3", ".5", "5.", "", "x", "inf", "-inf", "nan", "NaN", "1_0", "1e400", "1e39", "3.5e38",
    "-3.4028234663852886e38", "0x1F", "\N{FULLWIDTH DIGIT FIVE}", "1,5", "16777217", "9007199254740993", "2147483648",
    "-9223372036854775808", "9223372036854775807", "9223372036854775808", "3.0", "1e2", "1e-400", "-0", "1 2", "1d",
    "infinity", "True", "+", "-", ".", "1.5e", "00012",
)  # fmt: skip
FIELDS = {
    "number": Field("number", np.dtype("float32")),
    "integer": Field("integer", np.dtype("int64")),
    "small": Field("other", np.dtype("int32")),
    "double": Field("other", np.dtype("float64")),
    "truth": Field("other", np.dtype("bool")),
    "category": Field("category", np.dtype(object)),
    "pair": Field("number", np.dtype("float32"), (2,)),
    "integers": Field("integer", np.dtype("int64"), (2,)),
    "any": Field("number", np.dtype("float32"), (None,)),
    "matrix": Field("number", np.dtype("float32"), (2, 2)),
    "words": Field("category", np.dtype(object), (2,)),
}
PAIRS = ("1 2", "1;2", "1  2", "1", "1 2 3", "", "1 x", "x x", "+1 .5", "1 nan", "1.5 2", "9007199254740993 1")


def one_by_one(each: Field, texts: Sequence[str]) -> tuple[list[Any], dict[int, bool]]:
    """Return the values of cells as the server checks them, and which are none."""
    values, faults = [], {}
    for index, text in enumerate(texts):
        try:
            values.append(checked(each, of_cell(each, text), each.shape))
        except ValueError:
            faults[index] = True
    return values, faults


def of_columns(fields: Mapping[str, Field], texts: Mapping[str, Sequence[str]]) -> tuple[Any, dict[int, BadRequest]]:
    given = {name: pyarrow.array(cells, pyarrow.string()) for name, cells in texts.items()}
    model = Model(None, "regression", dict(fields), (), {}, lambda _: (None, {}))  # type: ignore[arg-type]
    return tables.arrays(model, given, len(next(iter(texts.values()))), {}, bytes)


@pytest.mark.parametrize("name", FIELDS)
def test_columns_have_the_values_and_faults_of_their_cells(name: str) -> None:
    each = FIELDS[name]
    texts = PAIRS if each.shape else NUMBERS
    for cells in (texts, *((text,) for text in texts)):
        values, faults = one_by_one(each, cells)
        if each.shape == (None,) and len({len(value) for value in values}) > 1:
            with pytest.raises(BadRequest, match="different shapes"):
                of_columns({"it": each}, {"it": cells})
            continue
        found, problems = of_columns({"it": each}, {"it": cells})
        assert problems.keys() == faults.keys()
        assert len(found["it"]) == len(values)
        if values:
            np.testing.assert_array_equal(found["it"], array_of(each, values))
        assert found["it"].dtype == each.dtype
    assert all(error.field == "it" for error in problems.values())


def test_a_row_with_several_faults_has_the_first_and_its_values_are_skipped() -> None:
    fields = {"one": FIELDS["number"], "two": FIELDS["category"], "three": FIELDS["integer"]}
    texts = {"one": ["1", "x", "3", "4"], "two": ["a", "b", "c", "d"], "three": ["5", "y", "z", "8"]}
    found, problems = of_columns(fields, texts)
    assert {index: (error.field, error.problem) for index, error in problems.items()} == {
        1: ("one", "'x' is not a number"),
        2: ("three", "'z' is not a number"),
    }
    assert [found[name].tolist() for name in fields] == [[1.0, 4.0], [b"a", b"d"], [5, 8]]


def test_a_csv_file_in_a_request(houses: Model) -> None:
    body = '\ufeffstreet,area,sides,rooms,note\r\nOak,55,1 2,3,x\r\n\r\n"Oak",55,1;2,3,y\r\n'.encode()
    found = instances.of_body(houses, body, b"text/csv; charset=utf-8")
    answers = instances.predictions(houses, houses.predict(found))
    assert [each["prediction"] for each in answers] == pytest.approx([HOUSE_PRICE] * 2)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("street,area,sides,rooms\nOak,55,1 2,3\nOak,x,1 2,3\n", "instances[1].area: 'x' is not a number (line 3)"),
        ("street,area,sides,rooms\n\nOak,55\n", "instances[0]: The line has 2 columns; line 1 has 4 (line 3)"),
        ("street,aera,sides,rooms\nOak,55,1 2,3\n", "no column area, an input of the model; the closest is aera"),
        ("street,area,sides,rooms,area\nOak,55,1 2,3,4\n", "has two columns area"),
        ("street,area,sides,rooms\n", "The body has no rows"),
        ("", "Line 1 of the body has no column area"),
        ('street,area\n"x"y,3\n', "Line 1 of the body has no column sides"),
        ('street,area,sides,rooms\n"x"y,3,4,5\n', "Line 2 of the body is not CSV"),
        ("street,area,sides,rooms\nO\0k,3,4,5\n", "Line 2 of the body contains a zero byte"),
    ],
)
def test_mistakes_in_a_csv_file_in_a_request(houses: Model, body: str, says: str) -> None:
    with pytest.raises(BadRequest) as error:
        instances.of_body(houses, body.encode(), b"text/csv")
    assert says in str(error.value)


def test_a_csv_file_in_a_request_names_no_files_of_the_server(classifier: Model) -> None:
    with pytest.raises(BadRequest, match="An image has no path in a request"):
        instances.of_body(classifier, b"image\n/etc/hostname\n", b"text/csv")


LINES = (
    '{"a": 1, "n": 2, "b": "x"}', '{"b": "\\u00e4\\n", "a": -0.0, "n": 3}', '{"a": 1e400, "n": 2, "b": "x"}',
    '{"a": 3.5e38, "n": 2, "b": "x"}', '{"a": 16777217, "n": 2147483648, "b": "x"}', '{"a": "1", "n": 2, "b": "x"}',
    '{"a": 1, "b": "x"}', '{"a": null, "n": 2, "b": "x"}', '{"a": 1, "n": 2, "b": "x", "c": 1}', "5", "[1]", "{}",
    '{"a": NaN, "n": 2, "b": "x"}', '{"a": -Infinity, "n": 2, "b": "x"}', '{"a": true, "n": 2, "b": "x"}',
    '{"a": 1, "n": 2.0, "b": "x"}', '{"a": 1, "n": 2.5, "b": "x"}', '{"a": 1, "n": 2, "b": 5}', '{"a": 1, "a": 2}',
    '{"a": 1, "n": 2, "b": "x"} {"a": 1, "n": 2, "b": "x"}', '{"a": 1, "n": 2,', '"b": "x"}', '{"a": 1, "n": 2}}',
    '{"a": 1, "n": 2, "b": "\\ud800"}', '{"a": 1, "n": 2, "b": "caf\xe9"}', '{"a": 01, "n": 2, "b": "x"}',
    '{"a": 1, "n": 2, "b": "x",}', '{"a": 1, "n": 2, "b": {"b": "x"}}', ' {"a": 1, "n": 2, "b": "\\u0000"}\r',
    '{"a": 1, "n": 2, "b": "2026-01-01"}', '{"a": 123456789012345678901, "n": 2, "b": ""}',
)  # fmt: skip


def test_lines_of_json_are_read_at_once_or_not_at_all() -> None:
    fields = {"a": FIELDS["number"], "n": Field("integer", np.dtype("int32")), "b": FIELDS["category"]}
    model = Model(None, "regression", fields, (), {}, lambda _: (None, {}))  # type: ignore[arg-type]
    read = []
    good = LINES[0].encode()
    for line in (text.encode(code) for text in LINES for code in ("utf-8", "latin-1")):
        found = tables.of_lines(model, [good, line, good], None)
        if found is None:
            continue
        read.append(line.decode())
        expected = instances.arrays(model, [instances.parse(each, "The line") for each in (good, line, good)])
        assert found[0].keys() == expected.keys()
        for name, values in expected.items():
            np.testing.assert_array_equal(found[0][name], values)
            assert found[0][name].dtype == values.dtype
    expected_read = [LINES[index] for index in (0, 1, 24, 28, 29, 30)]
    assert [*dict.fromkeys(read)] == expected_read
    assert tables.of_lines(model, [good[:-1], b'"x": 1}', good], None) is None
    keyed = [b'{"a": 1, "n": 2, "b": "x", "id": "one"}', b'{"id": "two", "a": 1, "n": 2, "b": "x"}']
    assert (tables.of_lines(model, keyed, "id") or ({}, []))[1] == ["one", "two"]
    assert tables.of_lines(model, [keyed[0].replace(b'"one"', b"1")], "id") is None
