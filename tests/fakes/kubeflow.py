"""A Kubeflow Pipelines server (v2beta1 over HTTP) on loopback, with the calls that kfp's client makes for runs.

It stores experiments and runs, accepts a run only if its parameters match the pipeline spec, and advances a run by one
task whenever it is polled, or when a test calls `advance`.
"""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf import json_format
from kfp.pipeline_spec.pipeline_spec_pb2 import ParameterType, PipelineSpec, PlatformSpec

from tests.fakes.errors import Faults, ServiceError
from tests.fakes.http_service import HttpService, Request
from tests.fakes.kubeflow_pods import Cluster
from tests.fakes.kubeflow_steps import KubeflowSteps
from tests.fakes.mlflow import FakeMlflow
from tests.fakes.vertex.pipeline_checks import is_of_type
from tests.fakes.vertex.slipway_steps import notify

BASE = "/apis/v2beta1"
# The fields of KubernetesExecutorConfig that a task's pod may have.
POD_SETTINGS = {
    "pvcMount",
    "nodeSelector",
    "tolerations",
    "secretAsEnv",
    "imagePullSecret",
    "emptyDirMounts",
    "securityContext",
}
# The only fields of its SecurityContext: there is no fsGroup.
SECURITY_CONTEXT = {"runAsUser", "runAsGroup", "runAsNonRoot"}
DEFAULT_ACCOUNT = "pipeline-runner"
ROOTS = ("gs://", "s3://", "minio://")
# As validatePipelineJobInputs of the API server names them.
TYPES: dict[int, str] = {
    ParameterType.STRING: "string",
    ParameterType.BOOLEAN: "bool",
    ParameterType.NUMBER_INTEGER: "double or integer",
    ParameterType.NUMBER_DOUBLE: "double or integer",
    ParameterType.LIST: "list",
    ParameterType.STRUCT: "struct",
}
UNSET = "1970-01-01T00:00:00Z"
ENDED = ("SUCCEEDED", "FAILED", "CANCELED")


