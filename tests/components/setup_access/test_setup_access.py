"""Setup: from a new project to one ready for runs, without removing anything."""

from __future__ import annotations

import pytest

from slipway.components.setup_access.access import apply
from slipway.components.setup_access.difference import blocking, difference
from slipway.components.setup_access.observed import observe
from slipway.core.errors import UserError
from tests.components.setup_access.project import ACCOUNT, BUCKET, REPOSITORY, settings
from tests.fakes.cloud_kms import add_key
from tests.fakes.errors import ServiceError
from tests.fakes.google import COMPUTE_ACCOUNT, NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import make_ready

VERTEX = f"serviceAccount:service-{NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com"
CUSTOM_CODE = f"serviceAccount:service-{NUMBER}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
TPU = f"serviceAccount:service-{NUMBER}@cloud-tpu.iam.gserviceaccount.com"
BUILD = f"serviceAccount:service-{NUMBER}@gcp-sa-cloudbuild.iam.gserviceaccount.com"
BUILDER = f"serviceAccount:{COMPUTE_ACCOUNT}"
RUNNER = f"serviceAccount:{ACCOUNT}"
LEGACY = "roles/storage.legacy"


def granted(google: FakeGoogle, resource: str) -> set[tuple[str, str]]:
    """Every (role, member) of a policy, but for those that Cloud Storage gives every new bucket."""
    return {
        (binding["role"], member)
        for binding in google.world.policy(resource)["bindings"]
        for member in binding["members"]
        if not binding["role"].startswith(LEGACY)
    }


def statuses(google: FakeGoogle, **fields) -> dict[str, str]:
    asked = settings(google, **fields)
    return {str(line.item): line.status for line in difference(asked, observe(asked))}


