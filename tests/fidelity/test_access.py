"""What Google's services ask of callers, policies, service agents and keys, called by Google's clients."""

from __future__ import annotations

import json
from typing import Any

import pytest

from slipway.components.cloud import policies
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.policies import Resource
from slipway.components.cloud.retries import status_of
from slipway.components.setup_access.observed import read
from tests.fakes.cloud_kms import add_key
from tests.fakes.google import COMPUTE_ACCOUNT, NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, REPOSITORY, RUNNER, grant, take_away

NAME = f"projects/{PROJECT}"
KEY = f"projects/{PROJECT}/locations/{REGION}/keyRings/ring/cryptoKeys/key"
AGENT = f"service-{NUMBER}@gcp-sa-aiplatform.iam.gserviceaccount.com"


def connection(google: FakeGoogle) -> Connection:
    return Connection(PROJECT, REGION, google.endpoints)


def projects(google: FakeGoogle) -> Any:
    return connection(google).api("cloudresourcemanager", "v3").projects()


def policy_of(google: FakeGoogle, version: int = 3) -> dict[str, Any]:
    body = {"options": {"requestedPolicyVersion": version}}
    return dict(projects(google).getIamPolicy(resource=NAME, body=body).execute())


def set_policy(google: FakeGoogle, policy: dict[str, Any]) -> None:
    projects(google).setIamPolicy(resource=NAME, body={"policy": policy}).execute()


def permitted(google: FakeGoogle, *permissions: str) -> list[str]:
    body = {"permissions": list(permissions)}
    return list(projects(google).testIamPermissions(resource=NAME, body=body).execute().get("permissions", []))


def binding(role: str, *members: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "members": list(members), **more}


def test_a_call_that_names_a_quota_project_needs_the_right_to_use_it(google):
    """With x-goog-user-project, as gcloud's credentials send it, the caller needs serviceusage.services.use.

    Source (read): https://cloud.google.com/docs/quotas/set-quota-project.
    """
    google.world.owners.clear()
    grant(google, NAME, "roles/aiplatform.user", SUBMITTER)
    caller = connection(google)
    caller.__dict__["credentials"] = caller.credentials.with_quota_project(PROJECT)
    asked = caller.api("cloudresourcemanager", "v3").projects().get(name=NAME)
    with pytest.raises(Exception, match=r"roles/serviceusage\.serviceUsageConsumer") as refused:
        asked.execute()
    assert status_of(refused.value) == 403
    grant(google, NAME, "roles/serviceusage.serviceUsageConsumer", SUBMITTER)
    assert asked.execute()["projectId"] == PROJECT


def test_a_policy_with_an_old_etag_is_not_written(google):
    """setIamPolicy with an etag that is not the current one is refused with 409.

    Source (read): https://cloud.google.com/iam/docs/policies.
    """
    old = policy_of(google)
    set_policy(google, policy_of(google))
    with pytest.raises(Exception, match="concurrent policy changes") as refused:
        set_policy(google, old)
    assert status_of(refused.value) == 409


def test_conditions_are_read_and_written_with_policy_version_3(google):
    """Below version 3 conditions are not returned, and a policy with conditions is not accepted.

    Source (read): https://cloud.google.com/iam/docs/policies.
    """
    condition = {"title": "until 2030", "expression": "request.time < timestamp('2030-01-01T00:00:00Z')"}
    bindings = [binding("roles/viewer", "user:ada@example.com", condition=condition)]
    with pytest.raises(Exception, match="version 3"):
        set_policy(google, {**policy_of(google), "bindings": bindings, "version": 1})
    set_policy(google, {**policy_of(google), "bindings": bindings, "version": 3})
    assert policy_of(google)["bindings"] == bindings
    (read,) = policy_of(google, version=1)["bindings"]
    assert ("condition" in read, "_withcond_" in read["role"]) == (False, True)