class FakeKubeflow:
    """The server; a context manager.

    `multi_user`: every call must name a namespace of `profiles`. `token`: the bearer token that callers need. `hold`:
    polling does not advance runs. `failures`: the error of a task by its name. `rejected`: the gate rejects the model.
    `cluster`: what the pods of the tasks meet. `knows_final_status`: the server is 2.14.0 or newer. `refuses_root`: it
    has kubeflow/pipelines#13885. `steps`: runs the tasks for real; None: they succeed at once. `mlflow`: where its
    plugin for MLflow creates a run for each of its runs; None: it has no such plugin.
    """

    def __init__(
        self, *, multi_user: bool = False, token: str | None = None, seed: int = 0, faults: Faults | None = None
    ) -> None:
        self.multi_user = multi_user
        self.profiles = {"team-a"}
        self.token = token
        self.faults = faults or Faults(seed)
        self.experiments: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.hold = False
        self.failures: dict[str, str] = {}
        self.rejected = False
        self.cluster = Cluster()
        self.knows_final_status = True
        self.refuses_root = False
        self.steps: KubeflowSteps | None = None
        self.mlflow: FakeMlflow | None = None
        self.now = datetime(2026, 11, 21, 12, tzinfo=UTC)
        self.host = ""
        self._tasks: dict[str, list[dict[str, Any]]] = {}
        self._service = HttpService("kubeflow", self.faults, lambda headers: headers.get("Authorization") or "")
        self._service.error_body = _error_body
        self._add_routes()

    def __enter__(self) -> FakeKubeflow:
        self.host = f"http://localhost:{self._service.start(None)}"
        return self

    def __exit__(self, *_: Any) -> None:
        self._service.stop()
        if self.steps is not None:
            self.steps.stop_all()

    def advance(self, run_id: str) -> None:
        """Advance a run by one task: end the running task and start the next; after the last, end the run."""
        run, tasks = self.runs[run_id], self._tasks[run_id]
        self.now += timedelta(seconds=30)
        if run["state"] in ENDED:
            return
        if run["state"] == "CANCELING":
            if self.steps is not None:
                self.steps.stop(run_id)
            self._end(run, "CANCELED")
            return
        run["state"] = "RUNNING"
        running = next((task for task in tasks if task["state"] == "RUNNING"), None)
        if running is not None:
            if self.steps is not None and not self.steps.has_ended(run_id, running["display_name"]):
                return
            running["end_time"] = _text(self.now)
            problem = self.failures.get(running["display_name"]) or self._problem(run, running["display_name"])
            running["state"] = "FAILED" if problem else "SUCCEEDED"
            if problem:
                running["error"] = {"code": 1, "message": problem}
        exits = _exit_tasks(_specification(run["pipeline_spec"]))
        failed = any(task["state"] == "FAILED" and task["display_name"] not in exits for task in tasks)
        # After a failure, only exit tasks start.
        open_ = [task for task in tasks if task["display_name"] in exits or not failed]
        waiting = next((task for task in open_ if task["state"] == "PENDING"), None)
        if waiting is None:
            self._end(run, "FAILED" if failed else "SUCCEEDED")
        else:
            waiting["state"], waiting["start_time"] = "RUNNING", _text(self.now)
            if self.steps is not None:
                self.steps.start(run_id, waiting["display_name"])

    def _problem(self, run: dict[str, Any], task: str) -> str | None:
        """Return why a task's pod fails on the cluster; None for a group of tasks, which has no pod."""
        given = run["pipeline_spec"]
        specification = given.get("pipeline_spec", given)
        label = _executors(_specification(given)).get(task)
        if label is None:
            return None
        if task in _exit_tasks(_specification(given)):
            notify(self._exit_inputs(run, task), {})
        pods = given.get("platform_spec", {}).get("platforms", {}).get("kubernetes", {})
        pod = pods.get("deploymentSpec", {}).get("executors", {}).get(label, {})
        if self.steps is not None and (failure := self.steps.finish(run["run_id"], task)):
            return failure
        container = specification["deploymentSpec"]["executors"][label]["container"]
        return self.cluster.problem(task, run.get("service_account") or DEFAULT_ACCOUNT, container, pod)

    def _exit_inputs(self, run: dict[str, Any], task: str) -> dict[str, Any]:
        """Return the input parameters of an exit task, with the final status of the others."""
        given = json_format.MessageToDict(_specification(run["pipeline_spec"]))
        failed = [one for one in self._tasks[run["run_id"]] if one["state"] == "FAILED"]
        status: dict[str, Any] = {"state": "FAILED" if failed else "SUCCEEDED", "pipelineTaskName": "exit-handler-1"}
        status["pipelineJobResourceName"] = run["display_name"]
        if failed:
            status["error"] = {"message": failed[0]["error"]["message"]}
        values = {}
        for name, source in given["root"]["dag"]["tasks"][task]["inputs"]["parameters"].items():
            if "taskFinalStatus" in source:
                values[name] = status
            elif "componentInputParameter" in source:
                values[name] = run["runtime_config"]["parameters"][source["componentInputParameter"]]
            else:
                values[name] = source["runtimeValue"]["constant"].replace("{{$.pipeline_job_uuid}}", run["run_id"])
        return values

    def _end(self, run: dict[str, Any], state: str) -> None:
        run["state"], run["finished_at"] = state, _text(self.now)
        for task in self._tasks[run["run_id"]]:
            if task["state"] == "RUNNING":
                task["state"], task["end_time"] = "CANCELED", _text(self.now)

    def _add_routes(self) -> None:
        def route(method: str, path: str) -> Callable[[Callable[[Request], Any]], Any]:
            return lambda function: self._service.route(method, BASE + path)(functools.partial(self._answer, function))

        route("GET", "/healthz")(lambda _request: {"multi_user": self.multi_user})
        route("GET", "/experiments")(self._list_experiments)
        route("POST", "/experiments")(self._create_experiment)
        route("GET", "/runs")(self._list_runs)
        route("POST", "/runs")(self._create_run)
        route("GET", "/runs/{run_id}")(self._get_run)
        route("POST", "/runs/{run_id}:terminate")(self._terminate_run)

    def _answer(self, function: Callable[[Request], Any], request: Request) -> Any:
        if self.token is not None and request.caller != f"Bearer {self.token}":
            raise ServiceError(401, "Request header error: there is no user identity header.")
        return function(request)

    def _check_namespace(self, namespace: str | None) -> None:
        if not self.multi_user and namespace:
            raise ServiceError(400, "Invalid input error: In single-user mode, the request shouldn't name a namespace.")
        if self.multi_user and namespace not in self.profiles:
            raise ServiceError(403, f"PermissionDenied: User is not authorized to access namespace {namespace!r}")

    def _list_experiments(self, request: Request) -> Any:
        self._check_namespace(request.query.get("namespace"))
        return {"experiments": _filtered(self.experiments.values(), request.query.get("filter"))}

    def _create_experiment(self, request: Request) -> Any:
        body = request.json
        _only(body, {"display_name", "description", "namespace"})
        self._check_namespace(body.get("namespace"))
        name = body.get("display_name")
        if not name:
            raise ServiceError(400, "Invalid input error: Experiment name is empty. Please specify a valid one.")
        if any(known["display_name"] == name for known in self.experiments.values()):
            raise ServiceError(409, f"Already exist error: an experiment named {name} already exists.")
        experiment = {**body, "experiment_id": str(uuid.uuid4()), "created_at": _text(self.now)}
        self.experiments[experiment["experiment_id"]] = experiment
        return experiment

    def _list_runs(self, request: Request) -> Any:
        experiment = request.query.get("experiment_id")
        runs = [run for run in self.runs.values() if run["experiment_id"] == experiment]
        return {"runs": _filtered(runs, request.query.get("filter"))}

    def _create_run(self, request: Request) -> Any:
        body = request.json
        _only(body, {"display_name", "experiment_id", "pipeline_spec", "runtime_config", "service_account"})
        if not body.get("display_name"):
            raise ServiceError(400, "Invalid input error: The run name is empty. Please specify a valid name.")
        if body.get("experiment_id") not in self.experiments:
            raise ServiceError(404, f"ResourceNotFoundError: Experiment {body.get('experiment_id')} not found.")
        specification = _specification(body.get("pipeline_spec") or {})
        if _exit_tasks(specification) and not self.knows_final_status:
            raise ServiceError(
                500,
                'Internal error: compiling DAG "root": failed to add implicit deps: task final status not supported '
                "yet",
            )
        if self.refuses_root and '"runAsUser": "0"' in json.dumps(body["pipeline_spec"]):
            why = "the container security context enforces non-root execution (allowPrivilegeEscalation=false)"
            why = f'runAsUser=0 (root) is not allowed for component "comp-train": {why}; use a non-root UID instead'
            raise ServiceError(500, f"Internal error: {why}")
        _check_runtime(specification, body.get("runtime_config") or {})
        run_id = str(uuid.uuid4())
        self._tasks[run_id] = [
            {"display_name": name, "task_id": str(uuid.uuid4()), "state": "PENDING", "create_time": _text(self.now),
             "end_time": UNSET, "child_tasks": [{"pod_name": f"{body['display_name']}-{name}-executor"}]}
            for name in _task_names(specification, with_conditions=not self.rejected)
        ]  # fmt: skip
        created = {"run_id": run_id, "state": "PENDING", "created_at": _text(self.now), "finished_at": UNSET}
        if self.mlflow is not None:
            created["plugins_output"] = {"mlflow": self.mlflow.create_for(body["display_name"])}
        self.runs[run_id] = {**body, **created}
        if self.steps is not None:
            values = (body.get("runtime_config") or {}).get("parameters", {})
            self.steps.add(run_id, body["display_name"], specification, values)
        return self.runs[run_id]

    def _get_run(self, request: Request) -> Any:
        run = self._known(request)
        if not self.hold:
            self.advance(run["run_id"])
        return {**run, "run_details": {"task_details": self._tasks[run["run_id"]]}}

    def _terminate_run(self, request: Request) -> Any:
        run = self._known(request)
        if run["state"] in ENDED:
            raise ServiceError(400, f"Failed to terminate a run: it has finished with state {run['state']}.")
        run["state"] = "CANCELING"
        return {}

    def _known(self, request: Request) -> dict[str, Any]:
        run_id = request.parts["run_id"]
        if run_id not in self.runs:
            raise ServiceError(404, f"ResourceNotFoundError: Run {run_id} not found.")
        return self.runs[run_id]


