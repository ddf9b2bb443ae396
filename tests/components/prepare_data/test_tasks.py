"""Tables, targets, several labels and named inputs, from source to record and manifest."""

from __future__ import annotations

import csv
import itertools
import math
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn import datasets

from slipway.components.prepare_data.encoding.messages import features_of, values
from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import check_source
from slipway.core.errors import UserError
from slipway.core.manifest import TaskName

MakeSettings = Callable[..., DataSettings]
Record = dict[str, list[bytes] | list[float] | list[int]]
NUMBERS = itertools.count()


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., str]:
    """Writes a CSV file; returns its data.source."""

    def write(header: str, rows: list[str]) -> str:
        (tmp_path / "table.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
        return f"csv:{tmp_path / 'table.csv'}"

    return write


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], str]]:
    """Writes a module with the function `examples`; returns its data.source."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)

    def write(body: str) -> str:
        name = f"own_tasks_{next(NUMBERS)}"
        head = "import numpy as np\nfrom sklearn.datasets import load_digits\nD = load_digits()\n\ndef examples():\n"
        (tmp_path / f"{name}.py").write_text(head + textwrap.indent(textwrap.dedent(body).strip(), "    "))
        return f"{name}:examples"

    yield write
    for name in [name for name in sys.modules if name.startswith("own_tasks_")]:
        del sys.modules[name]


def records(prepared: Prepared, split: str | None = None) -> dict[str, Record]:
    """Return the records of a split, or of all, by key."""
    found: dict[str, Record] = {}
    for name, about in prepared.manifest.splits.items():
        for shard in about.shards if split in (None, name) else ():
            with (prepared.folder / shard.file).open("rb") as file:
                for message in read_records(file):
                    record = {key.decode(): values(feature) for key, feature in features_of(message).items()}
                    (key,) = record.pop("key")
                    assert isinstance(key, bytes)
                    found[key.decode()] = record
    return found


def write_bunch(path: Path, name: str) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Write one of scikit-learn's data sets; return its numbers, targets and column names."""
    bunch = getattr(datasets, f"load_{name}")()
    names = bunch.get("target_names")
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*bunch.feature_names, "target"])
        for numbers, target in zip(bunch.data, bunch.target, strict=True):
            lines.writerow([*map(float, numbers), float(target) if names is None else names[target]])
    return bunch.data, bunch.target, list(bunch.feature_names)


def test_the_fingerprint_of_a_data_set_of_images_is_what_it_was(make_settings: MakeSettings) -> None:
    prepared = prepare(make_settings("digits"), 2)
    assert prepared.manifest.fingerprint == "542185a87ab81074b7f18465e759ee59dd459c796d2f5fcf06f973cf6b55d246"
    digests = [shard.sha256 for split in prepared.manifest.splits.values() for shard in split.shards]
    assert digests[0] == "47970b67b8575f46853360019e449bb03a11bb40efdcd5f5327d25ef39c5a792"


@pytest.mark.usefixtures("processes")
def test_diabetes_is_a_regression(tmp_path: Path, make_settings: MakeSettings) -> None:
    numbers, targets, names = write_bunch(tmp_path / "diabetes.csv", "diabetes")
    source = f"csv:{tmp_path / 'diabetes.csv'}"
    given = make_settings(source, label="target", workers=1)
    one = prepare(given, 3, task="regression")
    three = given.model_copy(update={"workers": 3, "store": str(tmp_path / "three")})
    two = prepare(three, 3, task="regression")
    about = one.manifest
    assert about == two.manifest, "statistics do not depend on the number of workers"
    assert (about.task, about.classes, about.outputs, about.has_image) == ("regression", [], 1, False)
    assert list(about.inputs) == names
    assert {name: split.examples for name, split in about.splits.items()} == {
        "train": 354, "validation": 44, "test": 44
    }  # fmt: skip
    stored = {name: records(one, name) for name in about.splits}
    row_of = {tuple(np.float32(each).tolist()): row for row, each in enumerate(numbers)}
    for record in itertools.chain.from_iterable(of_split.values() for of_split in stored.values()):
        row = row_of[tuple(record[name][0] for name in names)]
        assert [record[name] for name in names] == [[float(np.float32(number))] for number in numbers[row]]
        assert record["label"] == [targets[row]]
        assert set(record) == {*names, "label"}
    rows = [row_of[tuple(record[name][0] for name in names)] for record in stored["train"].values()]
    found = [(*about.inputs[name].mean, *about.inputs[name].deviation) for name in names]
    expected = numbers[rows].astype(np.float32).astype(float)
    np.testing.assert_allclose(found, np.stack([expected.mean(0), expected.std(0)], axis=1), rtol=1e-9, atol=1e-12)
    assert about.target is not None
    np.testing.assert_allclose(
        (*about.target.mean, *about.target.deviation), (targets[rows].mean(), targets[rows].std()), rtol=1e-12
    )
    page = (one.folder / "statistics.html").read_text()
    assert "354" in page and ">target<" in page and "Sample images" not in page
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(one.folder))
    first = next(iter(tfds.as_numpy(builder.as_dataset(split="test"))))
    assert first["label"] == stored["test"][first["key"].decode()]["label"][0]


