"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import pytest

from tests.end_to_end.workspace import Workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("workspace"))
