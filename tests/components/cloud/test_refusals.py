"""Errors of Google Cloud calls become messages that name the missing permission and a command that fixes it."""

from __future__ import annotations

import http.client
import json
import re
import shlex
import socket
import ssl
import threading
from collections.abc import Callable

import grpc
import pytest
import requests
import urllib3
from google.api_core.exceptions import (
    Conflict,
    Forbidden,
    PreconditionFailed,
    RetryError,
    ServiceUnavailable,
    TooManyRequests,
)
from google.auth import credentials
from google.auth.exceptions import RefreshError
from google.cloud import aiplatform_v1, storage
from googleapiclient.errors import UnknownApiNameOrVersion

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import PERMISSION, answers_ignored, is_answer, refusal, refusing
from slipway.components.cloud.retries import is_conflict, is_transient, retried
from slipway.components.cloud.roles import role_with
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.world import World


@pytest.mark.parametrize(
    ("text", "permission"),
    [
        ("Permission 'storage.objects.get' denied on resource (or it may not exist)", "storage.objects.get"),
        ("a@p.iam.gserviceaccount.com does not have storage.buckets.get access to the bucket.", "storage.buckets.get"),
        ("Permission 'iam.serviceAccounts.actAs' denied on resource '//iam/p' ", "iam.serviceAccounts.actAs"),
        ("see https://console.cloud.google.com/iam-admin", None),
        ("service-1@gcp-sa-aiplatform.iam.gserviceaccount.com is not there", None),
    ],
)
def test_the_permission_is_read_from_the_words(text, permission):
    found = PERMISSION.search(text)
    assert (found[1] if found else None) == permission


def test_the_narrowest_role_that_has_it_is_named():
    assert role_with("artifactregistry.repositories.get") == "roles/artifactregistry.reader"
    assert role_with("artifactregistry.repositories.create") == "roles/artifactregistry.admin"
    assert role_with("artifactregistry.repositories.getIamPolicy") == "roles/artifactregistry.admin"
    assert role_with("iam.serviceAccounts.getIamPolicy") == "roles/iam.serviceAccountViewer"
    assert role_with("spanner.databases.read") is None


def refused(google: FakeGoogle, error: ServiceError, times: int = 1):
    google.faults.plan("GET /v3/projects", error, times)
    connection = Connection(PROJECT, REGION, google.endpoints)
    request = connection.api("cloudresourcemanager", "v3").projects().get(name=f"projects/{PROJECT}")
    with pytest.raises(Exception) as caught:
        retried(request.execute)
    return refusal(caught.value, connection, "see the project")


def test_a_missing_right_names_who_and_which_and_the_command(google):
    error = refused(
        google, ServiceError(403, "Permission 'resourcemanager.projects.get' denied on resource projects/p")
    )
    assert error.message == f"{SUBMITTER} may not see the project: resourcemanager.projects.get is missing."
    assert f"--member=serviceAccount:{SUBMITTER} --role=roles/browser" in error.fix


@pytest.mark.parametrize("text", ["The caller does not have permission", "User not authorized to perform this action."])
def test_a_permission_that_the_service_does_not_name_is_that_of_the_call(google, text):
    connection = Connection(PROJECT, REGION, google.endpoints)
    error = refusal(Forbidden(text), connection, "publish to t", "pubsub.topics.publish")
    assert error.message == f"{SUBMITTER} may not publish to t: pubsub.topics.publish is missing."
    assert error.fix.endswith(f"--member=serviceAccount:{SUBMITTER} --role=roles/pubsub.publisher")


def test_a_person_without_the_quota_project_gets_the_role_that_setup_grants(google, tmp_path, monkeypatch):
    person = "ada@example.com"
    login = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": person}
    (tmp_path / "login.json").write_text(json.dumps(login))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "login.json"))
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", google.token_uri)
    google.region  # noqa: B018  # starts Vertex AI's services
    project = f"projects/{PROJECT}"
    binding = {"role": "roles/aiplatform.user", "members": [f"user:{person}"]}
    google.world.set_policy(project, {"bindings": [binding]})
    connection = Connection(PROJECT, REGION, google.endpoints)

    def over_http():
        connection.api("cloudresourcemanager", "v3").projects().get(name=project).execute()

    def over_grpc():
        list(connection.pipelines.list_pipeline_jobs(parent=connection.parent))

    for call in (over_http, over_grpc):
        with pytest.raises(Exception) as caught:
            call()
        error = refusal(caught.value, connection, "list the runs")
        assert "serviceusage.services.use is missing" in error.message
        assert "--role=roles/serviceusage.serviceUsageConsumer" in error.fix
    consumer = {"role": role_with("serviceusage.services.use"), "members": [f"user:{person}"]}
    google.world.set_policy(project, {"bindings": [binding, consumer]})
    over_http()
    over_grpc()


