"""The control address of imitated services: what a test asks of them in another process, in JSON over HTTP.

| request | body, answer |
|---|---|
| `POST /faults` | `{"method", "fault", "seconds", "at_call", "times"}`: see `Fault` |
| `DELETE /faults` | forgets all faults, and stalled calls continue; `{"struck": N}`: how many calls they struck |
| `GET /calls?after=N` | `{"calls": […]}`: the methods that were called, without the first N |
| `POST /models` | `{"name", "arguments"}`: registers a version as the champion; its server is `vertex/stand_in.py` with these arguments |
| `POST /steps` | `{"task", "failure", "logs", "looks", "outputs"}`: how this task of future runs on Vertex AI goes, see `StepScript` |
| `POST /kubeflow/failures` | `{"task", "message"}`: how this task of runs on Kubeflow fails; "" if it succeeds |
| `PUT /objects/BUCKET/NAME` | the bytes of an object |
| `POST /hub` | `{"kind", "name", "files", "branch", "private", "gated", "readers"}`: adds a commit to a repository of the Hugging Face Hub, files as base64 by path; `{"commit"}` |
| `GET /hub/KIND/ORG/NAME` | `{"private", "commits": [messages], "files": {path: base64}}` of a repository |
| `GET /tables/PROJECT.DATASET.TABLE` | a table's columns and its rows as objects |
| `PUT /tables/PROJECT.DATASET.TABLE` | `{"columns", "rows", "size"}`: a table of BigQuery; see `FakeBigQuery.add_table` |
"""  # noqa: E501 (a table)

from __future__ import annotations

import base64
from typing import Any, Literal, TypeVar

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from tests.fakes.errors import ConnectionReset, Faults, ServiceError, Stall
from tests.fakes.http_service import HttpService, Request
from tests.fakes.services import Services

Body = TypeVar("Body", bound=BaseModel)

# What services answer; Google's own sentences.
ANSWERS: dict[object, tuple[int, str]] = {
    429: (429, "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'."),
    500: (500, "Internal error encountered."),
    503: (503, "The service is currently unavailable."),
    "expired token": (
        401,
        "Request had invalid authentication credentials. Expected OAuth 2 access token, login cookie or other valid "
        "authentication credential.",
    ),
    "permission denied": (403, "The caller does not have permission"),
    # What gRPC reports if google-auth cannot renew the caller's token.
    "session ended": (
        503,
        "Getting metadata from plugin failed with error: Reauthentication is needed. Please run `gcloud auth "
        "application-default login` to reauthenticate.",
    ),
    # Cloud Storage's answer to a role for an account that a policy of the organization forbids.
    "organization policy": (412, "One or more users named in the policy do not belong to a permitted customer."),
}
# The token server's answer to credentials that have expired.
EXPIRED = (400, "Token has been expired or revoked.")


class Fault(BaseModel):
    """A fault of the calls whose name contains `method`, such as CreatePipelineJob or "POST /v1/projects".

    It strikes `times` calls from the next one's number `at_call` on. A stall lasts `seconds`.
    """

    model_config = ConfigDict(extra="forbid")
    method: str
    fault: Literal[
        *(429, 500, 503, "reset", "stall"),
        *("expired token", "permission denied", "session ended", "organization policy"),
    ]
    seconds: float = Field(0.0, ge=0)
    at_call: int = Field(1, ge=1)
    times: int = Field(1, ge=1)

    @property
    def error(self) -> Exception:
        """The exception that the service raises."""
        if self.fault == "reset":
            return ConnectionReset()
        if self.fault == "stall":
            return Stall(self.seconds)
        if self.fault == "expired token" and self.method.startswith("tokens"):
            return ServiceError(*EXPIRED)
        return ServiceError(*ANSWERS[self.fault])


class ModelVersion(BaseModel):
    """A version of a model that is registered."""

    model_config = ConfigDict(extra="forbid")
    name: str
    arguments: list[str] = []


class ScriptedFailure(BaseModel):
    """How a task fails; see `tests.fakes.vertex.script.Failure` for the defaults."""

    model_config = ConfigDict(extra="forbid")
    message: str | None = None
    replica: str | None = None
    status: int | None = None
    code: int | None = None


class Step(BaseModel):
    """How a task of future runs goes."""

    model_config = ConfigDict(extra="forbid")
    task: str
    failure: ScriptedFailure | None = None
    logs: dict[str, list[str | dict[str, Any]]] = {}
    looks: int = Field(1, ge=1)
    outputs: dict[str, Any] = {}


class KubeflowFailure(BaseModel):
    """How a task on Kubeflow fails."""

    model_config = ConfigDict(extra="forbid")
    task: str
    message: str