def test_a_policy_without_bindings_is_only_an_etag(google):
    """A new policy has neither version nor bindings; one without conditions is stored as version 1, whatever was sent.

    Source (recorded): k8s-config-connector, policies of IAM resources.
    """
    assert policy_of(google).keys() == {"etag"}
    bindings = [binding("roles/viewer", "user:ada@example.com")]
    set_policy(google, {**policy_of(google), "bindings": bindings, "version": 3})
    assert (policy_of(google)["version"], policy_of(google)["bindings"]) == (1, bindings)


def test_a_secret_is_named_with_the_projects_number(google):
    """Secret Manager answers the project's number, also in the refusal of an absent secret.

    Source (recorded): k8s-config-connector 43a31bd5d2, fullsecretmanagersecret-manual-direct.
    """
    google.world.projects[PROJECT].services.add("secretmanager.googleapis.com")
    secrets = policies.collection(connection(google), "secret")
    with pytest.raises(Exception, match=rf"Secret \[projects/{NUMBER}/secrets/s\] not found"):
        secrets.get(name=f"{NAME}/secrets/s").execute()
    google.secrets.values[f"{NAME}/secrets/s"] = "x"
    assert secrets.get(name=f"{NAME}/secrets/s").execute()["name"] == f"projects/{NUMBER}/secrets/s"


def test_a_policy_names_only_service_accounts_that_exist(google):
    """setIamPolicy with a service account or agent that does not exist is refused, and nothing is written.

    Source (read): wording in https://cloud.google.com/config-connector/docs/troubleshooting.
    """
    policy = policy_of(google)
    policy["bindings"] = [binding("roles/aiplatform.serviceAgent", f"serviceAccount:{AGENT}")]
    with pytest.raises(Exception, match=f"Service account {AGENT} does not exist") as refused:
        set_policy(google, policy)
    assert status_of(refused.value) == 400


def test_a_service_agent_is_created_on_request_and_has_no_role(google):
    """generateServiceIdentity creates a service's agent; it grants nothing, and works only for an enabled service.

    The operation is done at once. The agent of Vertex AI's custom code is not created by it.

    Source (recorded): GoogleCloudPlatform/k8s-config-connector 09ceadd886, metadatastorefullyconfigured, whose
    project's policy names gcp-sa-aiplatform and no gcp-sa-aiplatform-cc; that it grants nothing is read,
    https://cloud.google.com/service-usage/docs/reference/rest/v1beta1/services/generateServiceIdentity.
    """
    services = connection(google).api("serviceusage", "v1beta1").services()
    parent = f"{NAME}/services/aiplatform.googleapis.com"
    operation = services.generateServiceIdentity(parent=parent).execute()
    assert operation["done"]
    assert not [email for email in google.world.accounts if "gcp-sa-aiplatform-cc" in email]
    assert operation["response"]["email"] == AGENT
    assert AGENT in google.world.accounts
    assert AGENT not in str(policy_of(google))
    google.world.projects[PROJECT].services.discard("tpu.googleapis.com")
    with pytest.raises(Exception, match="has not been used in project"):
        services.generateServiceIdentity(parent=f"{NAME}/services/tpu.googleapis.com").execute()


def test_a_disabled_api_refuses_calls_for_a_while_after_it_is_enabled(google):
    """A call to a disabled API is refused with 403 and a sentence that asks to wait after enabling it.

    Source (read): the sentence itself, https://cloud.google.com/service-usage/docs/enable-disable.
    """
    google.world.settling["iam.googleapis.com"] = 1
    accounts = connection(google).api("iam", "v1").projects().serviceAccounts()
    request = accounts.get(name=f"{NAME}/serviceAccounts/{COMPUTE_ACCOUNT}")
    with pytest.raises(Exception, match="If you enabled this API recently, wait a few minutes") as refused:
        request.execute()
    assert status_of(refused.value) == 403
    assert request.execute()["email"] == COMPUTE_ACCOUNT


