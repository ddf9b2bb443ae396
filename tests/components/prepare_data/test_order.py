"""Splits in time (data.order_by): what trains is earlier than what validates, and that earlier than what tests."""

from __future__ import annotations

import csv
import datetime
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import TimeSeriesSplit

from slipway.components.prepare_data.examples import SPLITS
from slipway.components.prepare_data.listing.order import bounds_of
from slipway.components.prepare_data.listing.split import Fold
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from tests.components.prepare_data.test_folds import keys

Make = Callable[..., DataSettings]
START = datetime.date(2024, 1, 30)


def write_table(path: Path, days: Sequence[object], **columns: Sequence[object]) -> Path:
    """Write a table in random order, whose column `id` numbers the rows by time."""
    names = ["id", "day", "amount", "label", *columns]
    rows = [[number, day, number % 7 + 0.5, "ab"[number % 2]] for number, day in enumerate(days)]
    for column in columns.values():
        rows = [[*row, value] for row, value in zip(rows, column, strict=True)]
    random.Random(3).shuffle(rows)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([names, *rows])
    return path


def numbers(prepared: Prepared) -> dict[str, list[int]]:
    """The numbers of the rows of each split, in order."""
    return {split: sorted(map(int, keys(prepared, split))) for split in SPLITS}


WRITTEN = {
    "date": ({}, "%Y-%m-%d"),
    "date_dmy": ({"features": {"day": "date_dmy"}}, "%d.%m.%Y"),
    "date_mdy": ({"features": {"day": "date_mdy"}}, "%m/%d/%Y"),
    "number": ({}, "%Y%m%d.5"),
}


@pytest.mark.parametrize("kind", WRITTEN)
def test_the_past_trains_the_later_validates_and_the_latest_tests(tmp_path: Path, make_settings: Make, kind: str):
    about, written = WRITTEN[kind]
    days = [(START + datetime.timedelta(days=number)).strftime(written) for number in range(60)]
    source = f"csv:{write_table(tmp_path / 't.csv', days)}"
    prepared = prepare(make_settings(source, id="id", order_by="column:day", **about), 1)
    assert numbers(prepared) == {"train": [*range(48)], "validation": [*range(48, 54)], "test": [*range(54, 60)]}
    assert [*prepared.manifest.inputs] == ["amount"]
    [note] = [note for note in prepared.manifest.notes if "order of day" in note]
    if kind != "number":
        assert note.endswith("train 2024-01-30 to 2024-03-17, validation 2024-03-18 to 2024-03-23, "
                             "test 2024-03-24 to 2024-03-29.")  # fmt: skip
    assert prepare(make_settings(source, id="id", order_by="column:day", **about), 1).reused


def test_equal_values_are_in_one_split_also_without_keys(tmp_path: Path, make_settings: Make):
    months = [f"2024-{1 + number // 20:02d}-01" for number in range(200)]
    source = f"csv:{write_table(tmp_path / 't.csv', months)}"
    prepared = prepare(make_settings(source, order_by="column:day"), 1)
    assert {name: split.examples for name, split in prepared.manifest.splits.items()} == {
        "train": 160, "validation": 20, "test": 20,
    }  # fmt: skip


def test_a_horizon_leaves_out_examples_whose_labels_were_not_known_yet(tmp_path: Path, make_settings: Make):
    days = [START + datetime.timedelta(days=number) for number in range(60)]
    source = f"csv:{write_table(tmp_path / 't.csv', days)}"
    prepared = prepare(make_settings(source, id="id", order_by="column:day", horizon=3), 1)
    assert numbers(prepared) == {"train": [*range(46)], "validation": [*range(48, 52)], "test": [*range(54, 60)]}
    assert "4 rows within data.horizon (3) of the next split are not used." in prepared.manifest.notes