class HubCommit(BaseModel):
    """A commit to a repository of the Hugging Face Hub; see `FakeHub.add`."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["dataset", "model"] = "dataset"
    name: str
    files: dict[str, Base64Bytes]
    branch: str = "main"
    private: bool = False
    gated: bool = False
    readers: tuple[str, ...] = ()


class Table(BaseModel):
    """A table of BigQuery: the types of its columns, its rows, and the bytes that it is said to have."""

    model_config = ConfigDict(extra="forbid")
    columns: dict[str, str]
    rows: list[list[Any]]
    size: int | None = None


class Control:
    """Serves the control address of `services`; a context manager."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.url = ""
        self._service = HttpService("control", Faults(), lambda _headers: "")
        self._add_routes()

    def __enter__(self) -> Control:
        self.url = f"http://127.0.0.1:{self._service.start(None)}"
        return self

    def __exit__(self, *_: object) -> None:
        self._service.stop()

    def _add_routes(self) -> None:
        route, services = self._service.route, self.services

        @route("POST", "/faults")
        def add_fault(request: Request) -> Any:
            fault = _read(Fault, request)
            services.faults.plan(fault.method, fault.error, fault.times, at_call=fault.at_call)
            return {}

        @route("DELETE", "/faults")
        def clear_faults(_request: Request) -> Any:
            return {"struck": services.faults.clear()}

        @route("GET", "/calls")
        def calls(request: Request) -> Any:
            return {"calls": services.faults.history[int(request.query.get("after", 0)) :]}

        @route("POST", "/models")
        def register(request: Request) -> Any:
            return _register(services, _read(ModelVersion, request))

        @route("POST", "/steps")
        def script_step(request: Request) -> Any:
            _script(services, _read(Step, request))
            return {}

        @route("POST", "/kubeflow/failures")
        def fail_on_kubeflow(request: Request) -> Any:
            failure = _read(KubeflowFailure, request)
            assert services.kubeflow is not None
            services.kubeflow.failures[failure.task] = failure.message
            return {}

        @route("PUT", "/objects/{bucket}/{name=**}")
        def write_object(request: Request) -> Any:
            assert services.google is not None
            services.google.storage.write(request.parts["bucket"], request.parts["name"], request.body)
            return {}

        @route("POST", "/hub")
        def add_to_hub(request: Request) -> Any:
            assert services.huggingface is not None
            return {"commit": services.huggingface.add(**dict(_read(HubCommit, request))).sha}

        @route("GET", "/hub/{kind}/{owner}/{name}")
        def of_hub(request: Request) -> Any:
            assert services.huggingface is not None
            parts = request.parts
            repository = services.huggingface.repositories.get((parts["kind"], f"{parts['owner']}/{parts['name']}"))
            if repository is None:
                return {}
            commits = [*repository.commits.values()]
            files = {path: base64.b64encode(blob.data).decode() for path, blob in commits[-1].files.items()}
            return {"private": repository.private, "commits": [commit.message for commit in commits], "files": files}

        @route("PUT", "/tables/{name}")
        def write_table(request: Request) -> Any:
            assert services.google is not None
            table = _read(Table, request)
            about = {} if table.size is None else {"size": table.size}
            services.google.bigquery.add_table(request.parts["name"], table.columns, table.rows, **about)
            return {}

        @route("GET", "/tables/{name}")
        def read_table(request: Request) -> Any:
            assert services.google is not None
            table = services.google.bigquery.tables[request.parts["name"]]
            return {"columns": table.fields, "rows": table.newest.to_pylist()}


def _read(kind: type[Body], request: Request) -> Body:
    try:
        return kind.model_validate_json(request.body)
    except ValidationError as error:
        raise ServiceError(400, str(error)) from None


def _register(services: Services, version: ModelVersion) -> dict[str, str]:
    from google.cloud import aiplatform_v1 as vertex

    from tests.fakes.google import PROJECT, SUBMITTER
    from tests.fakes.ready import BUCKET, SERVING_IMAGE
    from tests.fakes.vertex.serving import STAND_IN

    google = services.google
    assert google is not None
    region, parent = google.region, f"projects/{PROJECT}/locations/{google.location}"
    uri = f"gs://{BUCKET}/models/{version.name}"
    google.storage.write(BUCKET, f"models/{version.name}/model.json", b"{}")
    region.servers.commands[version.name] = STAND_IN
    container = {"image_uri": SERVING_IMAGE, "args": version.arguments, "predict_route": "/predict"}
    model = vertex.Model(
        display_name=version.name,
        artifact_uri=uri,
        version_aliases=["champion"],
        container_spec=vertex.ModelContainerSpec(**container, health_route="/health"),
    )
    target = {"model_id": version.name}
    if any(name.rpartition("/")[2].partition("@")[0] == version.name for name in region.models.models):
        target = {"parent_model": f"{parent}/models/{version.name}"}
    _, upload = region.models.methods()["UploadModel"]
    upload(vertex.UploadModelRequest(parent=parent, model=model, **target), SUBMITTER)
    region.operations.pass_time()
    return {"uri": uri}


def _script(services: Services, step: Step) -> None:
    from tests.fakes.vertex.script import Failure, StepScript

    assert services.google is not None
    failure = Failure(**step.failure.model_dump(exclude_none=True)) if step.failure else None
    script = StepScript(looks=step.looks, failure=failure, logs=step.logs, outputs=step.outputs)
    services.google.region.pipelines.script[step.task] = script
