"""The page that compares hardware: marks show their values and lead to their rows; labels do not overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.chromium import Chromium
from tests.browser.pages import hardware

# Pairs of visible texts of the chart that overlap.
OVERLAPPING = """(() => {
  const texts = [...document.querySelectorAll('.plot svg text')].filter(each => each.checkVisibility());
  const boxes = texts.map(each => [each.textContent, each.getBoundingClientRect()]);
  return boxes.flatMap(([name, box], index) => boxes.slice(index + 1).filter(([, other]) =>
    box.left < other.right && other.left < box.right && box.top + 1 < other.bottom && other.top + 1 < box.bottom
  ).map(([other]) => `${name} and ${other}`));
})()"""
TIPS = "[...document.querySelectorAll('.tip')].filter(tip => tip.checkVisibility()).map(tip => tip.innerText)"
# Tooltips that are not within the window, each shown for itself.
OUTSIDE = """[...document.querySelectorAll('.point')].filter(point => {
  point.focus({focusVisible: true});
  const box = point.querySelector('.tip').getBoundingClientRect();
  return box.width === 0 || box.left < 0 || box.right > innerWidth;
}).map(point => point.ariaLabel)"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hardware(tmp_path_factory.mktemp("hardware") / "page")


@pytest.mark.parametrize("width", [320, 400, 650, 800, 1200])
def test_labels_do_not_overlap_and_tooltips_are_in_the_window(file: Path, page: Chromium, width: int) -> None:
    page.look(width)
    page.open(file.as_uri())
    assert page.run(OVERLAPPING) == []
    assert page.run("[...document.querySelectorAll('.names text')].filter(each => each.checkVisibility()).length") > 2
    assert page.run(OUTSIDE) == []
    assert page.run("document.documentElement.scrollWidth") == width
    sizes = "[...document.querySelectorAll('.point')].map(each => Math.min(each.offsetWidth, each.offsetHeight))"
    assert min(page.run(sizes)) >= 10


def test_the_keyboard_shows_values_and_opens_the_row(file: Path, page: Chromium) -> None:
    page.look(1200)
    page.open(file.as_uri())
    page.run("document.querySelector('.skip').focus()")
    assert page.run(TIPS) == []
    page.press("Tab")
    assert [tip.replace("\xa0", " ").split("\n") for tip in page.run(TIPS)] == [
        ["l4x1", "4.0 h (2.0 to 8.0 h)", "$3.20 ($1.60 to $6.40)", "limited by memory bandwidth"]
    ]
    page.press("Enter")
    assert page.run("document.querySelector(':target th').innerText").startswith("l4x1")


def test_the_chart_can_be_skipped(file: Path, page: Chromium) -> None:
    page.open(file.as_uri())
    page.run("document.querySelector('.skip').focus()")
    page.press("Enter")
    page.press("Tab")
    assert page.run("document.activeElement.className") == "box"


def test_pointing_at_a_mark_shows_its_values_and_no_others(file: Path, page: Chromium) -> None:
    page.look(1200)
    page.open(file.as_uri())
    page.run("document.querySelectorAll('.point')[2].focus({focusVisible: true})")
    box = page.run("document.querySelector('.point').getBoundingClientRect().toJSON()")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + 9, y=box["y"] + 9)
    tips = page.run(TIPS)
    assert len(tips) == 1 and tips[0].startswith("l4x1\n")
