"""The site that `make docs` builds from docs/: every width, search, and links between pages."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium

SITE = Path(__file__).parents[2] / "build" / "site"

pytestmark = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="there is no site: make docs")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The URL of a server of the site."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["index", "commands", "configuration", "when-a-run-fails"])
def test_a_page_is_legible_at_every_width(page: Chromium, address: str, name: str, dark: bool) -> None:
    for width in (400, 1200):
        page.look(width, dark=dark)
        page.open(f"{address}{name}.html")
        assert page.run("document.documentElement.scrollWidth") == width
    assert page.console == []


def test_the_search_finds_a_setting(page: Chromium, address: str) -> None:
    page.look(1200)
    page.open(address)
    page.run("document.querySelector('.md-search__input').focus()")
    page.type("class_weights")
    page.wait("document.querySelectorAll('.md-search-result__item').length > 0")
    assert "configuration.html" in page.run(
        "[...document.querySelectorAll('.md-search-result__link')].map(link => link.href).join(' ')"
    )


def test_links_of_the_readme_lead_to_pages(page: Chromium, address: str) -> None:
    page.open(address)
    links = page.run("[...document.querySelectorAll('article a[href]')].map(link => link.href)")
    names = [link.partition("#")[0].removeprefix(address) for link in links if link.startswith(address)]
    assert len(names) > 30
    assert [name for name in names if not (SITE / (name or "index.html")).is_file()] == []
