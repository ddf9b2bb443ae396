"""data.duplicates of examples without an image: equal rows and texts are in one split, or one of them is used."""

from __future__ import annotations

import csv
import itertools
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.encoding.messages import values
from slipway.components.prepare_data.encoding.records import read_examples
from slipway.components.prepare_data.listing.repeats import whole
from slipway.components.prepare_data.listing.split import Fold, blocks, divide
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings, SplitFractions
from slipway.core.seen import of_split

MakeSettings = Callable[..., DataSettings]
ROWS, DIFFERENT = 600, 300
WORDS = ["the", "a", "big", "small", "red", "old", "house", "boat", "lake", "river", "near", "far", "sold", "new"]


def rows(different: int = DIFFERENT) -> list[list[str]]:
    """Rows of an identifier, a number, a text, a category and a label, of which no two are equal."""
    rng = random.Random(3)
    return [
        [
            f"C{number:05}",
            f"{rng.gauss(0, 1):.6f}",
            " ".join(rng.choices(WORDS, k=9)),
            rng.choice("ab"),
            rng.choice(["yes", "no"]),
        ]
        for number in range(different)
    ]


HEADER = ["customer", "x", "about", "kind", "label"]


def table(path: Path, lines: Sequence[Sequence[str]], header: Sequence[str] = HEADER) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


def settings_of(source: dict[str, object], folder: Path, **more: object) -> DataSettings:
    return DataSettings.model_validate({**source, "store": str(folder / "store"), "workers": 1, **more})


def content(example: dict[bytes, bytes]) -> tuple[object, ...]:
    return tuple(tuple(values(example[name])) for name in (b"x", b"about", b"kind", b"label"))


def splits_of(prepared: Prepared) -> dict[tuple[object, ...], list[str]]:
    """Return the splits of the examples of each content."""
    found: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for split, about in prepared.manifest.splits.items():
        for example in read_examples([prepared.folder / shard.file for shard in about.shards]):
            found[content(example)].append(split)
    return found


def seen_in_training(prepared: Prepared) -> int:
    """Return the number of test examples of which the training or the validation split has the hash."""
    hashes = {split: of_split(prepared.folder, prepared.manifest, split) for split in prepared.manifest.splits}
    test, train, validation = hashes["test"], hashes["train"], hashes["validation"]
    assert test is not None and train is not None and validation is not None
    return int(np.isin(test, np.concatenate([train, validation])).sum())


def as_csv(folder: Path, lines: list[list[str]]) -> dict[str, object]:
    return {"source": f"csv:{table(folder / 'twice.csv', lines)}"}


def as_parquet(folder: Path, lines: list[list[str]]) -> dict[str, object]:
    columns = dict(zip(HEADER, zip(*lines, strict=True), strict=True))
    columns["x"] = tuple(map(float, columns["x"]))  # type: ignore[arg-type]
    pyarrow.parquet.write_table(
        pyarrow.table({name: [*cells] for name, cells in columns.items()}), folder / "t.parquet"
    )
    return {"source": f"parquet:{folder / 't.parquet'}"}


def with_ids(folder: Path, lines: list[list[str]]) -> dict[str, object]:
    numbered = [[str(number), *line] for number, line in enumerate(lines)]
    return {"source": f"csv:{table(folder / 'ids.csv', numbered, ['number', *HEADER])}", "id": "number"}


def with_an_index(folder: Path, lines: list[list[str]]) -> dict[str, object]:
    numbered = [[str(number), *line] for number, line in enumerate(lines)]
    return {"source": f"csv:{table(folder / 'index.csv', numbered, ['Unnamed: 0', *HEADER])}"}


def by_a_function(folder: Path, lines: list[list[str]]) -> dict[str, object]:
    (folder / f"texts_{folder.name}.py").write_text(
        f"ROWS = {lines!r}\n"
        "def examples():\n"
        "    for number, (customer, x, about, kind, label) in enumerate(ROWS):\n"
        "        yield {'number': number, 'x': float(x), 'about': about, 'kind': kind, 'label': label}\n"
    )
    sys.path.insert(0, str(folder))
    features = {"about": "text"}
    return {"source": f"texts_{folder.name}:examples", "inputs": ["x", "about", "kind"], "features": features}


FORMS = [as_csv, as_parquet, with_ids, with_an_index, by_a_function]


