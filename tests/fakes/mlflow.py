"""An MLflow tracking server on loopback: the calls that Slipway makes, as strict as MLflow 3's SQL store.

Limits, names and messages: mlflow/utils/validation.py. Parameters that do not change, metrics that are added once, tags
that are replaced: https://mlflow.org/docs/latest/rest-api.html#log-batch.
Artifacts: mlflow/store/artifact/http_artifact_repo.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.errors import Faults
from tests.fakes.http_service import HttpService, Raw, Request

NAMES = re.compile(r"[/\w.\- ]{1,250}")
LIMITS = {"metrics": 1000, "params": 100, "tags": 100}
API = "/api/2.0/mlflow"
FILTER = re.compile(r"tags\.`slipway\.run` = '([^']*)'")


class Refused(Exception):
    """An error in MLflow's form."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.status = code, status


@dataclass
class StoredRun:
    """A run: what MLflow shows of it."""

    info: dict[str, Any]
    params: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    metrics: list[dict[str, Any]] = field(default_factory=list)

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(each["step"], each["value"]) for each in self.metrics if each["key"] == name]

    def as_json(self) -> dict[str, Any]:
        latest: dict[str, dict[str, Any]] = {}
        for each in self.metrics:
            before = latest.get(each["key"])
            if before is None or (each["step"], each["timestamp"]) >= (before["step"], before["timestamp"]):
                latest[each["key"]] = each
        pairs = {name: [{"key": k, "value": v} for k, v in getattr(self, name).items()] for name in ("params", "tags")}
        return {"info": self.info, "data": {"metrics": list(latest.values()), **pairs}}


