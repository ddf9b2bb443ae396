"""Splits that flatter are found and measured; those of the benchmark `benchmarks.splits` are 40 data sets."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import r2_score, roc_auc_score

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.scan_table import scan
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation import quick_model
from slipway.components.prepare_data.validation.split_check import SplitFinding
from slipway.components.prepare_data.validation.suspicions import SERIES_OF_NAMES, codes_of

Make = Callable[..., DataSettings]
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Draw the same random numbers in each test, in whatever order they run."""
    RANDOM.bit_generator.state = np.random.default_rng(0).bit_generator.state


def write_table(path: Path, **columns: object) -> str:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return f"csv:{path}"


def customers(path: Path, name: str = "customer_id", effect: float = 1) -> str:
    """Rows of customers, whose inputs are nearly the same and whose label is the customer's."""
    customer = np.sort(RANDOM.integers(80, size=600))
    center, label = RANDOM.normal(size=(80, 4)), effect * RANDOM.normal(size=80)
    inputs = center[customer] + 0.3 * RANDOM.normal(size=(600, 4))
    labels = np.where(label[customer] + (1 - effect) * RANDOM.normal(size=600) > 0, "yes", "no")
    return write_table(path, **{name: customer}, **{f"x{n}": inputs[:, n] for n in range(4)}, label=labels)


def findings(source: str, **settings: object) -> dict[str, SplitFinding]:
    found = scan(DataSettings.model_validate({"source": source, **settings}), "classification").split_findings
    return {finding.name: finding for finding in found if finding.flatters}


@pytest.mark.parametrize("name", ["customer_id", "CustomerID", "patients", "Kunden-Nr"])
def test_a_group_in_several_splits_is_measured_and_the_fix_ends_it(tmp_path: Path, name: str):
    source = customers(tmp_path / "t.csv", name)
    [finding] = findings(source).values()
    assert (finding.kind, finding.name, finding.metric) == ("group", name, "AUC")
    assert finding.difference.first > 0.9 > 0.75 > finding.difference.second
    assert shlex.split(finding.fix) == ["--set", f"data.group_by=column:{name}"]
    assert not findings(source, group_by=f"column:{name}")


def test_the_note_is_in_the_manifest_and_on_the_statistics_page(tmp_path: Path, make_settings: Make):
    prepared = prepare(make_settings(customers(tmp_path / "t.csv")), 1)
    [note] = [note for note in prepared.manifest.notes if "quick model" in note]
    assert "if examples of the same customer_id are in several splits, as here" in note
    assert "The split flatters by 0." in note and "95% interval 0." in note
    assert note.endswith("--set data.group_by=column:customer_id")
    assert "The split flatters by" in (prepared.folder / "statistics.html").read_text()


def test_groups_without_an_effect_do_not_flatter(tmp_path: Path):
    source = customers(tmp_path / "t.csv", effect=0)
    found = scan(DataSettings(source=source), "classification").split_findings
    [finding] = [finding for finding in found if finding.name == "customer_id"]
    assert not finding.flatters
    assert "no significant difference" in finding.sentence


def test_times_in_random_order_are_measured_against_the_past(tmp_path: Path):
    regime = np.repeat(np.arange(12), 60)
    noise, sign = RANDOM.normal(size=720), RANDOM.choice([-1, 1], size=12)[regime]
    rows = {"day": [f"{2000 + n // 12}-{1 + n % 12:02d}-01" for n in range(720)], "x": 8 * regime + noise}
    source = write_table(tmp_path / "t.csv", **rows, label=np.where(sign * noise > 0, "up", "down"))
    [finding] = findings(source).values()
    assert (finding.kind, finding.fix) == ("time", "--set data.order_by=column:day")
    assert not findings(source, order_by="column:day")


def test_an_input_that_gives_the_label_away_is_measured_without(tmp_path: Path):
    x, label = RANDOM.normal(size=(2, 500)), RANDOM.random(500) < 0.5
    refund = np.where(label, RANDOM.gamma(2, 20, 500), 0)
    source = write_table(
        tmp_path / "t.csv", x=x[0] + label, y=x[1], refund=refund, label=np.where(label, "left", "stays")
    )
    [finding] = findings(source).values()
    assert (finding.kind, finding.name) == ("input", "refund")
    assert shlex.split(finding.fix) == ["--set", 'data.inputs=["x", "y"]']
    assert not findings(source, inputs=["x", "y"])


