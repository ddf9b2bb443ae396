"""Vertex AI's prediction contract: instances to arrays, outputs to predictions, and errors that name their place."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from slipway.components.prepare_data.encoding.image import encode_png
from slipway.core.errors import UserError
from slipway.core.manifest import Input
from slipway.serving import instances, model
from slipway.serving.kinds import BadRequest, Field, checked, image_fault, of_cell
from slipway.serving.model import Model
from tests.serving.conftest import HOUSE, HOUSE_PRICE

pytestmark = pytest.mark.slow


def image(seed: int = 0, kind: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels, mode="L").save(buffer, kind)
    return buffer.getvalue()


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def predict(model: Model, given: list[Any]) -> list[Any]:
    """Predict as a request does: from JSON, to JSON."""
    found = instances.read(json.dumps({"instances": given}).encode())
    answers = instances.predictions(model, model.predict(instances.arrays(model, found)))
    return json.loads(json.dumps(answers, allow_nan=False))


def test_an_image_is_a_bare_value_or_named(classifier: Model) -> None:
    bare, named, text = predict(
        classifier, [b64(image()), {"image_bytes": b64(image())}, base64.b64encode(image()).decode()]
    )
    assert bare == named == text
    assert set(bare) == {"label", "classes", "probabilities"}
    assert bare["classes"] == [str(digit) for digit in range(10)]
    assert bare["label"] == bare["classes"][int(np.argmax(bare["probabilities"]))]
    assert sum(bare["probabilities"]) == pytest.approx(1, abs=1e-5)


def test_named_inputs_are_raw_values(houses: Model) -> None:
    other = HOUSE | {"street": "unknown", "area": 50, "rooms": 3.0}
    found = predict(houses, [HOUSE, other])
    assert [each["prediction"] for each in found] == pytest.approx([HOUSE_PRICE, HOUSE_PRICE - 30])


def test_a_cell_of_any_nan_is_missing_where_it_may_be() -> None:
    number = Field("number", np.dtype(np.float32), nullable=True)
    assert [of_cell(number, text) for text in ("-nan", "NaN", "#N/A", "-", "-1")] == [None, None, None, None, -1]
    with pytest.raises(ValueError):
        of_cell(Field("number", np.dtype(np.float32)), "-nan")


def test_categories_are_matched_however_they_are_written_and_others_are_counted(houses: Model) -> None:
    truths = Field("category", np.dtype(object), vocabulary=("1.50", "2", "false", "true", "007", "x"))
    forms = {
        True: b"true", "TRUE": b"true", "False": b"false", 2.0: b"2", "2.00": b"2", 1.5: b"1.50", "7": b"7", "x": b"x",
    }  # fmt: skip
    given = np.array([checked(truths, value, ()) for value in forms], object)
    assert truths.matched(given).tolist() == [*forms.values()]
    assert truths.unknown(given) == ["7"]
    import tensorflow as tf

    assert truths.matched(tf.constant(given)).tolist() == [*forms.values()]
    assert truths.unknown(tf.constant(given)) == ["7"]
    arrays = instances.arrays(houses, [{**HOUSE, "street": street} for street in ("Ash", "Oak", "Ash")])
    assert houses.unknown(arrays) == {"street": ["Ash", "Ash"]}


def test_texts_that_are_empty_or_mostly_of_other_words_are_unknown() -> None:
    stored = Input(kind="text", shape=(4,), vocabulary=("return", "the", "shape", "s", "##hap", "##e", ","))
    text = Field.of(stored, np.dtype(object), ())
    given = ["Return the shape", "return it", "shapE, hmm", "s", "ж щ the", "", " ", "👍", ",", "return"]
    values = np.array([checked(text, value, ()) for value in [*given, None]], object)
    assert text.unknown(values) == ["return it", "shapE, hmm", "ж щ the", "", " ", "👍", ""]
    assert text.matched(values) is values


@pytest.mark.parametrize(
    ("changed", "field", "says"),
    [
        ({"area": "big"}, "area", "The value is a text, not a number"),
        ({"area": True}, "area", "not a number"),
        ({"area": None}, "area", "The value is null"),
        ({"area": 1e39}, "area", "range of float32"),
        ({"rooms": 2.5}, "rooms", "not an integer"),
        ({"rooms": 2**63}, "rooms", "range of int64"),
        ({"sides": [1.0]}, "sides", "a list of 1, not a list of 2"),
        ({"sides": 1.0}, "sides", "The value is a number, not a list"),
        ({"street": 3}, "street", "not a text"),
        ({"aera": 3}, "aera", "no input 'aera'; the closest is area"),
    ],
)
def test_errors_name_the_instance_and_the_field(houses: Model, changed: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(BadRequest, match=says) as caught:
        predict(houses, [HOUSE, HOUSE | changed])
    assert (caught.value.instance, caught.value.field) == (1, field)
    assert str(caught.value).startswith(f"instances[1].{field}: ")


def test_a_missing_input_and_a_bare_value_are_refused(houses: Model) -> None:
    with pytest.raises(BadRequest, match=r"instances\[0\].street: The value is missing"):
        predict(houses, [{name: value for name, value in HOUSE.items() if name != "street"}])
    for value, kind in ((7, "A number"), (image(), "An image"), ([], "A list")):
        with pytest.raises(BadRequest, match=rf"instances\[0\]: {kind} is not an object of the inputs"):
            instances.row(houses, value)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "The body is not JSON"),
        (b"--abc\r\nContent-Disposition: form-data", "The body is a form; .*--data-binary"),
        (b"\xff", "The body is not JSON"),
        (b"[" * 100_000, "The body is not JSON"),
        (b"[]", "no list of instances"),
        (b'{"instances": {}}', "no list of instances"),
        (b'{"instances": []}', "list of instances is empty"),
        (b'{"instances": [NaN]}', "NaN is not a JSON number"),
    ],
)
def test_bodies_that_are_no_requests(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        instances.read(body)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b"a text", "it is not an image of a supported format"),
        (b"GIF89a", "its GIF header is damaged or cut short"),
        (image()[:20], "its PNG header is damaged or cut short"),
        (image(kind="JPEG")[:20], "its JPEG header is damaged or cut short"),
        (encode_png(b"\0" * 100, 10, 10)[:16] + (10_000).to_bytes(4) * 2 + b"\0" * 20, "10000x10000 pixels, more than"),
    ],
)
def test_images_that_are_refused_by_their_header(classifier: Model, data: bytes, says: str) -> None:
    assert says in str(image_fault(data))
    with pytest.raises(BadRequest, match=says) as caught:
        predict(classifier, [b64(image()), b64(data)])
    assert (caught.value.instance, caught.value.field) == (1, "image")


def test_an_image_is_valid_base64(classifier: Model) -> None:
    with pytest.raises(BadRequest, match="not valid base64"):
        predict(classifier, [{"b64": "%%%"}])


def test_images_that_only_decoding_refuses_are_found(classifier: Model) -> None:
    whole = image(kind="JPEG")
    batch = {"image_bytes": np.array([image(), whole[: len(whole) // 2], whole], object)}
    ((index, field, reason),) = instances.undecodable(classifier, batch)
    assert (index, field) == (1, "image")
    assert reason.startswith("The image cannot be decoded: ")
    assert "{{" not in reason


def test_nan_is_not_a_prediction(houses: Model) -> None:
    with pytest.raises(ValueError, match="NaN or infinite prediction"):
        instances.predictions(houses, {"prediction": np.array([1.0, np.nan], np.float32)})


def test_a_padded_batch_has_the_same_predictions(classifier: Model) -> None:
    padded = replace(classifier, sizes=(1, 4, 8))
    arrays = instances.arrays(classifier, [b64(image(seed)) for seed in range(3)])
    found = padded.predict_padded(arrays)
    assert found["probabilities"].shape == (3, 10)
    np.testing.assert_allclose(found["probabilities"], classifier.predict(arrays)["probabilities"], rtol=1e-5)


def test_a_custom_program_serves_its_own_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_serving.py").write_text(
        "import json\n"
        "def load(folder):\n"
        "    factor = json.loads((folder / 'weights.json').read_text())\n"
        "    return lambda instances: [{'answer': factor * each['x']} for each in instances]\n"
        "def broken(folder):\n    raise OSError('no weights')\n"
        "def nothing(folder):\n    return 3\n"
    )
    (tmp_path / "weights.json").write_text("2")
    monkeypatch.syspath_prepend(str(tmp_path))
    loaded = model.load(tmp_path, "my_serving:load")
    assert predict(loaded, [{"x": 1}, {"x": 2}]) == [{"answer": 2}, {"answer": 4}]
    with pytest.raises(UserError, match=r"my_serving:broken raised OSError: no weights"):
        model.load(tmp_path, "my_serving:broken")
    with pytest.raises(UserError, match="returned a int, which cannot be called"):
        model.load(tmp_path, "my_serving:nothing")


def test_a_saved_model_without_a_task_answers_its_outputs_by_name(tmp_path: Path) -> None:
    model.import_tensorflow()
    import tensorflow as tf

    module = tf.Module()

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="pair")])
    def serve(pair):
        return {"total": tf.reduce_sum(pair, axis=1), "name": tf.fill([tf.shape(pair)[0]], "sum")}

    tf.saved_model.save(module, str(tmp_path), signatures={"serving_default": serve})
    loaded = model.load(tmp_path)
    assert loaded.task is None
    assert predict(loaded, [[1, 2], {"pair": [3, 4]}]) == [{"total": 3, "name": "sum"}, {"total": 7, "name": "sum"}]


def test_the_example_of_a_date_is_one_of_the_training_data() -> None:
    stored = Input.model_validate({"kind": "date", "mean": [19_400.2], "deviation": [9.0], "order": "dmy"})
    field = Field.of(stored, np.dtype(object), ())
    with pytest.raises(ValueError, match=r"as the training data has them: 12\.02\.2023, or 12\.02\.2023 12:30"):
        checked(field, "2024-02-28", ())
    assert (instances.example(stored), instances.usual(stored)[:18]) == ("12.02.2023", "such as 12.02.2023")


@pytest.mark.parametrize(
    ("stored", "value"),
    [
        ({"kind": "number", "mean": [12.34567], "deviation": [1.0]}, 12.35),
        ({"kind": "number", "shape": [2], "mean": [1.0, 2.0], "deviation": [1.0, 1.0]}, [1.0, 2.0]),
        ({"kind": "integer", "shape": [3], "maximum": 9}, [0, 0, 0]),
        ({"kind": "category", "vocabulary": ["Elm", "Oak"]}, "Elm"),
        ({"kind": "category", "shape": [2], "vocabulary": ["Elm", "Oak"]}, ["Elm", "Elm"]),
        ({"kind": "text", "shape": [9], "vocabulary": ["##s", "the", ".", "cat", "sat", "on"]}, "the cat sat"),
        ({"kind": "image", "shape": [8, 8, 1]}, None),
    ],
)
def test_an_example_is_a_usual_value(stored: dict[str, Any], value: Any) -> None:
    assert instances.example(Input.model_validate(stored)) == value


@pytest.mark.parametrize(
    ("value", "nullable", "expected"),
    [
        ("28.2.2024", True, b"28.2.2024"),
        ("28.02.2024 12:30:00", False, b"28.02.2024 12:30:00"),
        (None, True, b""),
        ("NA", True, b""),
        ("2024-02-28", True, "is not a date as the training data has them: 01.01.1970"),
        ("", False, "is not a date"),
        (20240228, True, "The value is a number, not a date: 01.01.1970"),
        (None, False, "The value is null, not a date"),
    ],
)
def test_dates_in_requests(value: object, nullable: bool, expected: bytes | str):
    field = Field("date", np.dtype(object), nullable=nullable, order="dmy")
    if isinstance(expected, bytes):
        assert checked(field, value, ()) == expected
        return
    with pytest.raises(ValueError, match=expected):
        checked(field, value, ())