def test_a_group_is_where_its_latest_example_is(tmp_path: Path, make_settings: Make):
    days = [START + datetime.timedelta(days=number) for number in range(120)]
    owners = [f"owner {random.Random(n).randrange(12) if n % 10 == 0 else n // 4}" for n in range(120)]
    source = f"csv:{write_table(tmp_path / 't.csv', days, owner=owners)}"
    prepared = prepare(make_settings(source, id="id", order_by="column:day", group_by="column:owner"), 1)
    splits = numbers(prepared)
    latest = {owner: max(n for n, other in enumerate(owners) if other == owner) for owner in owners}
    of_split = {split: {owners[number] for number in members} for split, members in splits.items()}
    assert sum(map(len, of_split.values())) == len({*owners})
    assert sum(map(len, splits.values())) == 120
    ends = {split: [latest[owner] for owner in of_split[split]] for split in SPLITS}
    assert max(ends["train"]) < min(ends["validation"]) <= max(ends["validation"]) < min(ends["test"])


def test_forward_folds_are_those_of_scikit_learn(tmp_path: Path, make_settings: Make):
    days = [START + datetime.timedelta(days=number) for number in range(80)]
    source = f"csv:{write_table(tmp_path / 't.csv', days)}"
    expected = [*TimeSeriesSplit(3).split(days)]
    for number, (learned, tested) in enumerate(expected):
        prepared = prepare(make_settings(source, id="id", order_by="column:day"), 1, fold=Fold(3, number))
        splits = numbers(prepared)
        assert splits["test"] == tested.tolist()
        assert splits["train"] + splits["validation"] == learned.tolist()


def test_names_of_files_order_images(make_folder: Callable[..., Path], make_settings: Make):
    folder = make_folder({"cat": 30, "dog": 30})
    for path in folder.rglob("*.png"):
        number = int("".join(filter(str.isdigit, path.stem)))
        path.rename(path.with_name(f"IMG_{START + datetime.timedelta(days=number)}_{number:03d}.png".replace("-", "_")))
    settings = make_settings(f"images:{folder}", order_by=r"IMG_(\d+_\d+_\d+)_", duplicates="keep")
    prepared = prepare(settings, 1)
    of_split = {split: [int(key[-7:-4]) for key in keys(prepared, split)] for split in SPLITS}
    assert max(of_split["train"]) < min(of_split["validation"]) <= max(of_split["validation"]) < min(of_split["test"])
    assert sum(map(len, of_split.values())) == 60


@given(
    values=st.lists(st.integers(-5, 40), min_size=3).filter(lambda values: len({*values}) >= 6),
    horizon=st.integers(0, 3),
    fold=st.none() | st.integers(0, 2).map(lambda number: Fold(3, number)),
    test=st.floats(0.05, 0.6),
)
def test_no_split_is_empty_or_overlaps_another(values: list[int], horizon: int, fold: Fold | None, test: float):
    fractions = {"test": test, "validation": 0.1, "train": 0.9 - test}
    settings = DataSettings.model_validate({"source": "csv:t.csv", "order_by": "column:t", "split": fractions})
    array = np.array(values, float)
    split, used = bounds_of(array, settings, fold).splits(array)
    of_split = [array[(split == number) & used] for number in range(3)]
    assert all(map(len, of_split))
    assert of_split[0].max() < of_split[1].min() and of_split[1].max() < of_split[2].min()
    assert fold is not None or used.all()
    apart = bounds_of(array, settings.model_copy(update={"horizon": float(horizon)}), fold)
    also, still_used = apart.splits(array)
    assert (also == split).all() and not (still_used & ~used).any()
    for number in range(2):
        before = array[(split == number) & still_used]
        assert not len(before) or before.max() + horizon <= of_split[number + 1].min()