def _error_body(error: ServiceError) -> dict[str, object]:
    """Return the body of the server's errors."""
    return {"error": error.message, "code": 3, "message": error.message, "details": []}


def _specification(given: dict[str, Any]) -> PipelineSpec:
    """Validate the pipeline spec and the platform spec of a request; return the former."""
    both = {"pipeline_spec", "platform_spec"} & set(given)
    try:
        specification = json_format.ParseDict(given["pipeline_spec"] if both else given, PipelineSpec())
        platforms = json_format.ParseDict(given.get("platform_spec", {}) if both else {}, PlatformSpec())
    except json_format.ParseError as error:
        raise ServiceError(400, f"Invalid input error: Failed to parse the pipeline spec: {error}") from None
    if not specification.pipeline_info.name or not specification.root.dag.tasks:
        raise ServiceError(400, "Invalid input error: The pipeline spec is empty.")
    executors = json_format.MessageToDict(specification.deployment_spec)["executors"]
    for platform, single in platforms.platforms.items():
        if platform != "kubernetes":
            raise ServiceError(400, f"Invalid input error: Unknown platform {platform}.")
        for label, pod in json_format.MessageToDict(single)["deploymentSpec"]["executors"].items():
            security = set(pod.get("securityContext", {}))
            if label not in executors or set(pod) - POD_SETTINGS or security - SECURITY_CONTEXT:
                raise ServiceError(400, f"Invalid input error: The platform spec of {label} cannot be read.")
    return specification