@pytest.mark.parametrize("name", ["wine", "breast_cancer"])
def test_tables_of_classes_are_stratified(tmp_path: Path, make_settings: MakeSettings, name: str) -> None:
    _, targets, names = write_bunch(tmp_path / f"{name}.csv", name)
    prepared = prepare(make_settings(f"csv:{tmp_path / f'{name}.csv'}", label="target"), 2)
    about = prepared.manifest
    assert list(about.inputs) == names, "names with spaces and slashes too"
    assert about.outputs == len(set(targets)) and about.task == "classification"
    for label in about.classes:
        counts = [split.classes[label] for split in about.splits.values()]
        assert counts[0] == pytest.approx(0.8 * sum(counts), abs=1.01) and min(counts) > 0
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(prepared.folder))
    assert set(next(iter(tfds.as_numpy(builder.as_dataset(split="train"))))) == {*names, "label", "key"}
    assert builder.info.features["label"].names == about.classes


def test_columns_of_a_table(table: Callable[..., str], make_settings: MakeSettings) -> None:
    numbers = range(120)
    cells = [f"p{n // 3},{['', 'Ü', 'b'][n % 3]},{n % 4},{n / 8},{n} {n},{'ab'[n % 2]}" for n in numbers]
    rows = [f"{row},{'train' if n % 5 else 'test'}" for n, row in zip(numbers, cells, strict=True)]
    source = table("patient,city,rooms,size,pair,label,split", rows)
    about = make_settings(source, group_by="column:patient", features={"pair": "number[2]"})
    with pytest.raises(UserError, match="in 2 splits of the source"):
        prepare(about, 1)
    source = table("patient,city,rooms,size,pair,label", cells)
    prepared = prepare(about, 1)
    inputs = prepared.manifest.inputs
    assert {name: (found.kind, found.shape) for name, found in inputs.items()} == {
        "city": ("category", ()), "rooms": ("number", ()), "size": ("number", ()), "pair": ("number", (2,)),
    }, "neither the group nor the split is an input"  # fmt: skip
    assert inputs["city"].vocabulary == ("", "b", "Ü")
    assert prepared.manifest.features["patient"] == "text"
    assert prepared.manifest.features["city"] == "category"
    where = {name: {record["patient"][0] for record in records(prepared, name).values()} for name in ("train", "test")}
    assert where["train"] and where["test"] and not where["train"] & where["test"]
    chosen = prepare(about.model_copy(update={"inputs": ["size", "patient"]}), 1).manifest
    assert {name: found.kind for name, found in chosen.inputs.items()} == {"size": "number", "patient": "category"}
    assert chosen.fingerprint != prepared.manifest.fingerprint
    assert prepare(about, 1).reused


def test_several_labels_in_a_cell(table: Callable[..., str], make_settings: MakeSettings) -> None:
    cells = ["sea|sun", "sun", "", "sun | sea|wind", "wind|wind"]
    source = table("x,label", [f"{n},{cells[n % 5]}" for n in range(300)])
    prepared = prepare(make_settings(source), 2, task="multilabel")
    about = prepared.manifest
    assert (about.classes, about.outputs) == (["sea", "sun", "wind"], 3)
    expected = [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 1, 1], [0, 0, 1]]
    for record in records(prepared).values():
        assert record["label"] == expected[int(record["x"][0]) % 5]
    train = records(prepared, "train").values()
    assert about.splits["train"].classes == {
        name: sum(int(record["label"][index]) for record in train) for index, name in enumerate(about.classes)
    }
    assert not about.notes
    again = prepare(make_settings(f"tfrecord:{prepared.folder}", name="again"), 1, task="multilabel")
    assert again.manifest.classes == about.classes
    assert {key: record["label"] for key, record in records(again).items()} == {
        key: record["label"] for key, record in records(prepared).items()
    }


