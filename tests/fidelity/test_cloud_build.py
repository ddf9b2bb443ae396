"""What Cloud Build asks of a build, its account and its caller, called by Google's client."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from tests.fakes.google import COMPUTE_ACCOUNT, NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import grant, let_build

BUCKET = "slipway-test-bucket"
REPOSITORY = f"projects/{PROJECT}/locations/{REGION}/repositories/slipway"
IMAGE = f"{REGION}-docker.pkg.dev/{PROJECT}/slipway/steps:1"
OWN = f"builder@{PROJECT}.iam.gserviceaccount.com"
LEGACY = f"{NUMBER}@cloudbuild.gserviceaccount.com"
SOURCE = "sources/context.tar.gz"


@pytest.fixture
def project(google: FakeGoogle) -> FakeGoogle:
    """A project with a source in a bucket, a repository, and accounts that may build."""
    import gzip
    import io
    import tarfile

    google.storage.add_bucket(BUCKET, google.world.projects[PROJECT], REGION)
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("Dockerfile"), io.BytesIO())
    google.storage.write(BUCKET, SOURCE, gzip.compress(plain.getvalue()))
    google.repositories.add(REPOSITORY)
    google.iam.add_account(OWN)
    for account in (COMPUTE_ACCOUNT, LEGACY, OWN):
        let_build(google, account, BUCKET, REPOSITORY)
    google.builds.looks = 1
    return google


def locations(google: FakeGoogle) -> Any:
    return Connection(PROJECT, REGION, google.endpoints).api("cloudbuild", "v1").projects().locations()


def request(account: str = "", **more: Any) -> dict[str, Any]:
    """A build that logs to Cloud Logging, as the default account unless one is given."""
    build: dict[str, Any] = {
        "source": {"storageSource": {"bucket": BUCKET, "object": SOURCE}},
        "steps": [{"name": "gcr.io/cloud-builders/docker", "args": ["build", "--tag", IMAGE, "."]}],
        "images": [IMAGE],
        "options": {"logging": "CLOUD_LOGGING_ONLY"},
        **({"serviceAccount": f"projects/{PROJECT}/serviceAccounts/{account}"} if account else {}),
        **more,
    }
    return {name: value for name, value in build.items() if value is not None}


def create(google: FakeGoogle, build: dict[str, Any], location: str = REGION) -> dict[str, Any]:
    """Create a build and return it as the service describes it."""
    parent = f"projects/{PROJECT}/locations/{location}"
    return dict(locations(google).builds().create(parent=parent, body=build).execute()["metadata"]["build"])


def ended(google: FakeGoogle, build: dict[str, Any]) -> dict[str, Any]:
    created = create(google, build)
    return dict(locations(google).builds().get(name=created["name"]).execute())


def refused(google: FakeGoogle, build: dict[str, Any], location: str = REGION) -> Exception:
    with pytest.raises(Exception, match="HttpError") as caught:
        create(google, build, location)
    return caught.value


def without_ownership(google: FakeGoogle) -> None:
    """The caller may start builds, and nothing else."""
    google.world.owners.clear()
    grant(google, f"projects/{PROJECT}", "roles/cloudbuild.builds.editor", SUBMITTER)


@pytest.mark.parametrize(("default", "email"), [("compute", COMPUTE_ACCOUNT), ("legacy", LEGACY)])
def test_the_default_account_is_compute_engines_or_the_legacy_one(project, default, email):
    """Since 2024 builds run as Compute Engine's default account, before as Cloud Build's legacy one.

    Source (read): https://cloud.google.com/build/docs/cloud-build-service-account-updates; the format of the answer:
    API description of cloudbuild v1, DefaultServiceAccount.serviceAccountEmail.
    """
    project.builds.default = default
    name = f"projects/{PROJECT}/locations/{REGION}/defaultServiceAccount"
    answer = locations(project).getDefaultServiceAccount(name=name).execute()
    assert answer["serviceAccountEmail"] == f"projects/{NUMBER}/serviceAccounts/{email}"


def test_a_project_may_have_no_default_account(project):
    """If no account is used by default, serviceAccountEmail is empty; the refusal's wording is not known.

    Source (read): API description of cloudbuild v1, DefaultServiceAccount.serviceAccountEmail.
    """
    project.builds.default = "none"
    name = f"projects/{PROJECT}/locations/{REGION}/defaultServiceAccount"
    assert "serviceAccountEmail" not in locations(project).getDefaultServiceAccount(name=name).execute()
    assert status_of(refused(project, request())) == 400


@pytest.mark.parametrize("account", ["", OWN])
def test_the_caller_must_be_allowed_to_act_as_the_account(project, account):
    """A build as Compute Engine's account or one of the project's own requires iam.serviceAccounts.actAs on it.

    The refusal names the account by its unique id. Source (reported):
    https://cloud.google.com/build/docs/cloud-build-service-account-updates; wording reported in
    https://github.com/kohei321dev/spot-diggz/issues/164.
    """
    without_ownership(project)
    email = account or COMPUTE_ACCOUNT
    error = refused(project, request(account))
    assert status_of(error) == 403
    number = project.world.accounts[email]["uniqueId"]
    assert f"caller does not have permission to act as service account projects/{PROJECT}/" in str(error)
    assert f"serviceAccounts/{number}" in str(error)
    resource = f"projects/{PROJECT}/serviceAccounts/{email}"
    grant(project, resource, "roles/iam.serviceAccountUser", SUBMITTER)
    assert create(project, request(account))["status"] == "QUEUED"


def test_the_legacy_account_needs_no_act_as(project):
    """Whoever may start builds may use the legacy account: actAs is required on the two others.

    Source (read): https://cloud.google.com/build/docs/cloud-build-service-account-updates.
    """
    without_ownership(project)
    project.builds.default = "legacy"
    assert ended(project, request())["status"] == "SUCCESS"


def test_a_missing_default_account_is_refused_like_a_missing_right(project):
    """Compute Engine's account exists only where its API is enabled; without it the build is refused.

    Source (read): https://cloud.google.com/compute/docs/access/service-accounts#default_service_account. That Cloud
    Build refuses in the words for a missing right is assumed; Slipway looks the account up after every refusal.
    """
    project.world.accounts.pop(COMPUTE_ACCOUNT)
    assert status_of(refused(project, request())) == 403


def test_a_build_as_an_own_account_needs_a_log_destination(project):
    """A build with a service account sets a bucket for logs, or CLOUD_LOGGING_ONLY or NONE.

    Source (reported): wording reported in
    https://github.com/GoogleCloudPlatform/terraform-google-dataplex-auto-data-quality/pull/39.
    """
    error = refused(project, request(OWN, options=None))
    assert (status_of(error), "must either (a) specify 'build.logs_bucket'" in str(error)) == (400, True)
    assert create(project, request(OWN, options={"logging": "NONE"}))["status"] == "QUEUED"


def test_a_bucket_for_logs_asks_for_more_than_to_write_objects(project):
    """An account that may write objects and not get the bucket fails to create its log, and the build fails.

    Source (reported): https://cloud.google.com/build/docs/securing-builds/store-manage-build-logs (Storage Admin);
    reported in https://github.com/GoogleCloudPlatform/solution-acceleration-toolkit/issues/1050.
    """
    grant(project, f"buckets/{BUCKET}", "roles/storage.objectUser", OWN)
    build = request(OWN, logsBucket=f"gs://{BUCKET}/logs", options={"logging": "GCS_ONLY"})
    failed = ended(project, build)
    assert (failed["status"], failed["failureInfo"]["type"]) == ("FAILURE", "LOGGING_FAILURE")
    assert "Failure setting up GCS logging" in failed["statusDetail"]
    grant(project, f"buckets/{BUCKET}", "roles/storage.admin", OWN)
    assert ended(project, build)["status"] == "SUCCESS"


def test_without_the_logs_writer_role_a_build_continues_with_a_warning(project):
    """Cloud Logging takes the log only from an account with roles/logging.logWriter; Build.warnings says so.

    Source (reported): wording reported in
    https://github.com/GoogleCloudPlatform/terraform-genai-knowledge-base/issues/245, in `warnings` in
    https://github.com/GoogleCloudPlatform/terraform-google-enterprise-application/issues/120.
    """
    project.world.policies.pop(f"projects/{PROJECT}")
    build = ended(project, request())
    assert (build["status"], project.log.entries) == ("SUCCESS", [])
    (warning,) = build["warnings"]
    assert f"serviceAccounts/{COMPUTE_ACCOUNT} does not have permission to write logs" in warning["text"]


def test_a_builds_log_is_in_cloud_logging_under_its_id(project):
    """With CLOUD_LOGGING_ONLY, entries have resource.type="build" and the label build_id, and no object is written.

    Source (read): https://cloud.google.com/build/docs/securing-builds/store-manage-build-logs (log cloudbuild).
    """
    build = ended(project, request())
    assert {entry["resource"]["labels"]["build_id"] for entry in project.log.entries} == {build["id"]}
    assert {entry["logName"] for entry in project.log.entries} == {f"projects/{PROJECT}/logs/cloudbuild"}
    assert project.log.entries[0]["resource"]["type"] == "build"


@pytest.mark.parametrize(
    ("location", "open_"), [("europe-west4", False), ("us-east1", False), ("europe-west1", True), ("global", True)]
)
def test_a_restricted_project_builds_in_six_regions_and_in_global(project, location, open_):
    """Some projects may build only in six regions; elsewhere the build is refused. Builds in global are accepted.

    Source (reported): https://cloud.google.com/build/docs/locations#restricted_regions_for_some_projects; wording
    reported in https://github.com/google-github-actions/deploy-cloudrun/issues/480; that global works is only reported.
    """
    project.builds.restricted = True
    if open_:
        assert create(project, request(), location)["status"] == "QUEUED"
        return
    error = refused(project, request(), location)
    assert status_of(error) == 400
    assert "due to quota restrictions, cannot run builds in this region" in str(error)


def test_a_build_is_found_only_in_its_location(project):
    """A build is got and listed under the location that it was created in.

    Source (reported): https://github.com/backstage/backstage/issues/21463.
    """
    created = create(project, request(), "global")
    elsewhere = created["name"].replace("/global/", f"/{REGION}/")
    with pytest.raises(Exception, match="Requested entity was not found"):
        locations(project).builds().get(name=elsewhere).execute()
    assert locations(project).builds().list(parent=f"projects/{PROJECT}/locations/{REGION}").execute() == {"builds": []}


def test_a_source_is_pinned_by_its_generation(project):
    """storageSource.generation selects one version of the object; one that is not there fails the build.

    Source (read): API description of cloudbuild v1, StorageSource.generation.
    """
    source = {"storageSource": {"bucket": BUCKET, "object": SOURCE, "generation": "1"}}
    failed = ended(project, request(source=source))
    assert (failed["status"], failed["failureInfo"]["type"]) == ("FAILURE", "FETCH_SOURCE_FAILED")


def test_the_account_of_the_build_reads_the_source(project):
    """The source is fetched with the rights of the build's account, not of the caller.

    Source (reported): reported in https://github.com/GoogleCloudPlatform/bigquery-dlp-remote-function/issues/70.
    """
    project.world.policies.pop(f"buckets/{BUCKET}")
    failed = ended(project, request())
    assert failed["failureInfo"]["type"] == "FETCH_SOURCE_FAILED"
    assert f"{COMPUTE_ACCOUNT} does not have storage.objects.get access" in failed["statusDetail"]


def test_the_account_of_the_build_pushes_the_image(project):
    """Images in `images` are pushed as the build's account; their digests are in results.images.

    Source (read): API description of cloudbuild v1, Build.images, BuiltImage.digest, FailureInfo.type
    PUSH_NOT_AUTHORIZED.
    """
    (image,) = ended(project, request())["results"]["images"]
    assert (image["name"], image["digest"].startswith("sha256:")) == (IMAGE, True)
    project.world.policies.pop(REPOSITORY)
    assert ended(project, request())["failureInfo"]["type"] == "PUSH_NOT_AUTHORIZED"