def test_a_new_account_is_found_by_some_calls_and_not_by_others(google):
    """For seconds after its creation, calls answer 404 and 200 in turn; one that never existed has another sentence.

    Source (recorded): GoogleCloudPlatform/k8s-config-connector 8799acf3b4, iamserviceaccount/_http.log.
    """
    accounts = connection(google).api("iam", "v1").projects().serviceAccounts()
    request = accounts.get(name=f"{NAME}/serviceAccounts/new-one@{PROJECT}.iam.gserviceaccount.com")
    with pytest.raises(Exception, match='"Unknown service account"'):
        request.execute()
    accounts.create(name=NAME, body={"accountId": "new-one"}).execute()
    answers = []
    for _ in range(5):
        try:
            answers.append(request.execute()["email"].partition("@")[0])
        except Exception as error:
            answers.append(str(status_of(error)))
            assert "does not exist." in str(error)
    assert answers == ["new-one", "404", "new-one", "404", "new-one"]
    with pytest.raises(Exception, match="already exists within project") as twice:
        accounts.create(name=NAME, body={"accountId": "new-one"}).execute()
    body = json.loads(twice.value.content)["error"]
    assert (body["status"], body["errors"][0]["reason"]) == ("ALREADY_EXISTS", "alreadyExists")


def test_enabling_compute_engine_creates_its_default_account(google):
    """Without the API compute.googleapis.com there is no NUMBER-compute@developer.gserviceaccount.com.

    Source (read): https://cloud.google.com/compute/docs/access/service-accounts#default_service_account.
    """
    google.world.accounts.pop(COMPUTE_ACCOUNT)
    google.world.projects[PROJECT].services.discard("compute.googleapis.com")
    services = connection(google).api("serviceusage", "v1")
    operation = services.services().batchEnable(parent=NAME, body={"serviceIds": ["compute.googleapis.com"]}).execute()
    while not operation.get("done"):
        operation = services.operations().get(name=operation["name"]).execute()
    assert COMPUTE_ACCOUNT in google.world.accounts


@pytest.mark.parametrize("above", ["folders/11", "organizations/7"])
def test_roles_on_a_folder_or_an_organization_are_inherited_and_not_in_the_projects_policy(google, above):
    """A project inherits the policies above it; getIamPolicy returns only its own, testIamPermissions counts all.

    Source (read): https://cloud.google.com/iam/docs/resource-hierarchy-access-control; API description of
    cloudresourcemanager v3, projects.testIamPermissions.
    """
    google.world.projects[PROJECT].parents = ("folders/11", "organizations/7")
    grant(google, above, "roles/aiplatform.user", SUBMITTER)
    assert "aiplatform" not in str(policy_of(google))
    google.world.owners.clear()
    assert permitted(google, "aiplatform.pipelineJobs.create", "storage.buckets.get") == [
        "aiplatform.pipelineJobs.create"
    ]
    assert projects(google).get(name=NAME).execute()["parent"] == "folders/11"


def test_a_project_without_an_organization_has_no_parent(google):
    """Project.parent is absent for a project that is in no folder or organization.

    Source (read): API description of cloudresourcemanager v3, Project.parent ("Optional").
    """
    assert "parent" not in projects(google).get(name=NAME).execute()


def test_members_of_a_group_have_its_roles_and_are_not_in_the_policy(google):
    """A policy names the group; testIamPermissions counts the caller's groups.

    Source (read): https://cloud.google.com/iam/docs/groups-in-cloud-console.
    """
    google.world.groups["team@example.com"] = {SUBMITTER}
    set_policy(google, {**policy_of(google), "bindings": [binding("roles/logging.viewer", "group:team@example.com")]})
    assert SUBMITTER not in str(policy_of(google))
    google.world.owners.clear()
    assert permitted(google, "logging.logEntries.list") == ["logging.logEntries.list"]


