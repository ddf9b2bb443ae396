"""Dataclasses as JSON."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from slipway.core import dataclass_json


@dataclass(kw_only=True)
class Wheel:
    size: int


@dataclass(kw_only=True)
class Car:
    name: str
    kind: Literal["van", "bus"] = "van"
    price: float | None = None
    sold: bool = False
    built: datetime = datetime(2026, 11, 28, 18, 8, 5, tzinfo=UTC)
    spare: Wheel | None = None
    wheels: list[Wheel] = field(default_factory=list)
    speeds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


def read(**values: object) -> Car:
    return dataclass_json.read(Car, json.dumps({"name": "a", **values}).encode())


def test_what_was_written_is_read() -> None:
    wheels = [Wheel(size=1), Wheel(size=2)]
    car = Car(name="ä", kind="bus", price=1.5, spare=Wheel(size=3), wheels=wheels, notes={"x": [1, {"y": None}]})
    content = dataclass_json.text(car)
    assert dataclass_json.read(Car, content.encode()) == car
    assert '"name": "ä"' in content
    assert '"built": "2026-11-28T18:08:05Z"' in content
    assert '"spare": {\n    "size": 3\n  }' in content


def test_an_integer_is_read_as_the_float_that_it_is() -> None:
    car = read(price=2, speeds={"first": 3})
    assert [(value, type(value)) for value in (car.price, car.speeds["first"])] == [(2.0, float), (3.0, float)]


def test_numbers_that_json_does_not_have_are_null() -> None:
    car = Car(name="a", price=math.nan, notes={"highest": [math.inf, 1.0]})
    values = dataclass_json.plain(car)
    assert (values["price"], values["notes"]) == (None, {"highest": [None, 1.0]})


@pytest.mark.parametrize(
    "values",
    [
        {"name": 1}, {"name": None}, {"kind": "car"}, {"kind": ["van"]}, {"price": "1"}, {"price": True}, {"sold": 1},
        {"built": 5}, {"built": "soon"}, {"spare": {}}, {"spare": {"size": 1.0}}, {"spare": [1]}, {"wheels": {}},
        {"wheels": [None]}, {"speeds": {"first": None}}, {"speeds": []}, {"notes": None}, {"color": "red"},
    ],
    ids=str,
)  # fmt: skip
def test_values_of_another_type_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"is not|Invalid isoformat|missing|unknown"):
        read(**values)


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{}", b'{"name": ', b'{"name": "\xff"}', b"[" * 100_000])
def test_content_that_is_no_such_object_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        dataclass_json.read(Car, content)