def test_names_of_images_that_count_are_series(tmp_path: Path, make_folder: Callable[..., Path], make_settings: Make):
    """Of images, nothing is decoded unless their names or looks suggest it."""
    folder = make_folder({"cat": 60, "dog": 60})
    for path in folder.rglob("*.png"):
        number = int("".join(filter(str.isdigit, path.stem)))
        path.rename(path.with_name(f"walk {number // 4}-{number}.png"))
    found = scan(make_settings(f"images:{folder}", duplicates="keep"), "classification").split_findings
    assert [finding.name for finding in found] == [SERIES_OF_NAMES]
    assert found[0].fix.startswith("--set 'data.group_by=")


def test_scores_are_those_of_scikit_learn():
    labels = RANDOM.integers(3, size=200).astype(float)
    chances = RANDOM.dirichlet(np.ones(3), size=200)
    expected = roc_auc_score(labels, chances, multi_class="ovr")
    assert quick_model.score(labels, chances, "classification") == pytest.approx(expected)
    two = (labels > 0).astype(float)
    pair = np.stack([chances[:, 0], 1 - chances[:, 0]], axis=1)
    assert quick_model.score(two, pair, "classification") == pytest.approx(roc_auc_score(two, pair[:, 1]))
    numbers = RANDOM.normal(size=200)
    assert quick_model.score(numbers, pair, "regression") == pytest.approx(r2_score(numbers, pair[:, 0]))


def test_folds_are_whole_and_forward_folds_learn_from_the_past():
    codes = codes_of([f"{n}" for n in RANDOM.integers(40, size=300)])
    for fitted, predicted in quick_model.group_folds(codes):
        assert not {*codes[fitted].tolist()} & {*codes[predicted].tolist()}
        assert len(fitted) + len(predicted) == 300
    times = RANDOM.permutation(300).astype(float)
    past, anywhere = quick_model.forward_folds(times)
    assert all(times[fitted].max() < times[predicted].min() for fitted, predicted in past)
    sizes = {len(fitted) for fitted, _ in past}
    assert {len(fitted) for fitted, _ in anywhere} == sizes
    for folds in (past, anywhere):
        predicted = np.concatenate([rows for _, rows in folds])
        assert len(predicted) == len({*predicted.tolist()}) == 200


@pytest.mark.parametrize("absent", ["missing", "empty"])
def test_features_that_some_records_lack_are_not_compared(tmp_path: Path, make_settings: Make, absent: str):
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as file:
        for number in range(200):
            example = tf.train.Example()
            example.features.feature["x"].float_list.value.append(RANDOM.normal())
            example.features.feature["label"].int64_list.value.append(number % 2)
            if number % 3:
                example.features.feature["user_id"].bytes_list.value.append(b"u%d" % (number % 20))
                example.features.feature["weight"].float_list.value.append(np.inf)
            elif absent == "empty":
                example.features.feature["user_id"].bytes_list.SetInParent()
            file.write(example.SerializeToString())
    kinds = {"x": "number", "user_id": "text", "weight": "number", "label": {"classes": 2}}
    settings = make_settings(f"tfrecord:{tmp_path}/a.tfrecord", features=kinds, inputs=["x"])
    assert prepare(settings, 1).manifest.notes == []


def test_inputs_of_several_values_are_not_compared(tmp_path: Path, make_settings: Make):
    with tf.io.TFRecordWriter(str(tmp_path / "a.tfrecord")) as file:
        for number in range(200):
            example = tf.train.Example()
            example.features.feature["x"].float_list.value.extend(RANDOM.normal(size=3))
            example.features.feature["target"].float_list.value.append(RANDOM.normal())
            example.features.feature["user_id"].bytes_list.value.append(b"u%d" % (number % 20))
            file.write(example.SerializeToString())
    kinds = {"x": "number[3]", "user_id": "text", "target": "number"}
    settings = make_settings(f"tfrecord:{tmp_path}/a.tfrecord", features=kinds, inputs=["x"], label="target")
    assert prepare(settings, 1, task="regression").manifest.notes == []