def test_an_api_that_is_off_is_named(google):
    google.world.projects[PROJECT].services.clear()
    connection = Connection(PROJECT, REGION, google.endpoints)
    with pytest.raises(Exception) as caught:
        connection.api("cloudresourcemanager", "v3").projects().get(name=f"projects/{PROJECT}").execute()
    error = refusal(caught.value, connection, "see the project")
    assert "cloudresourcemanager.googleapis.com is not enabled" in error.message
    assert "gcloud services enable cloudresourcemanager.googleapis.com" in error.fix


def test_a_token_server_that_fails_is_an_outage_and_no_rejected_login(google: FakeGoogle) -> None:
    """google-auth's error has the server's words and its whole answer."""
    google.tokens.faults.plan("POST /token", ServiceError(503, "The service is currently unavailable."), times=99)
    connection = Connection(PROJECT, REGION, google.endpoints)
    with pytest.raises(RefreshError) as caught:
        connection.api("cloudresourcemanager", "v3").projects().get(name=PARENT).execute()
    error = refusal(caught.value, connection, "see the project")
    sentence = "Could not log in to Google Cloud: internal_failure: The service is currently unavailable."
    assert (error.message, str(error.fix).partition(";")[0]) == (sentence, "try again in a few minutes")


def test_what_does_not_pass_is_said_so(google):
    error = refused(google, ServiceError(503, "The service is currently unavailable."), times=100)
    assert "kept returning transient errors: The service is currently unavailable." in error.message


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("no"),
        RetryError("too late", None),
        RefreshError("expired"),
        UnknownApiNameOrVersion("no such API"),
        grpc.RpcError(),
        requests.ConnectionError("refused"),
        ConnectionResetError(104, "Connection reset by peer"),
        socket.gaierror(-2, "Name or service not known"),
        ssl.SSLCertVerificationError("self-signed certificate"),
        TimeoutError(),
    ],
    ids=repr,
)
def test_what_clients_and_sockets_raise_is_an_answer(error):
    assert is_answer(error)
    with answers_ignored():
        raise error


@pytest.mark.parametrize(
    "error",
    [
        ImportError("cannot import name 'X' from partially initialized module 'google.cloud.aiplatform_v1'"),
        TypeError("unsupported operand"),
        ValueError("invalid literal"),
        KeyError("name"),
        FileNotFoundError(2, "No such file or directory", "config.yaml"),
    ],
    ids=repr,
)
def test_any_other_exception_is_not_shown_as_an_answer(error):
    connection = Connection(PROJECT, REGION)
    assert not is_answer(error)
    for context in (refusing(connection, "see the project"), answers_ignored()):
        with pytest.raises(type(error)) as caught, context:
            raise error
        assert caught.value is error


class Expired(credentials.Credentials):
    """The credentials of a person whose session has ended."""

    def refresh(self, request: object) -> None:
        raise RefreshError(
            "Reauthentication is needed. Please run `gcloud auth application-default login` to reauthenticate."
        )


@pytest.mark.parametrize("service", ["aiplatform", "storage"])
def test_an_ended_session_is_one_sentence_and_not_retried(google, service):
    """gRPC reports it as an unavailable service. Reported: skypilot-org/skypilot#3393."""
    connection = Connection(PROJECT, REGION, google.endpoints)
    if service == "storage":
        client = storage.Client(
            project=PROJECT,
            credentials=Expired(),
            client_options={"api_endpoint": connection.storage._connection.API_BASE_URL},
        )

        def call() -> object:
            return client.get_bucket("b", retry=None)
    else:
        options = {"api_endpoint": google.endpoints["aiplatform"]}
        pipelines = aiplatform_v1.PipelineServiceClient(credentials=Expired(), client_options=options)

        def call() -> object:
            return pipelines.get_pipeline_job(name=f"{connection.parent}/pipelineJobs/x")

    with pytest.raises((RefreshError, ServiceUnavailable)) as caught:
        call()
    assert not is_transient(caught.value)
    error = refusal(caught.value, connection, "read the run")
    assert error.message.startswith("Could not read the run: the credentials for Google Cloud were rejected")
    assert error.fix == "gcloud auth application-default login"


BROKEN = {
    "status": b"\r\n\r\n",
    "body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{}",
}