MISTAKES = {
    "no column": ({"order_by": "column:dya"}, "has no column dya", "column:day"),
    "numbers and dates": ({"order_by": "column:mixed"}, "Some values of mixed are numbers, and some are dates.", None),
    "one value": ({"order_by": "column:same"}, "gives the examples 1 different value:", None),
    "no values": ({"order_by": "column:words"}, "finds neither a number nor a date in it", None),
    "a pattern": ({"order_by": r"(\d+)"}, "have no names in which data.order_by could be found", None),
    "too long": ({"order_by": "column:day", "horizon": 100}, "data.horizon leaves no row in the split train", None),
    "splits": ({"order_by": "column:day", "named": True}, "The source defines splits (test, train, validation)", None),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_have_one_sentence(tmp_path: Path, make_settings: Make, name: str):
    about, message, nearest = MISTAKES[name]
    days = [START + datetime.timedelta(days=number) for number in range(60)]
    columns: dict[str, Sequence[object]] = {
        "mixed": [day if number else 4 for number, day in enumerate(days)], "same": [1] * 60,
        "words": [f"w{number % 3}" for number in range(60)],
    }  # fmt: skip
    if about.get("named"):
        columns["split"] = [SPLITS[number % 3] for number in range(60)]
    source = f"csv:{write_table(tmp_path / 't.csv', days, **columns)}"
    settings = make_settings(source, **{key: value for key, value in about.items() if key != "named"})
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        prepare(settings, 1)
    text = str(caught.value)
    assert nearest is None or nearest in text
    if "--set data.order_by=null" in text:
        prepare(settings.model_copy(update={"order_by": None}), 1)
    if "--set data.horizon=0" in text:
        prepare(settings.model_copy(update={"horizon": 0.0}), 1)


def test_a_horizon_requires_an_order():
    with pytest.raises(UserError, match=r"data\.horizon has no effect on splits at random"):
        DataSettings.model_validate({"source": "digits", "horizon": 3})


def test_a_source_without_columns_is_ordered_by_its_keys(make_settings: Make):
    with pytest.raises(UserError, match="The source digits has no columns"):
        prepare(make_settings("digits", order_by="column:day"), 1)
    prepared = prepare(make_settings("digits", order_by=r"digits/(\d+)"), 1)
    assert max(keys(prepared, "train")) < min(keys(prepared, "validation")) < min(keys(prepared, "test"))


def test_a_missing_date_is_a_row_that_cannot_be_used(tmp_path: Path, make_settings: Make):
    days = ["" if number == 30 else START + datetime.timedelta(days=number) for number in range(60)]
    source = f"csv:{write_table(tmp_path / 't.csv', days)}"
    with pytest.raises(UserError, match=r"data\.order_by finds neither a number nor a date in it"):
        prepare(make_settings(source, order_by="column:day"), 1)
    prepared = prepare(make_settings(source, order_by="column:day", skip_corrupt=0.1), 1)
    assert prepared.manifest.skipped_count == 1
    assert sum(split.examples for split in prepared.manifest.splits.values()) == 59


def test_a_function_and_records_are_ordered_by_a_feature(
    tmp_path: Path, make_settings: Make, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "rows_in_time.py").write_text(
        "def rows():\n    for n in range(60):\n        yield {'key': f'{n * 37 % 60:02d}', 'amount': n * 0.5, "
        "'label': 'ab'[n % 2], 'day': n * 37 % 60}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = make_settings("rows_in_time:rows", order_by="column:day")
    prepared = prepare(settings, 1)
    expected = {"train": [*range(48)], "validation": [*range(48, 54)], "test": [*range(54, 60)]}
    assert numbers(prepared) == expected
    assert [*prepared.manifest.inputs] == ["amount"]
    records = tmp_path / "records"
    records.mkdir()
    shards = [prepared.folder / shard.file for split in prepared.manifest.splits.values() for shard in split.shards]
    for number, shard in enumerate(shards):
        (records / f"part-{number}.tfrecord").write_bytes(shard.read_bytes())
    features = {"key": "text", "amount": "number", "day": "integer", "label": "integer"}
    again = prepare(make_settings(f"tfrecord:{records}/*.tfrecord", order_by="column:day", features=features), 1)
    assert numbers(again) == expected
