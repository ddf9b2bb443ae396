"""The role bindings match the table in the docs and are no wider than necessary."""

from __future__ import annotations

from pathlib import Path

from slipway.components.setup_access.desired import bindings, desired
from slipway.components.setup_access.settings import AccessSettings

SETTINGS = AccessSettings(
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


def test_the_page_lists_every_binding_and_no_other():
    page = (Path(__file__).parents[3] / "docs" / "permissions.md").read_text().partition("\n\n| name")[0]
    listed = [row.split("|")[2:5] for row in page.splitlines() if row.startswith("|") and "`roles/" in row]
    names = {"project": "the project", "bucket": "the bucket", "repository": "the repository", "key": "the key"}
    accounts = {SETTINGS.account: "the run-as account", BUILDER: "the account of builds"}
    needed = [
        [f" `{b.role}` ", f" {names.get(b.resource.kind) or accounts[b.resource.name]} ", f" {b.reason} "]
        for b in bindings(SETTINGS, 1, BUILDER)
    ]
    assert sorted(listed) == sorted(needed)


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