def test_the_role_on_a_key_is_held_by_vertex_ais_service_agent(ready_google):
    """A job with an encryption key is refused unless Vertex AI's service agent may encrypt and decrypt with it.

    Source (reported): https://cloud.google.com/vertex-ai/docs/general/cmek; wording reported in
    https://github.com/hashicorp/terraform-provider-google/issues/11819.
    """
    add_key(ready_google.world, KEY)
    with pytest.raises(Exception, match="cannot be used in Vertex AI service") as refused:
        create_job(ready_google, KEY)
    assert status_of(refused.value) == 400
    grant(ready_google, KEY, "roles/cloudkms.cryptoKeyEncrypterDecrypter", AGENT)
    assert create_job(ready_google, KEY).encryption_spec.kms_key_name == KEY


def test_a_key_is_in_the_region_of_the_job(ready_google):
    """A key in another region than the resource is refused; the wording is not known.

    Source (read): https://cloud.google.com/vertex-ai/docs/reference/rest/v1/EncryptionSpec.
    """
    elsewhere = KEY.replace(REGION, "us-central1")
    add_key(ready_google.world, elsewhere)
    grant(ready_google, elsewhere, "roles/cloudkms.cryptoKeyEncrypterDecrypter", AGENT)
    with pytest.raises(Exception, match="same region"):
        create_job(ready_google, elsewhere)


def create_job(google: FakeGoogle, key: str) -> Any:
    pool = {
        "machine_spec": {"machine_type": "n1-standard-4"},
        "replica_count": 1,
        "container_spec": {"image_uri": IMAGE},
    }
    job = {
        "display_name": "job",
        "job_spec": {"worker_pool_specs": [pool], "service_account": RUNNER},
        "encryption_spec": {"kms_key_name": key},
    }
    return connection(google).jobs.create_custom_job(parent=f"{NAME}/locations/{REGION}", custom_job=job)


def dataflow_job(google: FakeGoogle, worker: str = "", name: str = "prepare") -> Any:
    body = {"name": name, "environment": {"serviceAccountEmail": worker} if worker else {}}
    jobs = connection(google).api("dataflow", "v1b3").projects().locations().jobs()
    return jobs.create(projectId=PROJECT, location=REGION, body=body).execute()


@pytest.fixture
def dataflow(ready_google: FakeGoogle) -> FakeGoogle:
    """A project in which RUNNER may work for Dataflow, and SUBMITTER may start jobs that run as RUNNER."""
    project = ready_google.world.projects[PROJECT]
    project.services.add("dataflow.googleapis.com")
    agent = ready_google.service_usage.make_agent(project, "dataflow.googleapis.com")
    grant(ready_google, NAME, "roles/dataflow.serviceAgent", agent)
    grant(ready_google, NAME, "roles/dataflow.worker", RUNNER)
    ready_google.world.owners.clear()
    grant(ready_google, NAME, "roles/dataflow.developer", SUBMITTER)
    grant(ready_google, f"{NAME}/serviceAccounts/{RUNNER}", "roles/iam.serviceAccountUser", SUBMITTER)
    return ready_google


def test_a_dataflow_job_runs_as_an_account_that_the_caller_may_act_as(dataflow):
    """Workers run as environment.serviceAccountEmail, by default as Compute Engine's account; the caller needs actAs.

    Source (reported): API description of dataflow v1b3, Environment.serviceAccountEmail;
    https://cloud.google.com/dataflow/docs/concepts/security-and-permissions; wording reported in
    https://github.com/hashicorp/terraform-provider-google/issues/7126.
    """
    with pytest.raises(Exception, match=f"Current user cannot act as service account {COMPUTE_ACCOUNT}") as refused:
        dataflow_job(dataflow)
    assert status_of(refused.value) == 403
    assert dataflow_job(dataflow, RUNNER)["currentState"] == "JOB_STATE_PENDING"