@pytest.fixture(params=FORMS, ids=lambda form: form.__name__)
def twice(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A source that has each of 300 rows twice."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    found: dict[str, object] = request.param(tmp_path, rows() * 2)
    return found


def test_equal_rows_are_in_one_split(twice: dict[str, object], tmp_path: Path) -> None:
    prepared = prepare(settings_of(twice, tmp_path), 1)
    found = splits_of(prepared)
    assert len(found) == DIFFERENT
    assert all(len(splits) == 2 and len({*splits}) == 1 for splits in found.values())
    examples = {split: about.examples for split, about in prepared.manifest.splits.items()}
    assert sum(examples.values()) == ROWS
    assert abs(examples["test"] - ROWS / 10) <= 2 and abs(examples["validation"] - ROWS / 10) <= 4
    assert seen_in_training(prepared) == 0
    (note,) = [note for note in prepared.manifest.notes if "equal another one" in note]
    assert "600 of 600" in note and "one split" in note
    assert note in (prepared.folder / "statistics.html").read_text().replace("&#39;", "'")
    assert "customer" not in prepared.manifest.inputs  # its text is another one for each different row


def test_one_of_equal_rows_is_used(twice: dict[str, object], tmp_path: Path) -> None:
    settings = settings_of(twice, tmp_path, duplicates="drop")
    prepared = prepare(settings, 1)
    found = splits_of(prepared)
    assert len(found) == DIFFERENT and all(len(splits) == 1 for splits in found.values())
    assert any("300 are dropped" in note for note in prepared.manifest.notes)
    assert prepare(settings, 1).reused


def test_equal_rows_may_be_divided(twice: dict[str, object], tmp_path: Path) -> None:
    prepared = prepare(settings_of(twice, tmp_path, duplicates="keep"), 1)
    assert any(len({*splits}) > 1 for splits in splits_of(prepared).values())
    assert any("trained on" in note for note in prepared.manifest.notes)


def test_a_test_row_that_the_champion_was_trained_on_is_recognized(tmp_path: Path) -> None:
    """Its model was trained on a part of the rows; the table now has each of them twice."""
    before = prepare(settings_of(as_csv(tmp_path, rows()), tmp_path), 1)
    seen = np.concatenate([of_split(before.folder, before.manifest, split) for split in ("train", "validation")])  # type: ignore[list-item]
    trained = {content for content, splits in splits_of(before).items() if "test" not in splits}
    after = prepare(settings_of(as_csv(tmp_path, rows() * 2), tmp_path), 1)
    test = of_split(after.folder, after.manifest, "test")
    assert test is not None
    known = sum(len(splits) for content, splits in splits_of(after).items() if content in trained and "test" in splits)
    assert int(np.isin(test, seen).sum()) == known > 30


def test_equal_rows_in_splits_of_the_source_are_counted(tmp_path: Path) -> None:
    lines = [[*line, split] for line, split in zip(rows() + rows()[:40], ["train"] * 250 + ["test"] * 90, strict=True)]
    source = {"source": f"csv:{table(tmp_path / 'splits.csv', lines, [*HEADER, 'split'])}"}
    prepared = prepare(settings_of(source, tmp_path), 1)
    assert any("80 of 340 " in note and "80 of them" in note for note in prepared.manifest.notes)
    assert seen_in_training(prepared) == 40
    dropped = prepare(settings_of(source, tmp_path, duplicates="drop"), 1)
    assert dropped.manifest.splits["test"].examples == 90  # which stays complete
    assert all(len(splits) == 1 for splits in splits_of(dropped).values())


def test_groups_decide_before_equal_rows(tmp_path: Path) -> None:
    lines = [[*line, f"g{number % 50}"] for number, line in enumerate(rows() * 2)]
    source = {"source": f"csv:{table(tmp_path / 'groups.csv', lines, [*HEADER, 'owner'])}"}
    prepared = prepare(settings_of(source, tmp_path, group_by="column:owner"), 1)
    assert any(
        "600 of 600 rows equal another one" in note and "data.group_by" in note for note in prepared.manifest.notes
    )
    dropped = prepare(settings_of(source, tmp_path, group_by="column:owner", duplicates="drop"), 1)
    assert all(len(splits) == 1 for splits in splits_of(dropped).values())


def test_few_different_rows_are_observations(tmp_path: Path) -> None:
    """A table of categories, as of passengers by deck and sex: its test split has all kinds of rows."""
    rng = random.Random(0)
    lines = [[rng.choice("ab"), rng.choice("xyz"), rng.choice(["yes", "no"])] for _ in range(500)]
    source = f"csv:{table(tmp_path / 'few.csv', lines, ['sex', 'deck', 'label'])}"
    prepared = prepare(settings_of({"source": source}, tmp_path), 1)
    test = [prepared.folder / shard.file for shard in prepared.manifest.splits["test"].shards]
    kinds = {tuple(tuple(values(each[name])) for name in (b"sex", b"deck", b"label")) for each in read_examples(test)}
    assert len(kinds) == 12
    assert any("too few different ones" in note for note in prepared.manifest.notes)
    assert seen_in_training(prepared) == 0  # they are compared by their numbers, as different rows


@pytest.mark.parametrize("ids", [False, True])
def test_each_row_is_in_the_test_split_of_one_fold(tmp_path: Path, ids: bool) -> None:
    source = (with_ids if ids else as_csv)(tmp_path, rows(60) * 3)
    tested: dict[tuple[object, ...], int] = defaultdict(int)
    for number in range(5):
        prepared = prepare(settings_of(source, tmp_path), 1, fold=Fold(5, number))
        for key, splits in splits_of(prepared).items():
            assert len({*splits}) == 1 and len(splits) == 3
            tested[key] += splits[0] == "test"
    assert {*tested.values()} == {1} and len(tested) == 60


@given(
    sets=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    fold=st.one_of(
        st.none(),
        st.sampled_from([3, 7]).flatmap(lambda of: st.integers(0, of - 1).map(lambda number: Fold(of, number))),
    ),
)
def test_blocks_end_between_sets_of_equal_rows(sets: list[int], fold: Fold | None) -> None:
    group, count, ends = (None, "a"), sum(sets), np.cumsum(sets)
    if count < 7:
        return
    before = blocks(divide({group: count}, SplitFractions(), fold)[group], fold)
    after = whole({group: before}, {group: ends}, fold and fold.of)[group]
    assert [split for split, _ in after] == [split for split, _ in before]
    assert sum(size for _, size in after) == count and all(size >= 0 for _, size in after)
    bounds = {*itertools.accumulate(size for _, size in after)} - {0}
    if len(sets) >= 30:
        assert bounds <= {*ends.tolist()}
        assert {split for split, size in after if size} == {split for split, size in before if size}