class FakeMlflow:
    """The server; a context manager. `stop` and `start` again keep what it has stored, but the port changes.

    `authorization` is the header that it demands; `root` is where it stores artifacts; `gate` is that of `HttpService`.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, StoredRun] = {}
        self.artifacts: dict[str, bytes] = {}
        self.authorization: str | None = None
        self.root = "mlflow-artifacts:"
        self.calls: list[str] = []
        self.url = ""
        self.gate: Callable[[Request], Any] = lambda _: None

    def start(self) -> FakeMlflow:
        self._service = HttpService("mlflow", self.faults, lambda _headers: "")
        self._service.gate = lambda request: self.gate(request)
        for method, path, function in (
            ("GET", "/experiments/get-by-name", self._experiment),
            ("POST", "/experiments/create", self._create_experiment),
            ("POST", "/runs/search", self._search),
            ("POST", "/runs/create", self._create),
            ("GET", "/runs/get", lambda request: {"run": self._of(request.query).as_json()}),
            ("POST", "/runs/log-batch", self._log),
            ("POST", "/runs/update", self._update),
        ):
            self._service.route(method, API + path)(self._answering(path, function))
        self._service.route("PUT", f"{API}-artifacts/artifacts/{{path=**}}")(self._answering("artifacts", self._put))
        self.url = f"http://127.0.0.1:{self._service.start(None)}"
        return self

    def stop(self) -> None:
        self._service.stop()
        self._service.disconnect()

    def __enter__(self) -> FakeMlflow:
        return self.start()

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def run(self, name: str) -> StoredRun:
        """Return the only run of this name."""
        [run] = [run for run in self.runs.values() if run.info["run_name"] == name]
        return run

    def _answering(self, name: str, function: Any) -> Any:
        def answer(request: Request) -> Any:
            self.calls.append(name)
            if self.authorization not in (None, request.headers.get("Authorization")):
                return Raw(b"You are not authenticated.", 401)
            try:
                return function(request)
            except Refused as error:
                return Raw(f'{{"error_code": "{error.code}", "message": "{error}"}}'.encode(), error.status)

        return answer

    def _experiment(self, request: Request) -> Any:
        name = request.query["experiment_name"]
        if name not in self.experiments:
            raise Refused("RESOURCE_DOES_NOT_EXIST", f"Could not find experiment with name '{name}'", 404)
        return {"experiment": {"experiment_id": self.experiments[name], "name": name}}

    def _create_experiment(self, request: Request) -> Any:
        name = request.json["name"]
        if name in self.experiments:
            raise Refused("RESOURCE_ALREADY_EXISTS", f"Experiment '{name}' already exists.")
        self.experiments[name] = str(len(self.experiments) + 1)
        return {"experiment_id": self.experiments[name]}

    def _search(self, request: Request) -> Any:
        [wanted] = FILTER.fullmatch(request.json["filter"]).groups()  # type: ignore[union-attr]
        found = [
            run
            for run in self.runs.values()
            if run.info["experiment_id"] in request.json["experiment_ids"] and run.tags.get("slipway.run") == wanted
        ]
        return {"runs": [run.as_json() for run in found[: request.json["max_results"]]]} if found else {}

    def create_for(self, name: str) -> dict[str, Any]:
        """Create a run as the plugin of a Kubeflow Pipelines server does; return what the plugin says of it.

        Source: proposals/12862-mlflow-integration in kubeflow/pipelines.
        """
        experiment = self.experiments.setdefault("Default", "0")
        run = self._stored({"experiment_id": experiment, "run_name": name, "start_time": 0, "tags": []})
        entries = {"experiment_id": experiment, "root_run_id": run.info["run_id"]}
        return {"entries": {key: {"value": value} for key, value in entries.items()}, "state": "PLUGIN_SUCCEEDED"}

    def _create(self, request: Request) -> Any:
        if request.json["experiment_id"] not in self.experiments.values():
            raise Refused("RESOURCE_DOES_NOT_EXIST", "No such experiment", 404)
        return {"run": self._stored(request.json).as_json()}

    def _stored(self, body: dict[str, Any]) -> StoredRun:
        number, experiment = f"{len(self.runs):032x}", body["experiment_id"]
        info = {
            "run_id": number, "experiment_id": experiment, "run_name": body["run_name"], "status": "RUNNING",
            "start_time": body["start_time"], "artifact_uri": f"{self.root}/{experiment}/{number}/artifacts",
        }  # fmt: skip
        self.runs[number] = StoredRun(info, tags={each["key"]: each["value"] for each in body["tags"]})
        return self.runs[number]

    def _log(self, request: Request) -> Any:
        body = request.json
        run = self._of(body)
        for kind, limit in LIMITS.items():
            items = body.get(kind, [])
            if len(items) > limit:
                raise Refused("INVALID_PARAMETER_VALUE", f"A batch can contain at most {limit} {kind}.")
            for each in items:
                if not NAMES.fullmatch(each["key"]):
                    raise Refused("INVALID_PARAMETER_VALUE", f"Invalid name: {each['key']}")
        for each in body.get("params", []):
            if len(each["value"]) > 6000 or run.params.setdefault(each["key"], each["value"]) != each["value"]:
                raise Refused("INVALID_PARAMETER_VALUE", "Changing param values is not allowed.")
        for each in body.get("metrics", []):
            assert isinstance(each["value"], int | float)
            run.metrics += [each] if each not in run.metrics else []
        run.tags |= {each["key"]: each["value"] for each in body.get("tags", [])}
        return {}

    def _update(self, request: Request) -> Any:
        run = self._of(request.json)
        run.info |= {key: value for key, value in request.json.items() if key in ("status", "end_time")}
        return {"run_info": run.info}

    def _put(self, request: Request) -> Any:
        self.artifacts[request.parts["path"]] = request.body
        return {}

    def _of(self, body: dict[str, Any]) -> StoredRun:
        if body["run_id"] not in self.runs:
            raise Refused("RESOURCE_DOES_NOT_EXIST", f"Run with id={body['run_id']} not found", 404)
        return self.runs[body["run_id"]]
