"""The columns on the statistics page: histograms and statistics of every split, recomputed from the source."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.prepare_data.encoding import records as records_module
from slipway.components.prepare_data.prepare import Prepared, prepare
from slipway.components.prepare_data.publishing import columns as module
from slipway.components.prepare_data.publishing.columns import HEIGHT, outline
from slipway.components.prepare_data.settings import DataSettings
from tests.components.prepare_data.test_tasks import records


@pytest.fixture
def prepared(make_settings: Callable[..., DataSettings], tmp_path: Path) -> Prepared:
    generator = np.random.default_rng(5)
    lines = ["size,constant,city,price"]
    for _ in range(200):
        size = "" if generator.random() < 0.1 else f"{generator.normal(50, 9):.3f}"
        lines.append(f"{size},7,{generator.choice(['Bern', 'Genf', 'Zug', ''])},{generator.lognormal(12, 1):.2f}")
    table = tmp_path / "homes.csv"
    table.write_text("\n".join(lines) + "\n")
    return prepare(make_settings(f"csv:{table}", label="price"), 1, task="regression")


def heights(path: str) -> list[float]:
    """The heights of the bars of an outline."""
    found, height = [], 0.0
    for kind, value in re.findall(r"([vh])(-?[\d.e-]+)", path):
        if kind == "v":
            height -= float(value)
        else:
            found.append(height)
    return found


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any))
def test_an_outline_has_the_heights_of_the_counts(counts: list[int]) -> None:
    expected = HEIGHT * np.array(counts) / max(counts)
    found = np.array(heights(outline(counts)))
    np.testing.assert_allclose(found, expected, atol=0.5)
    assert ((found > 0.05) == (np.array(counts) > 0)).all(), "the rarest value is visible, too"


def rows_of(page: str) -> dict[str, list[tuple[str, str, str]]]:
    """The title, the outline and the text of each split by column."""
    found = {}
    for row in re.findall(
        r'<tr><th scope="row" class="break">([^<]*)<small>(.*?)</small></th>(.*?)</tr>', page, re.DOTALL
    ):
        cells = re.findall(r"<title>(.*?)</title><path d=\"(.*?)\"/></svg><small>(.*?)</small>", row[2], re.DOTALL)
        found[row[0]] = [("kind", row[1], ""), *cells]
    return found


def test_histograms_missing_and_distinct_values_are_those_of_each_split(prepared: Prepared) -> None:
    rows = rows_of((prepared.folder / "statistics.html").read_text())
    assert list(rows) == ["price", "size", "constant", "city"]
    splits = {name: records(prepared, name).values() for name in prepared.manifest.splits}
    sizes = {name: np.array([each["size"][0] for each in found]) for name, found in splits.items()}
    known = np.concatenate(list(sizes.values()))
    edges = np.histogram_bin_edges(known[np.isfinite(known)], 12)
    different = len(np.unique(known[np.isfinite(known)]))
    assert rows["size"][0][1] == f"number, {different} different"
    for (title, path, text), values in zip(rows["size"][1:], sizes.values(), strict=True):
        given = values[np.isfinite(values)]
        counts = np.histogram(given, edges)[0]
        assert [int(each) for each in re.findall(r": (\d+)", title)] == counts[counts > 0].tolist()
        np.testing.assert_allclose(heights(path), HEIGHT * counts / counts.max(), atol=0.5)
        assert f"mean {given.mean():.2f}" in text
        missing = int(np.isnan(values).sum())
        assert (f"{missing} missing" in text) == (missing > 0)
    assert rows["constant"][1][2].startswith("always 7")
    cities = [each["city"][0].decode() for each in splits["train"]]
    assert f"{cities.count('')} missing" in rows["city"][1][2]
    assert f"Bern: {cities.count('Bern')}" in rows["city"][1][0]


def test_histograms_of_many_examples_are_those_of_the_first_ones(
    make_settings: Callable[..., DataSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_EXAMPLES", 20)
    table = tmp_path / "many.csv"
    table.write_text("measure,label\n" + "".join(f"{index},{index % 2}\n" for index in range(100)))
    found = prepare(make_settings(f"csv:{table}"), 1)
    page = (found.folder / "statistics.html").read_text()
    assert "they are those of the first 20 examples of a split" in page
    assert "at least 40 different" in page
    assert sum(int(each) for each in re.findall(r": (\d+)", rows_of(page)["measure"][1][0])) == 20


def test_histograms_of_large_examples_are_those_of_fewer(
    make_settings: Callable[..., DataSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of texts of megabytes would use up the memory."""
    monkeypatch.setattr(records_module, "SAMPLE_BYTES", 95_000)
    table = tmp_path / "large.csv"
    rows = (f"{index % 9} {'x' * 10_000},{index},{index % 2}\n" for index in range(100))
    table.write_text("note,measure,label\n" + "".join(rows))
    found = prepare(make_settings(f"csv:{table}"), 1)
    assert "they are those of the first 10 examples of a split" in (found.folder / "statistics.html").read_text()
