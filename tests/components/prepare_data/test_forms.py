"""One value, one text: the same random table, with any names of columns, in every form becomes the same inputs.

Frames have truth values, whole and other floats, integers, dates, categories and gaps. Each is prepared as
a CSV file, as a Parquet file and by a function, and each of these data sets reads the frame as CSV, Parquet, JSON, JSON
lines and DataFrame.
"""

from __future__ import annotations

import json
import keyword
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pandas
import pytest
from hypothesis import strategies

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.manifest import Manifest, stored_name
from slipway.pipelines.api.models import Model as PublicModel
from slipway.pipelines.prediction.parts import chunk_of
from slipway.pipelines.prediction.tables import Tables
from slipway.serving import instances, model, tables

ROWS, HELD_OUT = 40, 8  # of which validation and test have some
IS_THOROUGH = hypothesis.settings.default.max_examples >= 300
FRAMES, SECONDS = (500, 7200) if IS_THOROUGH else (3, 600)
# Pairs become one identifier, others are reserved, or have a meaning in records, formats or settings.
TRICKY = (
    "a b", "a/b", "a_b", "年齢", "性別", "Größe", "возраст", "عمر", "Marital status", "kind (x)", "[z]", "class", "def",
    "key", "instances", "input_class", "1st", "x" * 200, "y.z", "c:d", "e>3", "%s", "{f}", "🏠", "image_bytes", "__x",
)  # fmt: skip
RESERVED = ("label", "split", "image", "path", "file")
HEADERS = strategies.one_of(
    strategies.sampled_from(TRICKY),
    strategies.text(
        strategies.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=200
    ),
).filter(lambda name: name == name.strip() and name.casefold() not in RESERVED)


def frame_of(seed: int) -> pandas.DataFrame:
    """Return a table of some of the kinds of columns, of which a number and a date may have gaps."""
    rng = np.random.default_rng(seed)
    days = pandas.to_timedelta(rng.integers(0, 20_000, ROWS), "D")
    columns: dict[str, Any] = {
        "flag": rng.random(ROWS) < 0.5,
        "float": rng.normal(size=ROWS) * 10.0 ** rng.integers(-7, 12, ROWS),
        "whole": rng.integers(-9, 9, ROWS).astype(float),
        "single": rng.normal(size=ROWS).astype(np.float32),
        "count": rng.integers(0, 1000, ROWS),
        "city": rng.choice(["Zürich", "New York", "a,b", 'say "no"', "007", "1.50"], ROWS),
        "kind": pandas.Categorical(rng.choice(["x", "y"], ROWS)),
        "day": pandas.Timestamp("1970-01-01") + days,
        "time": pandas.Timestamp("1970-01-01") + days + pandas.to_timedelta(rng.integers(1, 86_400, ROWS), "s"),
    }
    names = rng.permutation([*columns])[: rng.integers(2, len(columns) + 1)]
    frame = pandas.DataFrame({name: columns[name] for name in names})
    for name in ("whole", "day"):
        if name in frame and rng.random() < 0.5:
            frame.loc[3, name] = None
    frame["label"] = rng.choice(["a", "b"], ROWS)
    return frame