def test_images_with_labels_a_target_and_inputs(module: Callable[[str], str], make_settings: MakeSettings) -> None:
    source = module("""
        for n in range(90):
            yield {"image": (D.images[n] * 15).astype(np.uint8), "second": (D.images[n + 90] * 15).astype(np.uint8),
                   "ink": float(D.data[n].sum()), "tokens": [n % 5, 2, 3], "hand": "lr"[n % 2],
                   "label": {"few": [], "many": ["even", "low"]}["few" if n % 3 else "many"], "value": n / 4}
    """)
    features = {"tokens": "integer[3]", "second": "image"}
    given = make_settings(source, features=features, inputs=["tokens", "image", "second", "hand", "ink"])
    prepared = prepare(given, 1, task="multilabel")
    about = prepared.manifest
    assert list(about.all_inputs) == ["image", "tokens", "second", "hand", "ink"]
    assert [found.kind for found in about.inputs.values()] == ["integer", "image", "category", "number"]
    assert (about.inputs["second"].shape, about.inputs["tokens"].maximum) == ((8, 8, 1), 4)
    assert about.inputs["hand"].vocabulary == ("l", "r")
    assert "no label" in (prepared.folder / "statistics.html").read_text()
    other = prepare(given.model_copy(update={"label": "value", "inputs": None}), 1, task="regression").manifest
    assert other.inputs == {} and other.has_image and other.target is not None, "the image alone, as always"


def test_values_come_through_a_record(tmp_path_factory: pytest.TempPathFactory) -> None:
    texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=6).map(str.strip)
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)

    @given(rows=st.lists(st.tuples(numbers, texts, st.integers(0, 2**31 - 1), numbers), min_size=12, max_size=20))
    @settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow], deadline=None)
    def round_trip(rows: list[tuple[float, str, int, float]]) -> None:
        folder = tmp_path_factory.mktemp("round")
        with (folder / "t.csv").open("w", newline="", encoding="utf-8") as file:
            cells = [(number, text, f"{integer} 0", target) for number, text, integer, target in rows]
            csv.writer(file).writerows([("number", "text", "ids", "label"), *cells])
        given = {"features": {"ids": "integer[2]", "text": "category"}, "workers": 1, "store": str(folder / "store")}
        given |= {"source": f"csv:{folder / 't.csv'}"}
        prepared = prepare(DataSettings.model_validate(given), 1, task="regression")
        found = records(prepared)
        assert len(found) == len(rows)
        expected = [
            {"number": [number], "text": [text.encode()], "ids": [integer, 0], "label": [target]}
            for number, text, integer, target in rows
        ]
        for record in found.values():
            expected.remove(record)  # equal rows have keys of their own
        assert not expected

    round_trip()


NUMBERS_ROWS = [f"{n},{n / 2}" for n in range(40)]


