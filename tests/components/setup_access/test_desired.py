"""The role bindings match the table in the docs and are no wider than necessary."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.components.setup_access.desired import bindings, desired
from slipway.components.setup_access.requirements import REQUIREMENTS, Access
from slipway.components.setup_access.settings import AccessSettings
from tests.docs.permissions import pages

SETTINGS = AccessSettings(
    section="vertex",
    vertex_jobs=True,
    project="p",
    region="europe-west4",
    bucket="b",
    repository="projects/p/locations/europe-west4/repositories/r",
    account="runner@p.iam.gserviceaccount.com",
    submitters=("group:team@example.com",),
    tpu=True,
    dataflow=True,
    encryption_key="projects/p/locations/europe-west4/keyRings/k/cryptoKeys/c",
)
BUILDER = "1-compute@developer.gserviceaccount.com"
WIDE = ("roles/owner", "roles/editor", "admin", "Admin")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_pages_list_every_requirement_and_no_other(page: Path):
    assert pages()[page] in page.read_text(), "to write the tables: python -m tests.docs.permissions"


def test_every_requirement_is_on_a_page():
    tables = "".join(pages().values())
    assert all(f"| `{row.role}` | " in tables and f" | {row.reason}" in tables for row in REQUIREMENTS)


def test_every_requirement_names_a_principal_a_place_and_a_condition():
    access = Access(SETTINGS, 1, BUILDER)
    for row in REQUIREMENTS:
        assert row.principal in access.members()
        assert row.place in access.resources()
        assert row.when in access.conditions()


def test_nothing_is_wide():
    for binding in bindings(SETTINGS, 1, BUILDER):
        assert not any(part in binding.role for part in WIDE)
        if binding.role.startswith(("roles/storage.", "roles/artifactregistry.", "roles/iam.")):
            assert binding.resource.kind != "project"


def test_a_builder_of_ones_own_is_made_and_submitters_may_use_it():
    own = SETTINGS.model_copy(update={"builder": "builder@p.iam.gserviceaccount.com"})
    items = {str(item) for item in desired(own, 1, own.builder)}
    assert "builder@p.iam.gserviceaccount.com" in items
    assert "roles/iam.serviceAccountUser on builder@p.iam.gserviceaccount.com for team@example.com" in items


def test_other_buckets_are_written_or_only_read():
    more = SETTINGS.model_copy(update={"stores": ("prepared",), "sources": ("raw",), "submitters": ()})
    roles = {(str(b.resource), b.role) for b in bindings(more, 1, None) if more.account in b.member}
    assert {("gs://prepared", "roles/storage.objectUser"), ("gs://raw", "roles/storage.objectViewer")} <= roles