@pytest.mark.parametrize("library", ["requests", "urllib3", "http.client"])
@pytest.mark.parametrize("answer", [*BROKEN])
def test_an_answer_that_breaks_off_is_transient(answer: str, library: str) -> None:
    """The errors of three libraries, as in the list of Google's storage client."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(BROKEN[answer])

        thread = threading.Thread(target=serve)
        thread.start()
        host, port = server.getsockname()
        url = f"http://{host}:{port}/"

        def call() -> object:
            if library == "requests":
                return requests.get(url, timeout=60).json()
            if library == "urllib3":
                return urllib3.PoolManager(retries=False).request("GET", url).json()
            connection = http.client.HTTPConnection(host, port)
            connection.request("GET", "/")
            return json.loads(connection.getresponse().read())

        with pytest.raises((OSError, http.client.HTTPException, urllib3.exceptions.HTTPError)) as caught:
            call()
        thread.join()
    assert is_transient(caught.value)


def test_a_quota_that_is_used_up_is_not_retried():
    """Both sentences of Vertex AI; a limit of calls per minute is another."""
    assert not is_transient(TooManyRequests("The following quota metrics exceed quota limits: x.com/y"))
    assert not is_transient(TooManyRequests("The following quotas are exceeded: CustomModelTrainingT4GPUsPerProject"))
    assert is_transient(TooManyRequests("Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'."))


@pytest.mark.parametrize(
    ("error", "is_race"),
    [
        (PreconditionFailed("At least one of the pre-conditions you specified did not hold."), True),
        (PreconditionFailed("Precondition Failed"), True),
        (Conflict("There were concurrent policy changes."), True),
        (PreconditionFailed("'us' violates constraint 'constraints/gcp.resourceLocations'"), False),
        (PreconditionFailed("One or more users named in the policy do not belong to a permitted customer."), False),
    ],
)
def test_a_race_is_about_a_precondition_not_about_a_constraint(error, is_race):
    assert is_conflict(error) == is_race


PARENT, PLACE, COMPUTE = f"projects/{PROJECT}", f"projects/{PROJECT}/locations/{REGION}", "services/6F81-5844-456A"
# Calls that commands make, by what they are for.
CALLS: dict[str, Callable[[Connection], object]] = {
    "see the project": lambda c: c.api("cloudresourcemanager", "v3").projects().get(name=PARENT).execute(),
    "list the runs": lambda c: list(c.pipelines.list_pipeline_jobs(parent=c.parent)),
    "list the models": lambda c: list(c.models.list_models(parent=c.parent)),
    "list the endpoints": lambda c: list(c.serving.list_endpoints(parent=c.parent)),
    "list the schedules": lambda c: list(c.schedules.list_schedules(parent=c.parent)),
    "list the builds": lambda c: c.api("cloudbuild", "v1").projects().locations().builds().list(parent=PLACE).execute(),
    "list the TPUs": lambda c: c.api("tpu", "v2").projects().locations().nodes().list(parent=f"{PLACE}-b").execute(),
    "read the list prices": lambda c: (
        c.api("cloudbilling", "v1").services().skus().list(parent="services/6F81-5844-456A").execute()
    ),
}


def run_gcloud(world: World, fix: str) -> None:
    """Do what the first command of a fix does."""
    words = shlex.split(re.search(r"gcloud [^;]+", fix)[0])  # type: ignore[index]
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--"))
    match words:
        case ["gcloud", "services", "enable", service, *_]:
            world.projects[options["project"]].services.add(service)
        case ["gcloud", "projects", "add-iam-policy-binding", project, *_]:
            policy = world.policy(f"projects/{project}")
            policy["bindings"].append({"role": options["role"], "members": [options["member"]]})
            world.set_policy(f"projects/{project}", policy)
        case _:
            pytest.fail(f"no such command: {fix}")


@pytest.mark.parametrize("what", CALLS)
def test_after_the_fixes_the_refused_call_passes(google: FakeGoogle, what: str) -> None:
    """A project in which nothing is enabled, and an account without roles."""
    google.region  # noqa: B018  # starts Vertex AI's services
    google.world.projects[PROJECT].services.clear()
    google.world.set_policy(PARENT, {"bindings": []})
    connection = Connection(PROJECT, REGION, google.endpoints)
    fixes: list[str] = []
    while len(fixes) < 5:
        try:
            CALLS[what](connection)
            break
        except Exception as error:
            fixes.append(str(refusal(error, connection, what).fix))
            run_gcloud(google.world, fixes[-1])
    assert 0 < len(fixes) < 5
    assert len(set(fixes)) == len(fixes)