def test_a_new_project_gets_all_that_a_run_needs_and_no_more(new_project):
    world = new_project.world
    outcomes, left = apply(settings(new_project, tpu=True, submitters=["user:ada@example.com"]))
    assert {outcome.result for outcome in outcomes if not outcome.line.later} == {"done"}
    assert {line.status for line in left if not line.later} == {"there"}
    bucket = world.buckets[BUCKET]
    assert (bucket["location"], bucket["locationType"]) == (REGION.upper(), "region")
    assert bucket["iamConfiguration"]["uniformBucketLevelAccess"]["enabled"]
    assert bucket["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    assert world.repositories[REPOSITORY]["format"] == "DOCKER"
    assert granted(new_project, f"projects/{PROJECT}") == {
        ("roles/aiplatform.serviceAgent", VERTEX),
        ("roles/tpu.serviceAgent", TPU),
        ("roles/cloudbuild.serviceAgent", BUILD),
        ("roles/aiplatform.user", RUNNER),
        ("roles/logging.logWriter", BUILDER),
        ("roles/aiplatform.user", "user:ada@example.com"),
        ("roles/serviceusage.serviceUsageConsumer", "user:ada@example.com"),
        ("roles/logging.viewer", "user:ada@example.com"),
        ("roles/cloudbuild.builds.editor", "user:ada@example.com"),
    }
    assert granted(new_project, f"buckets/{BUCKET}") == {
        *(("roles/storage.objectUser", member) for member in (RUNNER, TPU, "user:ada@example.com")),
        ("roles/storage.objectViewer", BUILDER),
    }
    assert granted(new_project, REPOSITORY) == {
        ("roles/artifactregistry.reader", VERTEX),
        ("roles/artifactregistry.reader", RUNNER),
        ("roles/artifactregistry.reader", "user:ada@example.com"),
        ("roles/artifactregistry.writer", BUILDER),
    }
    assert granted(new_project, f"projects/{PROJECT}/serviceAccounts/{ACCOUNT}") == {
        ("roles/iam.serviceAccountUser", RUNNER),
        ("roles/iam.serviceAccountUser", "user:ada@example.com"),
    }
    builder = f"projects/{PROJECT}/serviceAccounts/{COMPUTE_ACCOUNT}"
    assert granted(new_project, builder) == {("roles/iam.serviceAccountUser", "user:ada@example.com")}


def test_a_second_setup_finds_nothing_and_writes_nothing(new_project):
    apply(settings(new_project))
    before = new_project.world.writes.copy()
    outcomes, left = apply(settings(new_project))
    assert {outcome.result for outcome in outcomes} == {"later"}
    assert blocking(left) == []
    assert new_project.world.writes == before


def test_looking_changes_nothing(new_project):
    found = statuses(new_project)
    assert found[f"gs://{BUCKET}"] == found[ACCOUNT] == found[REPOSITORY] == "missing"
    assert new_project.world.writes.total() == 0
    assert not any(call.split()[1] in ("PUT", "PATCH") for call in new_project.faults.calls)


def test_without_tpu_cloud_build_or_repository_their_rows_are_omitted(new_project):
    apply(settings(new_project, builds=False, repository=None))
    members = {member for _, member in granted(new_project, f"projects/{PROJECT}")}
    assert not members & {TPU, BUILD, BUILDER}
    assert new_project.world.projects[PROJECT].services.isdisjoint(
        {"tpu.googleapis.com", "cloudbuild.googleapis.com", "artifactregistry.googleapis.com"}
    )
    assert new_project.world.repositories == {}


def test_what_is_new_may_take_time_to_be_seen(new_project):
    new_project.world.settling_calls = 2
    new_project.iam.hidden = 3
    new_project.service_usage.looks = 4
    outcomes, left = apply(settings(new_project, tpu=True))
    assert {outcome.result for outcome in outcomes if not outcome.line.later} == {"done"}
    assert blocking(left) == []


@pytest.mark.parametrize("flicker", [(False, True) * 4, (True, False) * 4, (True, *[False] * 8), (False,) * 8])
def test_a_new_account_that_some_servers_do_not_know_yet_is_not_missing(new_project, flicker):
    new_project.iam.flicker = flicker
    outcomes, left = apply(settings(new_project, submitters=["user:ada@example.com"]))
    assert {outcome.result for outcome in outcomes if not outcome.line.later} == {"done"}
    assert {line.status for line in left if not line.later} == {"there"}
    assert new_project.world.writes["account"] == 1


def test_an_agent_that_the_first_job_makes_is_left_to_it(new_project):
    outcomes, left = apply(settings(new_project))
    later = {str(outcome.line.item) for outcome in outcomes if outcome.result == "later"}
    assert len(later) == 3  # the agent and its roles on the project and the repository
    assert all("gcp-sa-aiplatform-cc" in item for item in later)
    assert {outcome.result for outcome in outcomes if str(outcome.line.item) not in later} == {"done"}
    assert blocking(left) == []
    assert ("roles/aiplatform.serviceAgent", VERTEX) in granted(new_project, f"projects/{PROJECT}")
    calls = new_project.faults.calls.copy()
    apply(settings(new_project))
    assert not [name for name in new_project.faults.calls - calls if "generateServiceIdentity" in name]
    email = CUSTOM_CODE.removeprefix("serviceAccount:")
    new_project.world.accounts[email] = {"email": email}  # by the first job
    _, left = apply(settings(new_project))
    assert {line.status for line in left} == {"there"}
    assert ("roles/artifactregistry.reader", CUSTOM_CODE) in granted(new_project, REPOSITORY)
    assert apply(settings(new_project))[0] == []


def test_a_wider_role_is_enough(google):
    make_ready(google)
    name = f"buckets/{BUCKET}"
    policy = google.world.policy(name)
    for binding in policy["bindings"]:
        if binding["role"] == "roles/storage.objectUser":
            binding["role"] = "roles/storage.objectAdmin"
    google.world.set_policy(name, policy)
    assert set(statuses(google, builds=False).values()) == {"there"}


def test_a_grant_under_a_condition_is_not_a_grant(google):
    make_ready(google)
    name = f"buckets/{BUCKET}"
    policy = google.world.policy(name)
    condition = {"title": "office hours", "expression": "request.time.getHours() < 18"}
    for binding in policy["bindings"]:
        if binding["role"] == "roles/storage.objectUser":
            binding["condition"] = condition
    google.world.set_policy(name, {**policy, "version": 3})
    asked = settings(google, builds=False)
    lines = {str(line.item): line for line in difference(asked, observe(asked))}
    line = lines[f"roles/storage.objectUser on gs://{BUCKET} for {ACCOUNT}"]
    assert line.status == "missing"
    assert "office hours" in line.observed
    apply(asked)
    bindings = [b for b in google.world.policy(name)["bindings"] if b["role"] == "roles/storage.objectUser"]
    assert sorted(bool(b.get("condition")) for b in bindings) == [False, True]
    assert next(b for b in bindings if b.get("condition"))["condition"] == condition


@pytest.mark.parametrize(
    ("change", "fixes"),
    [
        ({"location": "EU", "locationType": "multi-region"}, "vertex.bucket"),
        ({"location": "US-CENTRAL1"}, "vertex.bucket"),
        ({"projectNumber": "42"}, "vertex.bucket"),
        ({"iamConfiguration": {"uniformBucketLevelAccess": {"enabled": False}}}, "--uniform-bucket-level-access"),
    ],
)
def test_a_bucket_that_does_not_fit_is_left_as_it_is(google, change, fixes):
    make_ready(google)
    google.world.buckets[BUCKET].update(change)
    if "projectNumber" in change:
        google.world.projects["another"] = type(google.world.projects[PROJECT])("another", 42)
    bucket = dict(google.world.buckets[BUCKET])
    _, left = apply(settings(google, builds=False))
    (wrong,) = blocking(left)
    assert (str(wrong.item), wrong.status) == (f"gs://{BUCKET}", "wrong")
    assert fixes in wrong.fix
    assert google.world.buckets[BUCKET] == bucket


def test_a_bucket_name_that_someone_has_taken(new_project):
    message = "The requested bucket name is not available. The bucket namespace is shared by all users of the system."
    new_project.faults.plan("storage POST /storage/v1/b", ServiceError(409, message))
    outcomes, left = apply(settings(new_project))
    failed = {str(outcome.line.item): outcome.error for outcome in outcomes if outcome.result == "failed"}
    assert "is already taken" in failed[f"gs://{BUCKET}"].message
    assert all(f"gs://{BUCKET}" in item for item in failed)
    others = {line.status for line in left if not line.later and f"gs://{BUCKET}" not in str(line.item)}
    assert others == {"there"}


def test_a_right_that_is_taken_away_in_between_ends_as_a_sentence(new_project):
    denied = ServiceError(
        403, f"Permission 'resourcemanager.projects.setIamPolicy' denied on resource projects/{PROJECT}"
    )
    new_project.faults.plan(":setIamPolicy", denied, times=100)
    outcomes, left = apply(settings(new_project))
    failed = [outcome for outcome in outcomes if outcome.result == "failed"]
    assert failed
    assert all(SUBMITTER in outcome.error.message for outcome in failed)
    assert "resourcemanager.projects.setIamPolicy is missing" in failed[0].error.message
    assert failed[0].error.fix.endswith("--role=roles/resourcemanager.projectIamAdmin")
    # What does not take that right is done all the same.
    assert f"gs://{BUCKET}" in {str(line.item) for line in left if line.status == "there"}
    assert blocking(left)


def test_a_project_that_is_not_there_is_named(new_project):
    with pytest.raises(UserError, match="no project slipway-tset") as error:
        observe(settings(new_project, project="slipway-tset"))
    assert error.value.setting == "vertex.project"


def test_who_may_not_look_is_told_so_line_by_line(google):
    make_ready(google)
    google.world.owners.clear()
    grant = {"role": "roles/serviceusage.serviceUsageViewer", "members": [f"serviceAccount:{SUBMITTER}"]}
    policy = google.world.policy(f"projects/{PROJECT}")
    google.world.set_policy(f"projects/{PROJECT}", {**policy, "bindings": [*policy["bindings"], grant]})
    asked = settings(google, builds=False)
    lines = difference(asked, observe(asked))
    unseen = [line for line in lines if line.status == "unseen"]
    assert {line.kind for line in unseen} == {"identity", "account", "bucket", "repository", "binding"}
    assert all(line.fix for line in unseen)
    assert blocking(lines) == []


def test_an_account_of_builds_that_cannot_be_asked_for_hides_nothing(google):
    make_ready(google)
    google.faults.plan("defaultServiceAccount", ServiceError(403, "Permission 'cloudbuild.builds.get' denied"))
    asked = settings(google)
    unseen = [line for line in difference(asked, observe(asked)) if line.status == "unseen"]
    assert [str(line.item) for line in unseen] == ["the account of Cloud Build's builds"]
    assert "cloudbuild.builds.get is missing" in unseen[0].observed


def test_the_legacy_account_of_builds_needs_neither_compute_engine_nor_act_as(new_project):
    new_project.builds.default = "legacy"
    new_project.world.projects[PROJECT].services.add("cloudbuild.googleapis.com")
    apply(settings(new_project, submitters=["user:ada@example.com"]))
    assert "compute.googleapis.com" not in new_project.world.projects[PROJECT].services
    lines = statuses(new_project, submitters=["user:ada@example.com"])
    assert not [item for item in lines if "serviceAccountUser" in item and "@cloudbuild" in item]
    assert f"roles/artifactregistry.writer on slipway for {NUMBER}@cloudbuild.gserviceaccount.com" in lines


def test_without_the_compute_engine_api_setup_enables_it_for_the_account_of_builds(new_project):
    before = statuses(new_project)
    assert before["compute.googleapis.com"] == before[COMPUTE_ACCOUNT] == "missing"
    _, left = apply(settings(new_project))
    assert blocking(left) == []
    assert COMPUTE_ACCOUNT in new_project.world.accounts


@pytest.mark.parametrize("damage", ["none", "deleted"])
def test_a_project_without_an_account_for_builds_is_told_to_name_one(google, damage):
    make_ready(google)
    if damage == "none":
        google.builds.default = "none"
    else:
        google.world.accounts.pop(COMPUTE_ACCOUNT)
    asked = settings(google)
    wrong = [line for line in difference(asked, observe(asked)) if line.status == "wrong"]
    assert [line.fix for line in wrong] == [
        f"--set vertex.build.service_account=slipway-builder@{PROJECT}.iam.gserviceaccount.com"
    ]


WORKER = f"worker@{PROJECT}.iam.gserviceaccount.com"
KEY = f"projects/{PROJECT}/locations/{REGION}/keyRings/ring/cryptoKeys/key"
DATAFLOW = f"serviceAccount:service-{NUMBER}@dataflow-service-producer-prod.iam.gserviceaccount.com"


def test_dataflow_gets_its_apis_agent_and_roles(new_project):
    apply(settings(new_project, builds=False, dataflow=True, dataflow_worker=WORKER, sources=[], stores=[]))
    assert {"dataflow.googleapis.com", "compute.googleapis.com"} <= new_project.world.projects[PROJECT].services
    assert {
        ("roles/dataflow.serviceAgent", DATAFLOW),
        ("roles/dataflow.developer", RUNNER),
        ("roles/compute.viewer", RUNNER),
        ("roles/dataflow.worker", f"serviceAccount:{WORKER}"),
    } <= granted(new_project, f"projects/{PROJECT}")
    assert granted(new_project, f"projects/{PROJECT}/serviceAccounts/{WORKER}") == {
        ("roles/iam.serviceAccountUser", RUNNER)
    }
    assert ("roles/storage.objectUser", f"serviceAccount:{WORKER}") in granted(new_project, f"buckets/{BUCKET}")


def test_without_dataflow_and_a_key_their_rows_are_omitted(new_project):
    apply(settings(new_project))
    assert not {"dataflow.googleapis.com", "cloudkms.googleapis.com"} & new_project.world.projects[PROJECT].services
    assert not [role for role, _ in granted(new_project, f"projects/{PROJECT}") if "dataflow" in role]


def test_vertex_ai_may_use_the_encryption_key(new_project):
    add_key(new_project.world, KEY)
    _, left = apply(settings(new_project, builds=False, encryption_key=KEY))
    assert {line.status for line in left if not line.later} == {"there"}
    assert granted(new_project, KEY) == {("roles/cloudkms.cryptoKeyEncrypterDecrypter", VERTEX)}
    assert "cloudkms.googleapis.com" in new_project.world.projects[PROJECT].services


@pytest.mark.parametrize(
    ("damage", "says", "fix"),
    [
        (lambda world: world.keys.clear(), "does not exist", "gcloud kms keys create key --keyring=ring"),
        (lambda world: world.keys[KEY]["primary"].update(state="DISABLED"), "not enabled", "versions enable 1"),
    ],
)
def test_a_key_that_cannot_encrypt_is_reported_and_left_alone(google, damage, says, fix):
    make_ready(google)
    google.world.projects[PROJECT].services.add("cloudkms.googleapis.com")
    add_key(google.world, KEY)
    damage(google.world)
    _, left = apply(settings(google, builds=False, encryption_key=KEY))
    (wrong,) = [line for line in left if line.status == "wrong"]
    assert (str(wrong.item), says in wrong.observed) == (KEY, True)
    assert fix in wrong.fix
    assert google.world.writes["key"] == 0


def test_a_key_of_another_project_that_cannot_be_seen_does_not_block(google):
    make_ready(google)
    google.world.projects["vault"] = type(google.world.projects[PROJECT])("vault", 42, {"cloudkms.googleapis.com"})
    key = KEY.replace(PROJECT, "vault")
    add_key(google.world, key)
    denied = ServiceError(
        403, f"Permission 'cloudkms.cryptoKeys.get' denied on resource '{key}' (or it may not exist)."
    )
    google.faults.plan("cloudkms GET", denied, times=100)
    asked = settings(google, builds=False, encryption_key=key)
    lines = difference(asked, observe(asked))
    assert {line.status for line in lines if key in str(line.item) or line.kind == "key"} == {"unseen"}
    assert "cloudkms.googleapis.com" not in {str(line.item) for line in lines}
    assert blocking(lines) == []


def test_a_key_in_another_region_is_reported(google):
    make_ready(google)
    google.world.projects[PROJECT].services.add("cloudkms.googleapis.com")
    elsewhere = KEY.replace(REGION, "us-central1")
    add_key(google.world, elsewhere)
    asked = settings(google, builds=False, encryption_key=elsewhere)
    lines = {str(line.item): line for line in difference(asked, observe(asked))}
    assert lines[elsewhere].observed == f"it is in us-central1, the jobs are in {REGION}"


def test_notifications_need_their_topic_their_secret_and_the_logs(new_project):
    topic, secret = f"projects/{PROJECT}/topics/runs", f"projects/{PROJECT}/secrets/webhook"
    new_project.secrets.values[secret] = "https://hooks.example.com/x"
    asked = settings(new_project, topic=topic, secret=secret, explains=True)
    outcomes, left = apply(asked)
    assert {outcome.result for outcome in outcomes} <= {"done", "later"}
    assert not blocking(left)
    assert new_project.pubsub.topics == {topic: []}
    services = new_project.world.projects[PROJECT].services
    assert {"pubsub.googleapis.com", "secretmanager.googleapis.com"} <= services
    assert granted(new_project, topic) == {("roles/pubsub.publisher", RUNNER)}
    assert granted(new_project, secret) == {("roles/secretmanager.secretAccessor", RUNNER)}
    assert ("roles/logging.viewer", RUNNER) in granted(new_project, f"projects/{PROJECT}")


def test_a_secret_is_not_created_because_only_its_owner_knows_the_value(google):
    make_ready(google)
    google.world.projects[PROJECT].services |= {"secretmanager.googleapis.com"}
    asked = settings(google, builds=False, secret=f"projects/{PROJECT}/secrets/webhook")
    [line] = [line for line in difference(asked, observe(asked)) if line.kind == "secret"]
    assert (line.status, line.fix.startswith("gcloud secrets create webhook")) == ("wrong", True)


RULE = {"action": {"type": "Delete"}, "condition": {"age": 30, "matchesPrefix": ["builds/"]}}
OWN = {"action": {"type": "SetStorageClass", "storageClass": "NEARLINE"}, "condition": {"age": 90}}


def rule_of(google: FakeGoogle, **fields) -> tuple[str, str]:
    """Return the status of the bucket's rule, and what it says."""
    asked = settings(google, **fields)
    [line] = [line for line in difference(asked, observe(asked)) if line.kind == "lifecycle"]
    assert blocking([line]) == [], "a run does without it"
    return line.status, str(line.item)


def test_a_new_bucket_deletes_temporary_files(new_project):
    apply(settings(new_project, dataflow=True))
    [rule] = new_project.world.buckets[BUCKET]["lifecycle"]["rule"]
    assert rule["condition"] == {"age": 30, "matchesPrefix": ["builds/", "dataflow/"]}
    what = f"gs://{BUCKET}: builds/ and dataflow/ for 30 days"
    assert rule_of(new_project, dataflow=True) == ("there", what)
    assert rule_of(new_project) == ("there", f"gs://{BUCKET}: builds/ for 30 days")


def test_the_rules_of_a_bucket_are_kept(new_project):
    apply(settings(new_project))
    bucket = new_project.world.buckets[BUCKET]
    bucket["lifecycle"] = {"rule": [OWN]}
    assert rule_of(new_project)[0] == "missing"
    apply(settings(new_project))
    assert bucket["lifecycle"] == {"rule": [OWN, RULE]}


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ({"age": 7, "matchesPrefix": ["builds/sources/", "builds/"]}, "there"),
        ({"age": 7}, "there"),
        ({"age": 7, "matchesPrefix": ["builds/sources/"]}, "missing"),
        ({"age": 7, "isLive": False}, "missing"),
        ({"numNewerVersions": 3}, "missing"),
    ],
)
def test_another_rule_may_do_the_same(new_project, condition, status):
    apply(settings(new_project))
    new_project.world.buckets[BUCKET]["lifecycle"] = {"rule": [{"action": {"type": "Delete"}, "condition": condition}]}
    assert rule_of(new_project)[0] == status


