"""Cross-validation: each example is in the test split of one fold, stratified, and groups are kept together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.components.prepare_data.encoding.messages import features_of, values
from slipway.components.prepare_data.encoding.records import read_records
from slipway.components.prepare_data.listing.split import Fold
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.settings import DataSettings

FOLDS = 3
Make = Callable[..., DataSettings]


def keys(prepared: Prepared, split: str) -> list[str]:
    """The keys of a split's examples."""
    found = []
    for shard in prepared.manifest.splits[split].shards:
        with (prepared.folder / shard.file).open("rb") as file:
            found += [values(features_of(message)[b"key"])[0].decode() for message in read_records(file)]
    return found


def write_table(path: Path) -> Path:
    rows = (f"{row}.5,owner {row // 3},{'ab'[row // 3 % 2]}\n" for row in range(180))
    path.write_text("x,owner,label\n" + "".join(rows))
    return path


@pytest.mark.parametrize("group_by", [None, "a group"])
@pytest.mark.parametrize("source", ["images", "table"])
def test_the_test_splits_of_all_folds_are_the_examples(
    tmp_path: Path, make_folder: Callable[..., Path], make_settings: Make, source: str, group_by: str | None
) -> None:
    if source == "images":
        name, column = f"images:{make_folder({'cat': 60, 'dog': 60})}", r"(\w+/image \d)"
    else:
        name, column = f"csv:{write_table(tmp_path / 'rows.csv')}", "column:owner"
    tested: list[str] = []
    for number in range(FOLDS):
        settings = make_settings(name, group_by=column if group_by else None)
        prepared = prepare(settings, 1, fold=Fold(FOLDS, number))
        splits = {split: keys(prepared, split) for split in ("train", "validation", "test")}
        every = [key for found in splits.values() for key in found]
        assert len(every) == len(set(every)) == (120 if source == "images" else 180)
        if group_by is None:
            assert len(set(Counter(prepared.manifest.splits["test"].classes).values())) == 1
            assert abs(len(splits["validation"]) - (len(every) - len(splits["test"])) / 9) <= 2
        elif source == "images":
            tested_groups, others = (
                {key.rpartition("/")[0] + key.rpartition(" ")[2][0] for split in names for key in splits[split]}
                for names in (["test"], ["train", "validation"])
            )
            assert tested_groups and not tested_groups & others
        tested += splits["test"]
    assert sorted(tested) == sorted(every)
