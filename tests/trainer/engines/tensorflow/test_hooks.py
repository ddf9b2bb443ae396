"""The tests of the project's own functions, on the engine tensorflow."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines.conftest import HERE, Bench
from tests.engines.test_hooks import *  # noqa: F403
from tests.trainer.conftest import NETWORKS

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.fixture
def bench(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for folder in (NETWORKS, HERE / "networks"):
        monkeypatch.syspath_prepend(str(folder))
    return Bench(tiny, "tensorflow")
