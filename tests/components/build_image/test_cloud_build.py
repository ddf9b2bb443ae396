"""Cloud Build builds each image once, from a pinned source, also when calls fail."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slipway.components.build_image.build import BuiltImage, ensure, registry_of, request_of
from slipway.components.build_image.cloud_build import CloudBuild, Source
from slipway.components.build_image.context import Context, make_context
from slipway.components.build_image.images import image_kind
from slipway.components.cloud.connection import Connection
from slipway.components.setup_access.difference import difference
from slipway.components.setup_access.observed import observe
from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from tests.components.setup_access.project import settings as access_settings
from tests.fakes.errors import ServiceError
from tests.fakes.google import COMPUTE_ACCOUNT, NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import grant, let_build, take_away

REPOSITORY = f"{REGION}-docker.pkg.dev/{PROJECT}/slipway"
RESOURCE = f"projects/{PROJECT}/locations/{REGION}/repositories/slipway"
BUCKET = "slipway-test-bucket"
RUNNER = f"builder@{PROJECT}.iam.gserviceaccount.com"
SUBMITTERS_ROLES = (
    "roles/aiplatform.user",
    "roles/artifactregistry.reader",
    "roles/cloudbuild.builds.editor",
    "roles/logging.viewer",
    "roles/storage.objectUser",
)


@pytest.fixture
def project(google: FakeGoogle) -> FakeGoogle:
    """A project with a bucket and a repository, and the roles that builds need."""
    google.storage.add_bucket(BUCKET, google.world.projects[PROJECT], REGION)
    google.repositories.add(RESOURCE)
    google.iam.add_account(RUNNER)
    for account in (COMPUTE_ACCOUNT, RUNNER):
        let_build(google, account, BUCKET, RESOURCE)
    return google


@pytest.fixture
def context(tree: Path) -> Context:
    return make_context(tree, image_kind(tree, "trainer", "cpu"), "docker.io/library/python:3.11-slim-bookworm")


def service(google: FakeGoogle, account: str | None = None, region: str | None = None) -> CloudBuild:
    return CloudBuild(Connection(PROJECT, REGION, google.endpoints), BUCKET, account, region, wait_seconds=0.01)


def ensured(google: FakeGoogle, context: Context, log: io.StringIO, account: str | None = None) -> BuiltImage:
    builder = service(google, account)
    request = request_of(context, REPOSITORY)

    def build() -> str:
        source = builder.upload(context.archive(), context.tag)
        return builder.build(source, request.uri, request.arguments, request.labels, log)

    return ensure(request, registry_of(REPOSITORY, builder.connection), build)


def test_it_is_built_once_and_given_by_digest(project: FakeGoogle, context: Context) -> None:
    log = io.StringIO()
    built = ensured(project, context, log)
    digest = project.images.tags[(RESOURCE, "trainer-cpu", context.tag)]
    assert built == BuiltImage(f"{REPOSITORY}/trainer-cpu@{digest}", reused=False)
    again = ensured(project, context, log)
    assert again == BuiltImage(built.uri, reused=True)
    assert project.world.writes["build"] == 1


def test_the_log_comes_whole_and_its_address_is_named(project: FakeGoogle, context: Context) -> None:
    log = io.StringIO()
    ensured(project, context, log)
    first, *lines = log.getvalue().splitlines()
    assert lines == ["Step 1", "Step 2", "Step 3", "half a line", "PUSH", "DONE"]
    assert f"log at https://console.cloud.google.com/cloud-build/builds;region={REGION}/" in first


def test_a_caller_who_may_not_read_the_log_still_gets_the_image(project: FakeGoogle, context: Context) -> None:
    denied = ServiceError(403, "Permission 'logging.logEntries.list' denied on resource")
    project.faults.plan("entries:list", denied, times=100)
    log = io.StringIO()
    assert ensured(project, context, log).uri.startswith(f"{REPOSITORY}/trainer-cpu@sha256:")
    assert log.getvalue().count("logging.logEntries.list is missing") == 1


def test_a_builder_that_may_not_write_logs_builds_with_a_warning(project: FakeGoogle, context: Context) -> None:
    take_away(project, f"projects/{PROJECT}", "roles/logging.logWriter")
    log = io.StringIO()
    ensured(project, context, log)
    assert "Step" not in log.getvalue()
    assert "grant the Logs Writer (roles/logging.logWriter) role" in log.getvalue()


def test_what_is_asked_for_is_pinned(project: FakeGoogle, context: Context) -> None:
    ensured(project, context, io.StringIO(), account=None)
    (build,) = project.builds.builds.values()
    source = build["source"]["storageSource"]
    content, generation = project.storage.read(BUCKET, source["object"])
    assert (content, generation) == (context.archive(), source["generation"])
    arguments = build["steps"][0]["args"]
    assert build["images"] == [f"{REPOSITORY}/trainer-cpu:{context.tag}"]
    assert f"org.opencontainers.image.version={context.fingerprint}" in arguments
    assert f"org.opencontainers.image.revision={context.revision}" in arguments
    assert "BASE=docker.io/library/python:3.11-slim-bookworm" in arguments


def test_the_same_source_is_uploaded_once(project: FakeGoogle, context: Context) -> None:
    first = service(project).upload(context.archive(), context.tag)
    assert service(project).upload(context.archive(), context.tag) == first
    assert service(project).uploaded(context.tag) == first
    assert service(project).uploaded("another") is None
    assert project.world.writes["object"] == 1


@pytest.mark.parametrize("seed", (1, 2, 3))
def test_with_a_fifth_of_all_calls_failing_it_is_built_once(project: FakeGoogle, context: Context, seed: int) -> None:
    print("seed", seed)
    project.faults._random.seed(seed)
    project.faults.share = 0.2
    built = ensured(project, context, io.StringIO())
    project.faults.share = 0.0
    assert project.faults.struck.total() > 0
    assert project.world.writes["build"] == 1
    assert built.uri.endswith(project.images.tags[(RESOURCE, "trainer-cpu", context.tag)])


def test_a_build_of_the_same_image_that_is_under_way_is_waited_for(project: FakeGoogle, context: Context) -> None:
    uri = request_of(context, REPOSITORY).uri
    someone = service(project)
    source = someone.upload(context.archive(), context.tag)
    someone._create(REGION, someone._request(source, uri, {}, {}))
    built = ensured(project, context, io.StringIO())
    assert built.uri.endswith(project.images.tags[(RESOURCE, "trainer-cpu", context.tag)])
    assert project.world.writes["build"] == 1


def test_of_builds_that_start_at_once_one_pushes_and_all_follow_it(
    project: FakeGoogle, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, create = threading.Barrier(2), CloudBuild._create

    def created(self: CloudBuild, location: str, request: dict[str, Any]) -> dict[str, Any]:
        looked.wait(30)  # until both have seen that there is none
        return create(self, location, request)

    monkeypatch.setattr(CloudBuild, "_create", created)
    with ThreadPoolExecutor(2) as pool:
        built = list(pool.map(lambda _: ensured(project, context, io.StringIO()).uri, range(2)))
    assert built[0] == built[1]
    assert sorted(build["status"] for build in project.builds.builds.values()) == ["CANCELLED", "SUCCESS"]


def test_a_builder_that_may_not_push_ends_with_the_role_it_needs(project: FakeGoogle, context: Context) -> None:
    project.world.policies.pop(RESOURCE)
    with pytest.raises(UserError, match="uploadArtifacts") as error:
        ensured(project, context, io.StringIO())
    assert error.value.fix == (
        f"gcloud artifacts repositories add-iam-policy-binding slipway --project={PROJECT} --location={REGION} "
        f"--member=serviceAccount:{COMPUTE_ACCOUNT} --role=roles/artifactregistry.writer"
    )
    assert (RESOURCE, "trainer-cpu", context.tag) not in project.images.tags


def test_a_build_that_fails_says_why_and_where_its_log_is(project: FakeGoogle, context: Context) -> None:
    builder = service(project)
    source = Source(bucket=BUCKET, name=f"builds/sources/{context.tag}.tar.gz", generation="1")
    project.storage.write(BUCKET, source.name, context.archive())
    request = request_of(context, REPOSITORY)
    with pytest.raises(WorkFailed, match=r"FAILURE: No such object.*#1 \(https://console"):
        builder.build(source, request.uri, {}, {}, io.StringIO())


def test_builds_run_as_the_account_that_is_set(project: FakeGoogle, context: Context) -> None:
    ensured(project, context, io.StringIO(), account=RUNNER)
    (build,) = project.builds.builds.values()
    assert build["serviceAccount"] == f"projects/{PROJECT}/serviceAccounts/{RUNNER}"
    assert build["options"]["logging"] == "CLOUD_LOGGING_ONLY"


def as_submitter(google: FakeGoogle, *roles: str) -> None:
    """The caller no longer owns the project, and has only the roles of a submitter."""
    google.world.owners.clear()
    for role in roles or SUBMITTERS_ROLES:
        grant(google, f"projects/{PROJECT}", role, SUBMITTER)


def act_as(google: FakeGoogle) -> None:
    as_submitter(google)


def start_builds(google: FakeGoogle) -> None:
    """The caller may list builds, as roles/cloudbuild.builds.viewer allows, and not create one."""
    denied = ServiceError(403, "The caller does not have permission")
    google.faults.plan(f"POST /v1/projects/{PROJECT}/locations/{REGION}/builds", denied)


def without_compute(google: FakeGoogle) -> None:
    google.world.projects[PROJECT].services.discard("compute.googleapis.com")
    google.world.accounts.pop(COMPUTE_ACCOUNT)


def without_default(google: FakeGoogle) -> None:
    google.builds.default = "none"


def disabled(google: FakeGoogle) -> None:
    google.world.accounts[COMPUTE_ACCOUNT]["disabled"] = True


def without_api(google: FakeGoogle) -> None:
    google.world.projects[PROJECT].services.discard("cloudbuild.googleapis.com")


def without_source_rights(google: FakeGoogle) -> None:
    take_away(google, f"buckets/{BUCKET}", "roles/storage.objectViewer")


def without_repository_rights(google: FakeGoogle) -> None:
    take_away(google, RESOURCE, "roles/artifactregistry.writer")


def without_bucket(google: FakeGoogle) -> None:
    google.world.buckets.clear()


def without_upload_rights(google: FakeGoogle) -> None:
    as_submitter(google, "roles/cloudbuild.builds.editor", "roles/artifactregistry.reader")


def without_reader(google: FakeGoogle) -> None:
    as_submitter(google, "roles/cloudbuild.builds.editor", "roles/storage.objectUser")


@pytest.mark.parametrize(
    ("damage", "says", "command"),
    [
        (act_as, f"builds that run as {COMPUTE_ACCOUNT}: iam.serviceAccounts.actAs", "iam service-accounts add-iam"),
        (start_builds, "cloudbuild.builds.create is missing", "--role=roles/cloudbuild.builds.editor"),
        (without_compute, "the Compute Engine API is off", "gcloud services enable compute.googleapis.com"),
        (without_default, "no default account for builds", "--set vertex.build.service_account="),
        (disabled, "is disabled", "gcloud iam service-accounts enable"),
        (without_api, "the API cloudbuild.googleapis.com is not enabled", "slipway setup --apply"),
        (without_source_rights, "storage.objects.get", f"buckets add-iam-policy-binding gs://{BUCKET}"),
        (without_repository_rights, "uploadArtifacts", "artifacts repositories add-iam-policy-binding slipway"),
        (without_bucket, "Could not upload the source", "slipway setup --apply"),
        (without_upload_rights, "storage.objects.create", "--role=roles/storage.objectUser"),
        (without_reader, "downloadArtifacts", "--role=roles/artifactregistry.reader"),
    ],
)
def test_a_refusal_says_what_is_missing_and_recommends_setup_only_where_setup_has_work(
    project: FakeGoogle, context: Context, damage: Callable[[FakeGoogle], None], says: str, command: str
) -> None:
    damage(project)
    with pytest.raises(UserError, match=re.escape(says)) as error:
        ensured(project, context, io.StringIO())
    fix = str(error.value.fix)
    assert command in fix
    if fix.startswith("slipway setup"):
        project.world.owners.add(SUBMITTER)
        asked = access_settings(project, bucket=BUCKET, repository=RESOURCE)
        assert any(line.status == "missing" for line in difference(asked, observe(asked)))


def test_the_command_for_a_refusal_is_enough(project: FakeGoogle, context: Context) -> None:
    as_submitter(project)
    with pytest.raises(UserError, match="may not start builds that run as"):
        ensured(project, context, io.StringIO())
    resource = f"projects/{PROJECT}/serviceAccounts/{COMPUTE_ACCOUNT}"
    grant(project, resource, "roles/iam.serviceAccountUser", SUBMITTER)
    assert not ensured(project, context, io.StringIO()).reused


def test_a_build_that_the_region_does_not_allow_runs_in_the_global_location(
    project: FakeGoogle, context: Context
) -> None:
    project.builds.restricted = True
    log = io.StringIO()
    ensured(project, context, log)
    (build,) = project.builds.builds.values()
    assert "/locations/global/" in build["name"]
    assert f"does not allow this project to run builds in {REGION}" in log.getvalue()
    assert "DONE" in log.getvalue()


def test_a_region_without_quota_for_builds_counts_as_closed(project: FakeGoogle, context: Context) -> None:
    words = "failed precondition: no concurrent builds quota available to create builds"
    refusal = ServiceError(400, words, reason="FAILED_PRECONDITION")
    project.faults.plan(f"POST /v1/projects/{PROJECT}/locations/{REGION}/builds", refusal)
    ensured(project, context, io.StringIO())
    (build,) = project.builds.builds.values()
    assert "/locations/global/" in build["name"]


def test_a_region_that_is_set_is_used_or_refused(project: FakeGoogle, context: Context) -> None:
    project.builds.restricted = True
    request = request_of(context, REPOSITORY)
    for region in ("europe-west1", "europe-west3"):
        builder = service(project, region=region)
        source = builder.upload(context.archive(), context.tag)
        if region == "europe-west1":
            builder.build(source, request.uri, {}, {}, io.StringIO())
            assert "/locations/europe-west1/" in next(iter(project.builds.builds.values()))["name"]
            continue
        with pytest.raises(UserError, match="europe-west3 is not one of them") as error:
            builder.build(source, request.uri, {}, {}, io.StringIO())
        assert error.value.setting == "vertex.build.region"
        assert error.value.fix == "--set vertex.build.region=global"
        assert "europe-west1" in str(error.value.allowed)


def test_the_account_of_builds_is_asked_for(project: FakeGoogle) -> None:
    assert service(project).account() == COMPUTE_ACCOUNT
    project.builds.default = "legacy"
    assert service(project).account() == f"{NUMBER}@cloudbuild.gserviceaccount.com"
    assert service(project, RUNNER).account() == RUNNER