@pytest.mark.parametrize("role", ["roles/dataflow.developer", "roles/dataflow.worker", "roles/dataflow.serviceAgent"])
def test_a_dataflow_job_needs_the_roles_of_caller_worker_and_agent(dataflow, role):
    """The caller needs dataflow.developer, the workers' account dataflow.worker, the agent dataflow.serviceAgent.

    Source (read): https://cloud.google.com/dataflow/docs/concepts/access-control. The wordings for worker and agent are
    not known.
    """
    take_away(dataflow, NAME, role)
    with pytest.raises(Exception, match="HttpError"):
        dataflow_job(dataflow, RUNNER)


def test_a_second_dataflow_job_of_an_active_ones_name_is_the_active_one(dataflow):
    """A job of the name of an active one is not created: the attempt returns the active one.

    Source (read): API description of dataflow v1b3, Job.name.
    """
    first = dataflow_job(dataflow, RUNNER)["id"]
    assert dataflow_job(dataflow, RUNNER)["id"] == first
    assert dataflow_job(dataflow, RUNNER, "other")["id"] != first


def test_dataflow_needs_the_compute_engine_api(dataflow):
    """Dataflow's workers are machines of Compute Engine, whose API must be enabled.

    Source (read): https://cloud.google.com/dataflow/docs/concepts/security-and-permissions.
    """
    dataflow.world.projects[PROJECT].services.discard("compute.googleapis.com")
    with pytest.raises(Exception, match="Compute Engine API has not been used"):
        dataflow_job(dataflow, RUNNER)


def test_some_services_refuse_without_naming_the_permission(google):
    """Pub/Sub says only "User not authorized to perform this action."; setup names the permission all the same.

    Source (recorded): 403s in k8s-config-connector's fixtures.
    """
    google.world.owners.clear()
    google.world.projects[PROJECT].services.add("pubsub.googleapis.com")
    topic = Resource("topic", f"{NAME}/topics/runs")
    google.pubsub.topics[topic.name] = []
    with pytest.raises(Exception, match='"User not authorized to perform this action'):
        policies.collection(connection(google), "topic").get(topic=topic.name).execute()
    error = read(connection(google), topic).error
    assert error is not None
    assert error.message == f"{SUBMITTER} may not read the policy of runs: pubsub.topics.getIamPolicy is missing."
    assert error.fix is not None
    assert error.fix.endswith("--role=roles/pubsub.admin")


def test_readers_of_a_repository_may_not_read_its_policy(ready_google):
    """roles/artifactregistry.reader has repositories.get and no getIamPolicy, which roles/artifactregistry.admin has.

    Source (read): https://cloud.google.com/artifact-registry/docs/access-control#roles.
    """
    ready_google.world.owners.clear()
    grant(ready_google, REPOSITORY, "roles/artifactregistry.reader", SUBMITTER)
    state = read(connection(ready_google), Resource("repository", REPOSITORY))
    assert state.facts["format"] == "DOCKER"
    assert state.error is not None
    assert "artifactregistry.repositories.getIamPolicy is missing" in state.error.message
    assert "--role=roles/artifactregistry.admin" in str(state.error.fix)


def test_the_run_as_account_may_use_its_bucket_and_not_see_its_policy(ready_google):
    """roles/storage.objectUser has no storage.buckets.getIamPolicy: testIamPermissions answers, getIamPolicy does not.

    Source (read): https://cloud.google.com/storage/docs/access-control/iam-roles.
    """
    ready_google.world.owners.clear()
    grant(ready_google, f"buckets/{BUCKET}", "roles/storage.objectUser", SUBMITTER)
    bucket = connection(ready_google).storage.bucket(BUCKET)
    assert bucket.test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]
    with pytest.raises(Exception, match=r"storage\.buckets\.getIamPolicy") as refused:
        bucket.get_iam_policy(requested_policy_version=3)
    assert status_of(refused.value) == 403