def _check_runtime(specification: PipelineSpec, runtime: dict[str, Any]) -> None:
    _only(runtime, {"parameters", "pipeline_root"})
    root = runtime.get("pipeline_root")
    if root and not root.startswith(ROOTS):
        raise ServiceError(400, f"Invalid input error: Unsupported pipeline root {root}.")
    declared = dict(specification.root.input_definitions.parameters)
    values = runtime.get("parameters") or {}
    if unknown := sorted(set(values) - set(declared)):
        raise _invalid(f"parameter(s) provided are not required by pipeline: {', '.join(unknown)}")
    for name, definition in declared.items():
        if name not in values and not definition.is_optional and not definition.HasField("default_value"):
            raise _invalid(f"parameter {name} is not optional, yet has neither default value nor user provided value")
        kind = definition.parameter_type
        if name in values and not is_of_type(values[name], kind):
            raise _invalid(f"input parameter {name} requires type {TYPES[kind]}")


def _invalid(message: str) -> ServiceError:
    return ServiceError(400, f"Invalid input error: {message}")


def _exit_tasks(specification: PipelineSpec) -> set[str]:
    """Return the names of the tasks that get the final status of others."""
    tasks = specification.root.dag.tasks.items()
    return {
        name
        for name, task in tasks
        if any(one.WhichOneof("kind") == "task_final_status" for one in task.inputs.parameters.values())
    }


def _executors(specification: PipelineSpec) -> dict[str, str]:
    """Return the executors of all tasks by the task's name."""
    components = specification.components
    dags = [specification.root.dag, *(component.dag for component in components.values())]
    found = {name: components[task.component_ref.name] for dag in dags for name, task in dag.tasks.items()}
    return {name: component.executor_label for name, component in found.items() if component.executor_label}


def _task_names(specification: PipelineSpec, *, with_conditions: bool) -> list[str]:
    """Return all tasks by name in topological order, those of a condition after it."""
    names: list[str] = []

    def walk(dag: Any) -> None:
        left = dict(dag.tasks)
        while left:
            name = next(n for n, task in sorted(left.items()) if not set(task.dependent_tasks) & set(left))
            task = left.pop(name)
            component = specification.components[task.component_ref.name]
            if not component.HasField("dag"):
                names.append(name)
            elif with_conditions or name.startswith("exit-handler"):
                names.append(name)
                walk(component.dag)

    walk(specification.root.dag)
    return names


def _filtered(things: Any, text: str | None) -> list[Any]:
    """Return the items that match a filter; only equality of names is supported."""
    wanted = json.loads(text or "{}").get("predicates", [])
    for predicate in wanted:
        if predicate.get("operation") not in (1, "EQUALS") or predicate.get("key") != "display_name":
            raise ServiceError(400, f"Invalid input error: the filter {predicate} is not understood.")
    return [thing for thing in things if all(thing["display_name"] == one["stringValue"] for one in wanted)]


def _only(body: dict[str, Any], known: set[str]) -> None:
    unknown = set(body) - known
    if unknown:
        raise ServiceError(400, f"Invalid input error: unknown field {sorted(unknown)[0]!r}.")


def _text(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
