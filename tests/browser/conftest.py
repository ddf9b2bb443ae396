"""A browser for the tests of this folder: Chromium, from SLIPWAY_CHROMIUM or the PATH."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("websockets")

from tests.browser.chromium import Browser, Chromium, running


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    named = os.environ.get("SLIPWAY_CHROMIUM")
    program = shutil.which(named or "chromium")
    if program is None:
        if named:
            pytest.fail(f"SLIPWAY_CHROMIUM={named}, and there is no such program: apt-get install chromium")
        pytest.skip("there is no chromium in the PATH: apt-get install chromium, or set SLIPWAY_CHROMIUM")
    with running(program, tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def page(chromium: Browser) -> Iterator[Chromium]:
    with chromium.page() as page:
        yield page
