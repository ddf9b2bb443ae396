"""Cloud Build builds each image once, from a pinned source, also when calls fail."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.components.build_image.build import BuiltImage, build_in_cloud, ensure, registry_of, request_of
from slipway.components.build_image.cloud_build import CloudBuild, Source
from slipway.components.build_image.context import Context, make_context
from slipway.components.build_image.images import image_kind
from slipway.components.cloud.connection import Connection
from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from tests.fakes.google import NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle

REPOSITORY = f"{REGION}-docker.pkg.dev/{PROJECT}/slipway"
RESOURCE = f"projects/{PROJECT}/locations/{REGION}/repositories/slipway"
BUCKET = "slipway-test-bucket"
BUILDER = f"{NUMBER}-compute@developer.gserviceaccount.com"
RUNNER = f"builder@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture
def project(google: FakeGoogle) -> FakeGoogle:
    """A project with a bucket and a repository, into which Cloud Build's account may push."""
    google.storage.add_bucket(BUCKET, google.world.projects[PROJECT], REGION)
    google.repositories.add(RESOURCE)
    binding = {"role": "roles/artifactregistry.writer", "members": [f"serviceAccount:{BUILDER}"]}
    google.world.set_policy(RESOURCE, {"bindings": [binding]})
    return google


@pytest.fixture
def context(tree: Path) -> Context:
    return make_context(tree, image_kind(tree, "trainer", "cpu"), "docker.io/library/python:3.11-slim-bookworm")


def service(google: FakeGoogle, account: str | None = None) -> CloudBuild:
    return CloudBuild(Connection(PROJECT, REGION, google.endpoints), BUCKET, account, wait_seconds=0.01)


def ensured(google: FakeGoogle, context: Context, log: io.StringIO, account: str | None = None) -> BuiltImage:
    builder = service(google, account)
    request = request_of(context, REPOSITORY)
    build = build_in_cloud(builder, lambda: builder.upload(context.archive(), context.tag), log)
    return ensure(request, registry_of(REPOSITORY, builder.connection), build)


def test_it_is_built_once_and_given_by_digest(project: FakeGoogle, context: Context) -> None:
    log = io.StringIO()
    built = ensured(project, context, log)
    digest = project.images.tags[(RESOURCE, "trainer-cpu", context.tag)]
    assert built == BuiltImage(f"{REPOSITORY}/trainer-cpu@{digest}", reused=False)
    again = ensured(project, context, log)
    assert again == BuiltImage(built.uri, reused=True)
    assert project.world.writes["build"] == 1


def test_the_log_comes_whole_and_is_kept(project: FakeGoogle, context: Context) -> None:
    log = io.StringIO()
    ensured(project, context, log)
    first, *lines = log.getvalue().splitlines()
    assert lines == ["Step 1", "Step 2", "Step 3", "half a line", "PUSH", "DONE"]
    kept = first.rpartition(" ")[2]
    assert kept.startswith(f"gs://{BUCKET}/builds/logs/log-")
    content, _ = project.storage.read(BUCKET, kept.removeprefix(f"gs://{BUCKET}/"))
    assert content.decode().splitlines() == lines


def test_what_is_asked_for_is_pinned(project: FakeGoogle, context: Context) -> None:
    ensured(project, context, io.StringIO(), account=None)
    (build,) = project.builds.builds.values()
    source = build["source"]["storageSource"]
    content, generation = project.storage.read(BUCKET, source["object"])
    assert (content, generation) == (context.archive(), source["generation"])
    arguments = build["steps"][0]["args"]
    assert build["images"] == [f"{REPOSITORY}/trainer-cpu:{context.tag}"]
    assert f"org.opencontainers.image.version={context.fingerprint()}" in arguments
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
    someone._create(someone._request(source, uri, {}, {}))
    built = ensured(project, context, io.StringIO())
    assert built.uri.endswith(project.images.tags[(RESOURCE, "trainer-cpu", context.tag)])
    assert project.world.writes["build"] == 1


def test_a_builder_that_may_not_push_ends_with_the_role_it_needs(project: FakeGoogle, context: Context) -> None:
    project.world.policies.pop(RESOURCE)
    with pytest.raises(UserError, match="uploadArtifacts") as error:
        ensured(project, context, io.StringIO())
    assert BUILDER in str(error.value.allowed)
    assert "roles/artifactregistry.writer" in str(error.value.allowed)
    assert (RESOURCE, "trainer-cpu", context.tag) not in project.images.tags


def test_a_build_that_fails_says_why_and_where_its_log_is(project: FakeGoogle, context: Context) -> None:
    builder = service(project)
    source = Source(bucket=BUCKET, name=f"builds/sources/{context.tag}.tar.gz", generation="1")
    project.storage.write(BUCKET, source.name, context.archive())
    request = request_of(context, REPOSITORY)
    with pytest.raises(WorkFailed, match=r"FAILURE: No such object.*#1 \(gs://slipway-test-bucket/builds/logs/log-"):
        builder.build(source, request.uri, {}, {}, io.StringIO())


def test_builds_run_as_the_account_that_is_set(project: FakeGoogle, context: Context) -> None:
    binding = {"role": "roles/artifactregistry.writer", "members": [f"serviceAccount:{RUNNER}"]}
    project.world.set_policy(RESOURCE, {"bindings": [binding]})
    ensured(project, context, io.StringIO(), account=RUNNER)
    (build,) = project.builds.builds.values()
    assert build["serviceAccount"] == f"projects/{PROJECT}/serviceAccounts/{RUNNER}"
    assert build["logsBucket"] == f"gs://{BUCKET}/builds/logs"


def test_without_the_right_to_act_as_it_nothing_is_built(project: FakeGoogle, context: Context) -> None:
    project.world.owners.clear()
    member = f"serviceAccount:{SUBMITTER}"
    roles = ("roles/cloudbuild.builds.editor", "roles/storage.objectUser", "roles/artifactregistry.reader")
    bindings = [{"role": role, "members": [member]} for role in roles]
    project.world.set_policy(f"projects/{PROJECT}", {"bindings": bindings})
    with pytest.raises(UserError, match="act as service account") as error:
        ensured(project, context, io.StringIO(), account=RUNNER)
    assert error.value.setting == "vertex.build.service_account"
    assert project.world.writes["build"] == 0


def test_the_service_itself_refuses_an_account_without_a_place_for_logs(
    project: FakeGoogle, context: Context, write: Callable[[str, str], Path]
) -> None:
    builder = service(project, RUNNER)
    request = builder._request(Source(bucket=BUCKET, name="x", generation="1"), f"{REPOSITORY}/x:1", {}, {})
    del request["logsBucket"], request["options"]
    with pytest.raises(Exception, match=r"must either \(a\) specify 'build.logs_bucket'"):
        builder._create(request)