@pytest.mark.parametrize(
    ("task", "header", "rows", "about", "setting", "message", "fix"),
    [
        ("regression", "x,label", [*NUMBERS_ROWS, "3,cat"], {}, "data.source",
         "Line 42 of .* has 'cat' in the column label", "--set task=classification"),
        ("regression", "x,label", [*NUMBERS_ROWS, "3,nan", "4,inf", "5,", "6,1e99"], {}, "data.skip_corrupt",
         r"4 of 44 rows cannot be used: line 42 \(its target in the column label is nan.*line 43 .*inf.*line 44 "
         r".*empty.*line 45 .*1e99", "data.skip_corrupt=0.091"),
        ("regression", "x,label", [*NUMBERS_ROWS, "NA,1"], {"missing": "refuse"}, "data.skip_corrupt",
         r"1 of 41 rows cannot be used: line 42 \(its number in the column x is NA\)", "skip_corrupt=0.0244"),
        ("regression", "x,label", [*NUMBERS_ROWS, "inf,1"], {}, "data.skip_corrupt", "its x: inf is not a finite", ""),
        ("regression", "x,y", NUMBERS_ROWS, {}, "data.source", "no column label or class", "--set data.label=COLUMN"),
        ("regression", "x,target", NUMBERS_ROWS, {"label": "targte"}, "data.label", "no column targte",
         "--set data.label=target"),
        ("regression", "x,label", NUMBERS_ROWS, {"inputs": ["X"]}, "data.inputs", "no feature 'X'", ""),
        ("classification", "x,label", NUMBERS_ROWS, {}, "data.label", "The class '0.0' has 1 row",
         "--set task=regression"),
        ("classification", "x,label", [f"{n},sea|sun" for n in range(9)], {}, "data.source",
         r"Line 2 of .* has several labels: 'sea\|sun'", "--set task=multilabel"),
        ("multilabel", "x,label", [f"{n}," for n in range(9)], {}, "data.label", "No example .* has a label", ""),
        ("regression", "x,label", NUMBERS_ROWS[:2], {}, "data.source", "The source has 2 rows; train", ""),
        ("regression", "x,label", [], {}, "data.source", "lists no rows", ""),
        ("regression", "name,label", [f"n{n},{n}" for n in range(1100)], {}, "data.source",
         "No column of .* is an input: name is probably an identifier", "--set 'data.inputs="),
        ("regression", "scan,label", [f"{n}.png,{n}" for n in range(9)], {}, "data.source",
         "column scan has paths of images", "--set data.image=scan"),
        ("regression", "x,label", NUMBERS_ROWS, {"image_size": [8, 8]}, "data.image_size", "has no images", "remove"),
        ("regression", "x,label,split", ["1,2,test"] * 9, {}, "data.source", "no row in the split train", ""),
    ],
)  # fmt: skip
def test_mistakes_in_tables(
    table: Callable[..., str], make_settings: MakeSettings, task: TaskName, header: str, rows: list[str],
    about: dict[str, object], setting: str, message: str, fix: str,
) -> None:  # fmt: skip
    given = make_settings(table(header, rows), workers=1, **about)
    with pytest.raises(UserError, match=message) as error:
        prepare(given, 1, task=task)
    assert error.value.setting == setting
    assert fix in (error.value.fix or "")
    assert len(str(error.value).splitlines()) <= 24
    assert not Path(given.store).exists()


def test_rows_without_a_number_can_be_skipped(table: Callable[..., str], make_settings: MakeSettings) -> None:
    settings = make_settings(table("x,label", [*NUMBERS_ROWS, ",3", "4,?"]), skip_corrupt=0.05, missing="refuse")
    about = prepare(settings, 1, task="regression").manifest
    assert [(skipped.key, skipped.reason) for skipped in about.skipped] == [
        ("line 42", "its number in the column x is empty"),
        ("line 43", "its target in the column label is ?, not a finite number"),
    ]
    assert sum(split.examples for split in about.splits.values()) == 40


@pytest.mark.parametrize("kind", ["csv", "csv row by row", "module"])
def test_a_missing_number_is_the_mean_and_an_input_of_its_own(
    table: Callable[..., str], module: Callable[[str], str], make_settings: MakeSettings, kind: str
) -> None:
    rows = [("" if n % 4 == 1 else str(n), "a" if n % 3 else "", n) for n in range(60)]
    source = table("x,city,label", [f"{x},{city},{label}" for x, city, label in rows])
    if kind == "module":
        lines = f"import math; rows = {rows!r}"
        values = "{'x': float(x) if x else (None if n % 8 == 1 else math.nan), 'city': city, 'label': float(n)}"
        source = module(f"{lines}\nfor x, city, n in rows: yield {values}")
    features = {"city": "category", **({"ids": "integer[2]"} if kind == "csv row by row" else {})}
    if kind == "csv row by row":  # a list in a cell is not read by columns
        source = table("x,city,ids,label", [f"{x},{city},1 2,{label}" for x, city, label in rows])
    prepared = prepare(make_settings(source, features=features, inputs=["x", "city"]), 1, task="regression")
    about = prepared.manifest
    assert about.skipped_count == 0
    found = {record["label"][0]: record["x"][0] for record in records(prepared).values()}
    assert {label: None if math.isnan(x) else x for label, x in found.items()} == {
        n: float(x) if x else None for x, _, n in rows
    }
    trained = [record["x"][0] for record in records(prepared, "train").values()]
    x = about.inputs["x"]
    assert (x.nullable, x.shape, x.stored_shape) == (True, (2,), ())
    assert x.mean[0] == pytest.approx(np.nanmean(trained))
    assert x.deviation[0] == pytest.approx(np.nanstd(trained))
    assert about.inputs["city"].vocabulary == ("", "a")
    assert about.inputs["city"].accepts_null
    assert f"{np.isnan(trained).sum()} missing" in (prepared.folder / "statistics.html").read_text()


