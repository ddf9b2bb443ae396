"""A project as Google creates it."""

from __future__ import annotations

import pytest

from tests.fakes.google import COMPUTE_ACCOUNT, PROJECT, FakeGoogle


@pytest.fixture
def new_project(google: FakeGoogle) -> FakeGoogle:
    """A project as Google makes it: nothing is enabled but what is enabled everywhere."""
    google.world.projects[PROJECT].services = {"serviceusage.googleapis.com", "storage.googleapis.com"}
    google.world.accounts.pop(COMPUTE_ACCOUNT)
    return google