def rows_of(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as JSON has them."""
    found: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", date_format="iso", double_precision=15))
    exact = frame.select_dtypes("number")
    for index, row in enumerate(found):
        row |= {name: None if pandas.isna(value) else float(value) for name, value in exact.iloc[index].items()}
        for name in frame.select_dtypes("datetime"):
            row[name] = row[name] and row[name].removesuffix(".000")
    return found


def network(manifest: Manifest, folder: Path) -> model.Model:
    """Return a model whose outputs are what the network receives."""
    model.import_tensorflow()
    import tensorflow as tf

    from slipway.trainer.data.features import Features

    features = Features(manifest)
    fields = model.fields_of(manifest)

    def function(arrays: dict[str, Any]) -> tuple[None, dict[str, Any]]:
        given = {name: tf.convert_to_tensor(array, fields[name].type_name) for name, array in arrays.items()}
        return None, {name: value.numpy() for name, value in features.decode(given, standardized=False).items()}

    description = json.loads(json.dumps({
        "task": manifest.task, "classes": manifest.classes,
        "inputs": {name: one.model_dump(mode="json") for name, one in manifest.inputs.items()},
    }))  # fmt: skip
    return model.Model(folder, "classification", fields, (), description, function)


def answered(served: model.Model, frame: pandas.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the network's inputs by the form in which the table arrives."""
    given, rows = frame.drop(columns="label"), rows_of(frame.drop(columns="label"))
    given.to_csv("new.csv", index=False)
    given.to_parquet("new.parquet")
    public = PublicModel.__new__(PublicModel)
    public.__dict__["_loaded"] = served
    lines = [json.dumps(row).encode() for row in rows]
    chunks = {
        "CSV": [*Tables(("new.csv",)).read(served, ROWS)],
        "Parquet": [*Tables(("new.parquet",)).read(served, ROWS)],
        "DataFrame": [chunk_of(served, [(str(n), row) for n, row in enumerate(public._instances(given))])],
    }
    assert not any(chunk.faults for found in chunks.values() for chunk in found)
    arrays = {name: found[0].arrays for name, found in chunks.items()}
    arrays["JSON"] = instances.of_body(served, json.dumps({"instances": rows}).encode(), b"application/json")
    arrays["CSV request"] = tables.of_body(served, Path("new.csv").read_bytes())
    quick = tables.of_lines(served, lines, None)
    arrays["JSON lines"] = quick[0] if quick else instances.arrays(served, [json.loads(line) for line in lines])
    unknown = {form: served.unknown(values) for form, values in arrays.items()}
    assert all(each == unknown["CSV"] for each in unknown.values()), unknown
    assert all(len(texts) <= HELD_OUT for texts in unknown["CSV"].values()), "only categories of no training row"
    return {form: served.predict(values) for form, values in arrays.items()}


@pytest.mark.timeout(SECONDS)
@pytest.mark.usefixtures("processes")
@hypothesis.settings(max_examples=FRAMES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(seed=strategies.integers(0, 2**32))
@hypothesis.example(seed=3520783)  # one city is in no row of the training split
def test_a_table_in_every_form_becomes_the_same_inputs(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    folder = tmp_path_factory.mktemp("forms")
    frame = frame_of(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        frame.to_csv("table.csv", index=False)
        frame.to_parquet("table.parquet")
        frame.to_pickle("table.pickle")
        module = f"rows_{seed}"
        Path(f"{module}.py").write_text(
            "import pandas\n\n\ndef rows():\n"
            "    for row in pandas.read_pickle('table.pickle').to_dict('records'):\n"
            "        yield {name: None if pandas.isna(value) else value for name, value in row.items()}\n"
        )
        gaps = {"missing": "mean"}
        described = {"features": {"count": "number"}} if "count" in frame else {}
        sources = {"csv:table.csv": gaps, "parquet:table.parquet": gaps, f"{module}:rows": {**gaps, **described}}
        manifests = {
            source: prepare(DataSettings.model_validate({"source": source, "store": "sets", **more}), 1).manifest
            for source, more in sources.items()
        }
        assert manifests["csv:table.csv"].fingerprint == manifests["parquet:table.parquet"].fingerprint
        for source, manifest in manifests.items():
            found = answered(network(manifest, folder), frame)
            expected = found.pop("CSV")
            for form, inputs in found.items():
                for name, values in inputs.items():
                    np.testing.assert_array_equal(values, expected[name], f"{source} {form} {name}")


@pytest.mark.timeout(SECONDS)
@pytest.mark.usefixtures("processes")
@hypothesis.settings(
    max_examples=FRAMES,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # a failing header is short, or one of TRICKY
)
@hypothesis.given(headers=strategies.lists(HEADERS, min_size=6, max_size=6, unique=True))
@hypothesis.example(headers=[*TRICKY[:6]])
@hypothesis.example(headers=[*TRICKY[6:12]])
@hypothesis.example(headers=[*TRICKY[12:18]])
@hypothesis.example(headers=[*TRICKY[18:24]])
def test_columns_of_any_name_arrive_by_that_name(tmp_path_factory: pytest.TempPathFactory, headers: list[str]) -> None:
    folder = tmp_path_factory.mktemp("headers")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {name: rng.choice(["x", "y"], ROWS) if at % 2 else rng.normal(size=ROWS) for at, name in enumerate(headers)}
    )
    frame["label"] = rng.choice(["a", "b"], ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        frame.to_csv("table.csv", index=False)
        manifest = prepare(DataSettings(source="csv:table.csv", store="sets", label="label"), 1).manifest
        served = network(manifest, folder)
        assert list(served.sources) == headers
        assert len(set(served.inputs)) == len(headers)
        assert all(name.isidentifier() and name.isascii() and not keyword.iskeyword(name) for name in served.inputs)
        found = answered(served, frame)
    for form, inputs in found.items():
        for at, name in enumerate(headers):
            expected = (frame[name] == "y") + 1 if at % 2 else frame[name].astype(np.float32)
            np.testing.assert_array_equal(inputs[stored_name(name)], expected, f"{form} {name}")