@pytest.mark.parametrize(
    ("task", "label", "message", "fix"),
    [
        ("classification", "['a']", r"The first label of .* is \['a'\], which the task classification cannot learn",
         "--set task=multilabel"),
        ("classification", "0.5", "is 0.5, which the task classification", "--set task=regression"),
        ("multilabel", "'a'", "is 'a', which the task multilabel", "--set task=classification"),
        ("regression", "'a'", "is 'a', which the task regression", "--set task=classification"),
        ("regression", "float('nan') if n else 1.0", r"its target nan is not a finite number", "data.skip_corrupt"),
    ],
)  # fmt: skip
def test_labels_of_another_task(
    module: Callable[[str], str], make_settings: MakeSettings, task: TaskName, label: str, message: str, fix: str
) -> None:
    source = module(f"for n in range(9): yield {{'x': float(n), 'label': {label}}}")
    with pytest.raises(UserError, match=message) as error:
        prepare(make_settings(source), 1, task=task)
    assert fix in (error.value.fix or "")


def test_a_record_of_another_task_and_a_source_with_classes_only(
    table: Callable[..., str], make_settings: MakeSettings
) -> None:
    prepared = prepare(make_settings(table("x,label", NUMBERS_ROWS)), 1, task="regression")
    again = make_settings(f"tfrecord:{prepared.folder}", name="again")
    with pytest.raises(UserError, match="'label' cannot be the label of the task classification") as error:
        check_source(again)
    assert error.value.fix == "--set task=regression"
    assert prepare(again, 1, task="regression").manifest.target == prepared.manifest.target
    with pytest.raises(UserError, match="digits has one class for each image") as error:
        check_source(make_settings("digits"), "multilabel")
    assert error.value.setting == "task"


def test_what_tfds_calls_a_sequence_of_classes(tmp_path: Path, make_settings: MakeSettings) -> None:
    import tensorflow_datasets as tfds

    features = tfds.features.FeaturesDict(
        {
            "tags": tfds.features.Sequence(tfds.features.ClassLabel(names=["sea", "sun"])),
            "depth": np.float64,
            "width": np.float32,
        }
    )
    examples = {n: {"tags": [["sun"], ["sea", "sun"], []][n % 3], "depth": n / 3, "width": n} for n in range(30)}

    class Beaches(tfds.core.GeneratorBasedBuilder):
        """Made here."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            return self.dataset_info_from_configs(features=features)

        def _split_generators(self, manager: object) -> dict[str, Iterator[tuple[int, object]]]:
            return {"train": iter(examples.items())}

        def _generate_examples(self) -> None:
            raise NotImplementedError

    Beaches(data_dir=str(tmp_path / "tfds")).download_and_prepare()
    given = make_settings("tfds:beaches", tfds={"data_dir": str(tmp_path / "tfds")})
    with pytest.raises(UserError, match="Cannot tell which feature is the label") as error:
        prepare(given, 1)
    assert error.value.fix == "--set task=multilabel"
    prepared = prepare(given, 1, task="multilabel")
    assert prepared.manifest.classes == ["sea", "sun"]
    assert {tuple(record["label"]) for record in records(prepared).values()} == {(0, 1), (1, 1), (0, 0)}
    assert prepared.manifest.inputs["depth"].kind == "number"
    depth = prepare(given.model_copy(update={"label": "depth"}), 1, task="regression").manifest
    assert depth.target is not None and list(depth.inputs) == ["width"]
