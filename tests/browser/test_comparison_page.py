"""The page that compares runs: legible at every width, in light and dark, also with a thousand runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.pipelines.comparison.page import render
from tests.browser.checks import check_with_axe
from tests.browser.chromium import Chromium
from tests.pipelines.comparison.test_comparison import run


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_is_legible_at_every_width(page: Chromium, tmp_path: Path, dark: bool) -> None:
    rows = [run(tmp_path, number, 10.0**-number, "adam", 0.9 + number / 100) for number in range(4)]
    (tmp_path / "comparison.html").write_text(render(rows * 250))
    for width in (400, 1200):
        page.look(width, dark=dark)
        page.open((tmp_path / "comparison.html").as_uri())
        assert page.run("document.documentElement.scrollWidth") == width
        assert page.run("document.querySelectorAll('.box').length") == 2 * 3
        page.says("900 more runs")
        hidden = "[...document.querySelectorAll('details tr')].filter(row => row.checkVisibility()).length"
        assert page.run(hidden) == 0
        page.run("document.querySelector('details').open = true")
        assert page.run(hidden) == 901
    assert page.console == []
    assert page.requests == []


def test_axe_has_nothing_to_say_about_it(page: Chromium, tmp_path: Path) -> None:
    rows = [run(tmp_path, number, 10.0**-number, "adam", 0.9 + number / 100) for number in range(4)]
    (tmp_path / "comparison.html").write_text(render(rows))
    page.open((tmp_path / "comparison.html").as_uri())
    check_with_axe(page)