def test_a_rule_that_cannot_be_set_is_said_and_blocks_no_run(new_project):
    apply(settings(new_project))
    del new_project.world.buckets[BUCKET]["lifecycle"]
    new_project.faults.plan("storage PATCH", ServiceError(403, "ada does not have storage.buckets.update access."))
    outcomes, left = apply(settings(new_project))
    [failed] = [outcome for outcome in outcomes if outcome.result == "failed"]
    assert "storage.buckets.update" in failed.error.message
    assert blocking(left) == []


def test_two_setups_at_once_add_one_rule_each_time(new_project):
    """The bucket has changed between reading and writing."""
    apply(settings(new_project))
    bucket = new_project.world.buckets[BUCKET]
    bucket["lifecycle"] = {}
    new_project.faults.plan("storage PATCH", ServiceError(412, "At least one of the pre-conditions did not hold."))
    apply(settings(new_project))
    assert bucket["lifecycle"] == {"rule": [RULE]}


def test_a_failure_to_list_the_apis_of_a_project_is_an_error(new_project):
    error = ServiceError(400, "The request is malformed.")
    new_project.faults.plan(f"GET /v1/projects/{PROJECT}/services:batchGet", error)
    with pytest.raises(UserError, match=f"see the project {PROJECT}: The request is malformed"):
        observe(settings(new_project))


