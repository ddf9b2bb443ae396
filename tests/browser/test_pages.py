"""Reports and statistics pages in a browser: nothing is cut, alike or pale at any width, on any page."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.checks import CUT, FOLDED, PALE, SAME_NAMES, UNNAMED, check_with_axe
from tests.browser.chromium import Chromium
from tests.browser.pages import OTHERS, REPORTS, STATISTICS, pages

__all__ = ["pages"]
NAMES = [*REPORTS, *(f"statistics: {name}" for name in STATISTICS), *OTHERS]
TALLEST, WIDTHS = 20_000, (320, 360, 600, 650, 800, 950, 1200)
A4 = (718, 1047)  # pixels of 190 x 277 mm, at 96 to the inch
HEAVY = ("two_hundred", "statistics: photographs", "statistics: sixty classes")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_at_every_width_and_on_paper(name: str, pages: dict[str, Path], page: Chromium) -> None:
    weight = pages[name].stat().st_size
    assert weight < (600_000 if name in HEAVY else 200_000)
    page.look(1200)
    page.open(pages[name].as_uri())
    assert page.run("document.querySelector('h1').innerText.length") > 0
    for width in WIDTHS:
        page.look(width)
        assert (width, page.run(CUT)) == (width, [])
        assert (width, page.run(SAME_NAMES)) == (width, [])
        assert page.run("document.documentElement.scrollHeight") < TALLEST
    page.look(A4[0], A4[1], paper=True)
    assert ("A4", page.run(CUT)) == ("A4", [])
    assert page.run(FOLDED) == [], "a fold cannot be opened on paper"
    assert page.requests == []
    assert page.console == []


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_legible_and_named_for_everyone(name: str, pages: dict[str, Path], page: Chromium) -> None:
    page.look(1200)
    page.open(pages[name].as_uri())
    assert page.run(UNNAMED) == []
    for dark in (False, True):
        page.look(1200, dark=dark)
        assert page.run(PALE) == []


@pytest.mark.parametrize("name", NAMES)
def test_axe_has_nothing_to_say(name: str, pages: dict[str, Path], page: Chromium) -> None:
    page.open(pages[name].as_uri())
    check_with_axe(page)


def test_the_rejecting_reason_comes_first_and_is_marked(pages: dict[str, Path], page: Chromium) -> None:
    page.open(pages["long"].as_uri())
    assert page.run("document.title").startswith("digits-20261125-101500-0a1b: reject, macro F1 0.")
    first = page.run("document.querySelector('.notes.reject li').innerText")
    assert "not significant" in first or "is worse" in first
    assert page.run("getComputedStyle(document.querySelector('.failed'), '::before').content") == '"✗ "'


def test_worst_predictions_of_many_labels_are_what_differs(pages: dict[str, Path], page: Chromium) -> None:
    page.open(pages["labels"].as_uri())
    assert page.text(".worst thead").split() == ["Example", "Missing", "Wrong", "Loss"]
    cells = page.run("[...document.querySelectorAll('.worst tbody tr:first-child td')].map(each => each.innerText)")
    assert all(0 < len(cell.split(", ")) <= 13 for cell in cells)


def test_values_of_charts_are_a_table_that_the_keyboard_opens(pages: dict[str, Path], page: Chromium) -> None:
    page.open(pages["ten"].as_uri())
    page.run("document.querySelector('figure summary').focus()")
    page.press("Enter")
    assert page.run("document.querySelector('figure details').open")
    page.says("validation", "figure table")
    titles = page.run("[...document.querySelectorAll('svg title')].map(each => each.textContent)")
    assert any(each.startswith("validation: step ") for each in titles)
    assert any(each.startswith("7: false positive rate ") for each in titles)


def test_links_lead_to_sections(pages: dict[str, Path], page: Chromium) -> None:
    page.open(pages["ten"].as_uri())
    targets = page.run("[...document.querySelectorAll('nav a')].map(each => each.getAttribute('href'))")
    assert "#metrics" in targets and "#confusion-matrix" in targets
    assert page.run("[...document.querySelectorAll('nav a')].every(each => document.querySelector(each.hash))")


def test_a_custom_table_is_limited_and_has_few_digits(pages: dict[str, Path], page: Chromium) -> None:
    page.open(pages["custom"].as_uri())
    page.says("150 more.")
    page.says("−0.9232")
    assert page.run("document.querySelectorAll('#errors-by-store ~ .box tbody tr').length") == 50
