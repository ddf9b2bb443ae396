"""What `Model.predict` accepts and returns, without a library: tables, texts, images in tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from PIL import Image

from slipway.core.errors import UserError
from slipway.pipelines.api.models import Model
from slipway.pipelines.prediction.models import Chosen
from slipway.serving import model as served
from slipway.serving.kinds import Field

NUMBER, TEXT = Field("number", np.dtype("float32")), Field("category", np.dtype(object))
IMAGE = Field("image", np.dtype(object))


def model(inputs: dict[str, Field], task: Any, outputs: Any, names: list[str] | None = None) -> Model:
    """Return a loaded model that computes `outputs` of its arrays."""
    found = Model(Chosen(Path("models/x/1"), "x", 1))
    found.__dict__["_loaded"] = served.Model(Path(), task, inputs, ("y",), {}, lambda arrays: (names, outputs(arrays)))
    return found


def doubled() -> Model:
    return model({"age": NUMBER, "city": TEXT}, "regression", lambda arrays: {"prediction": arrays["age"] * 2})


def test_a_table_has_a_row_per_example_and_keeps_its_index() -> None:
    table = pandas.DataFrame({"note": ["x", "y"], "city": ["Bern", "Rome"], "age": [3, 4]}, index=["a", "b"])
    found = doubled().predict(table)
    assert found.index.tolist() == ["a", "b"]
    assert found.prediction.tolist() == [6.0, 8.0]
    assert doubled().predict({"city": "Bern", "age": 3}).prediction.tolist() == [6.0]


def test_a_missing_column_and_a_missing_value_are_named() -> None:
    table = pandas.DataFrame({"city": ["Bern", "Rome"], "age": [3.0, float("nan")]})
    with pytest.raises(UserError, match="The table has no column age, an input of the model"):
        doubled().predict(table[["city"]])
    with pytest.raises(UserError, match=r"Example 1: age: The value is null"):
        doubled().predict(table)


def test_examples_that_do_not_fit_have_a_row_with_the_reason() -> None:
    table = pandas.DataFrame({"city": "Bern", "age": [float("nan"), 2.0, 3.0]}, index=["a", "b", "c"])
    with pytest.raises(UserError) as caught:
        doubled().predict(table)
    assert 'predict(…, errors="keep")' in str(caught.value.fix)
    found = doubled().predict(table, errors="keep")
    assert found.columns.tolist() == ["prediction", "error"]
    assert found.prediction.tolist()[1:] == [4.0, 6.0]
    assert found.error.notna().tolist() == [True, False, False]
    assert "age: The value is null" in found.error["a"]


def test_a_row_of_a_table_and_dicts_with_other_keys_are_examples() -> None:
    table = pandas.DataFrame({"note": ["x", "y"], "city": ["Bern", "Rome"], "age": [3, 4]})
    assert doubled().predict(table.iloc[1]).prediction.tolist() == [8.0]
    assert doubled().predict({"note": "x", "city": "Bern", "age": 3}).prediction.tolist() == [6.0]
    assert doubled().predict(table.to_dict("records")).prediction.tolist() == [6.0, 8.0]
    with pytest.raises(UserError, match="has no input 'ages'; the closest is age"):
        doubled().predict({"ages": 3})
    with pytest.raises(UserError, match="city: The value is missing"):
        doubled().predict({"age": 3, "town": "Bern"})


def test_columns_have_the_names_of_the_source() -> None:
    number = Field("number", np.dtype(np.float32), source="Age (years)")
    aged = model({"Age__years_": number}, "regression", lambda arrays: {"prediction": arrays["Age__years_"] * 2})
    table = pandas.DataFrame({"Age (years)": [1.0, 2.0]}, index=["a", "b"])
    assert aged.predict(table).prediction.to_dict() == {"a": 2.0, "b": 4.0}
    assert aged.predict(table["Age (years)"]).prediction.to_dict() == {"a": 2.0, "b": 4.0}
    assert aged.predict(table.iloc[0]).prediction.tolist() == [2.0]
    assert aged.predict({"Age__years_": 3}).prediction.tolist() == [6.0]


def test_a_column_of_images_is_predicted(tmp_path: Path) -> None:
    field = Field("image", np.dtype(object), source="image")
    sizes = model(
        {"image_bytes": field},
        "regression",
        lambda arrays: {"prediction": np.array([*map(len, arrays["image_bytes"])])},
    )
    photo = Image.new("L", (4, 4))
    photo.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    values = [
        str(tmp_path / "a.png"),
        data,
        {"bytes": data, "path": None},
        {"bytes": None, "path": str(tmp_path / "a.png")},
    ]
    expected = [float(len(data))] * len(values)
    assert sizes.predict(pandas.DataFrame({"image": values, "note": 1})).prediction.tolist() == expected
    assert sizes.predict(values).prediction.tolist() == expected
    assert sizes.predict([{"image": value} for value in values]).prediction.tolist() == expected


def test_more_examples_than_a_batch_keep_their_order() -> None:
    ages = np.arange(1000.0)
    table = pandas.DataFrame({"age": ages, "city": "Bern"})
    assert doubled().predict(table).prediction.tolist() == (2 * ages).tolist()


def test_texts_are_classified_with_a_column_per_class() -> None:
    def by_length(arrays: Any) -> dict[str, Any]:
        long = np.array([len(text) > 3 for text in arrays["text"]], float)
        return {"probabilities": np.stack([1 - long, long], axis=1)}

    found = model({"text": TEXT}, "classification", by_length, ["short", "long"]).predict(["a", "abcdef"])
    assert found.to_dict("records") == [
        {"label": "short", "short": 1.0, "long": 0.0},
        {"label": "long", "short": 0.0, "long": 1.0},
    ]


def test_labels_are_those_from_a_half_on() -> None:
    chances = {"probabilities": np.array([[0.5, 0.2, 0.9]])}
    found = model({"text": TEXT}, "multilabel", lambda _: chances, ["a", "b", "c"]).predict("x")
    assert found.labels.tolist() == [["a", "c"]]
    assert found.b.tolist() == [0.2]


def test_images_of_a_table_are_paths_and_gray_arrays_are_several_images(tmp_path: Path) -> None:
    sizes = lambda arrays: {"prediction": np.array([float(len(each) > 0) for each in arrays["image_bytes"]])}  # noqa: E731
    pixels = np.zeros((3, 8, 8), np.uint8)
    Image.fromarray(pixels[0]).save(tmp_path / "a.png")
    alone = model({"image_bytes": IMAGE}, "regression", sizes)
    assert len(alone.predict(pixels)) == 3
    assert len(alone.predict(pixels[0])) == 1
    assert len(alone.predict(np.zeros((8, 8, 3), np.uint8))) == 1
    assert len(alone.predict(np.zeros((2, 8, 8, 1), np.uint8))) == 2
    both = model({"image_bytes": IMAGE, "age": NUMBER}, "regression", sizes)
    table = pandas.DataFrame({"image_bytes": [tmp_path / "a.png"], "age": [np.int64(3)]})
    assert both.predict(table).prediction.tolist() == [1.0]
    with pytest.raises(UserError, match=r"Cannot read the image .*missing\.png"):
        alone.predict(["missing.png"])
    with pytest.raises(UserError, match="The image is int"):
        alone.predict([3])