DOMAIN = "One or more users named in the policy do not belong to a permitted customer."


@pytest.mark.parametrize(
    ("method", "error", "writes"),
    [
        ("PUT /storage/v1/b", ServiceError(412, DOMAIN), 4),
        (
            "projects/p-1:setIamPolicy",
            ServiceError(400, f"{DOMAIN}, perhaps due to one", reason="FAILED_PRECONDITION"),
            9,
        ),
    ],
)
def test_a_policy_of_the_organization_is_final_and_named(new_project, method, error, writes):
    """A violated constraint has the status of a race, which thirty writes would not win.

    Reported: terraform-google-modules/terraform-example-foundation#1454.
    """
    method = method.replace("p-1", PROJECT)
    new_project.faults.plan(method, error, times=999)
    outcomes, _ = apply(settings(new_project, submitters=["user:ada@example.com"]))
    failed = [outcome.error for outcome in outcomes if outcome.error is not None]
    assert failed
    assert all("The organization's policy iam.allowedPolicyMemberDomains forbids" in one.message for one in failed)
    assert all("ask an administrator of the organization's policies" in str(one.fix) for one in failed)
    assert sum(count for call, count in new_project.faults.calls.items() if method in call) <= writes
    assert {outcome.result for outcome in outcomes} >= {"done", "failed"}


