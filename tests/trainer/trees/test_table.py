"""A table's columns for trees: categories as positions, gaps as NaN, and the groups of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.trainer.trees import table

pytestmark = pytest.mark.usefixtures("tensorflow")
VISITS = 120


def visits(folder: Path, group_by: str | None, person: str = "P{:02}") -> table.Table:
    """Read the training split of visits, of which each person has several."""
    lines = ["person,age,city,label"]
    for number in range(VISITS):
        age = "" if number % 7 == 0 else number % 40
        lines.append(f"{person.format(number % 24)},{age},{'Bern' if number % 3 else 'Genf'},{'ab'[number % 2]}")
    (folder / "visits.csv").write_text("\n".join(lines) + "\n")
    settings = DataSettings(
        source=f"csv:{folder}/visits.csv", inputs=["age", "city"], group_by=group_by, store=str(folder / "store"),
        duplicates="keep",
    )  # fmt: skip
    prepared = prepare(settings, 1)
    files = [prepared.folder / shard.file for shard in prepared.manifest.splits["train"].shards]
    return table.read(files, prepared.manifest)


@pytest.mark.parametrize("person", ["P{:02}", "{}.5"])
def test_rows_have_the_groups_of_a_column(tmp_path: Path, person: str) -> None:
    rows = visits(tmp_path, "column:person", person)
    assert rows.groups is not None
    assert len(np.unique(rows.groups)) == rows.groups.max() + 1 < 24
    assert (np.bincount(rows.groups) == VISITS // 24).all()
    assert (rows.x.shape[1], rows.categories, rows.classes) == (2, [1], 2)
    assert set(np.unique(rows.x[:, 1])) == {1.0, 2.0}
    assert 0 < np.isnan(rows.x[:, 0]).mean() < 0.3


def test_without_group_by_there_are_no_groups(tmp_path: Path) -> None:
    assert visits(tmp_path, None).groups is None


def test_images_texts_and_several_labels_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "about,age,label\n" + "".join(f"the house {i} is big,{i},{'ab'[i % 2]}\n" for i in range(80))
    )
    settings = DataSettings(source=f"csv:{tmp_path}/t.csv", inputs=["about", "age"], store=str(tmp_path / "store"))
    with pytest.raises(UserError, match="about is text") as error:
        table.check(prepare(settings, 1).manifest)
    assert error.value.fix == "leave about out of data.inputs"
    (tmp_path / "m.csv").write_text("age,label\n" + "".join(f"{i},a|b\n{i + 0.5},a\n" for i in range(40)))
    settings = DataSettings(source=f"csv:{tmp_path}/m.csv", store=str(tmp_path / "store"))
    with pytest.raises(UserError, match="one label for each row"):
        table.check(prepare(settings, 1, task="multilabel").manifest)