def test_a_bucket_in_a_region_that_the_organization_forbids_is_named(new_project):
    """Reported: GoogleCloudDataproc/spark-bigquery-connector#231."""
    sentence = f"'{REGION}' violates constraint 'constraints/gcp.resourceLocations'"
    new_project.faults.plan("POST /storage/v1/b", ServiceError(412, sentence), times=99)
    outcomes, _ = apply(settings(new_project))
    error = next(outcome.error for outcome in outcomes if outcome.line.kind == "bucket")
    assert error is not None
    assert f"gcp.resourceLocations forbids resources in '{REGION}'" in error.message
    assert "--set vertex.region=REGION" in str(error.fix)
    assert new_project.faults.calls["storage POST /storage/v1/b"] == 1


def test_a_submitter_that_does_not_exist_fails_only_itself(new_project):
    nobody = f"serviceAccount:nobody@{PROJECT}.iam.gserviceaccount.com"
    outcomes, _ = apply(settings(new_project, submitters=["user:ada@example.com", nobody]))
    failed = {getattr(outcome.line.item, "member", None): outcome.error for outcome in outcomes if outcome.error}
    assert list(failed) == [nobody]
    error = failed[nobody]
    assert error is not None
    assert (error.message, error.setting, error.value) == (f"There is no {nobody}.", "vertex.submitters", nobody)
    assert ("roles/aiplatform.user", "user:ada@example.com") in granted(new_project, f"projects/{PROJECT}")
    assert ("roles/storage.objectUser", RUNNER) in granted(new_project, f"buckets/{BUCKET}")


def test_a_principal_of_workload_identity_federation_is_a_submitter(new_project):
    pool = "iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/github"
    members = [f"principalSet://{pool}/attribute.repository/a/b", f"principal://{pool}/subject/repo:a/b"]
    outcomes, left = apply(settings(new_project, submitters=members))
    assert {outcome.result for outcome in outcomes if not outcome.line.later} == {"done"}
    assert {("roles/aiplatform.user", member) for member in members} <= granted(new_project, f"projects/{PROJECT}")
    assert any(str(line.item) == f"roles/aiplatform.user on {PROJECT} for {members[0]}" for line in left)
