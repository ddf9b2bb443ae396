"""Service Usage: a project's enabled services, service agents and quotas."""

from __future__ import annotations

import urllib.parse
from typing import Any

from tests.fakes.errors import ServiceError, not_found
from tests.fakes.http_service import HttpService, Request
from tests.fakes.world import Project, World

# The agent that is a service's identity. That of Vertex AI's custom code is created by the first custom job.
AGENTS = {
    "aiplatform.googleapis.com": "gcp-sa-aiplatform",
    "cloudbuild.googleapis.com": "gcp-sa-cloudbuild",
    "dataflow.googleapis.com": "dataflow-service-producer-prod",
    "tpu.googleapis.com": "cloud-tpu",
}
# Enabling it creates the project's default account, without a role where an organization forbids automatic grants.
COMPUTE = "compute.googleapis.com"
PAGE = 50


class FakeServiceUsage:
    """The service, with configurable delays.

    `looks` is the number of polls before an operation is done. `metrics` are quota metrics in addition to those of
    `world.quotas`, with their default limits.
    """

    def __init__(self, service: HttpService, world: World) -> None:
        self.looks = 2
        self.metrics: dict[str, int] = {}
        self._world = world
        self._operations: dict[str, dict[str, Any]] = {}
        self._add_services(service)
        self._add_identities(service)
        self._add_operations(service)
        self._add_quotas(service)

    def make_agent(self, project: Project, service: str) -> str:
        """Return the e-mail of a service's identity in a project; created if missing."""
        email = f"service-{project.number}@{AGENTS[service]}.iam.gserviceaccount.com"
        with self._world.lock:
            if email not in self._world.accounts:
                self._world.accounts[email] = {"email": email}
                self._world.writes["identity"] += 1
        return email

    def _add_services(self, service: HttpService) -> None:
        def resource(project: Project, name: str) -> dict[str, Any]:
            return {
                "name": f"projects/{project.number}/services/{name}",
                "parent": f"projects/{project.number}",
                "state": "ENABLED" if name in project.services else "DISABLED",
            }

        @service.route("GET", "/v1/projects/{project}/services:batchGet")
        def batch_get(request: Request) -> Any:
            project = self._project(request, "serviceusage.services.get")
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(request.target).query)
            names = [name.rpartition("/")[2] for name in query.get("names", [])]
            if not 0 < len(names) <= 30:
                raise ServiceError(400, "Between 1 and 30 services can be got at once.")
            return {"services": [resource(project, name) for name in names]}

        @service.route("POST", "/v1/projects/{project}/services:batchEnable")
        def batch_enable(request: Request) -> Any:
            project = self._project(request, "serviceusage.services.enable")
            names = request.json.get("serviceIds", [])
            if not 0 < len(names) <= 20:
                raise ServiceError(400, "Between 1 and 20 services can be enabled at once.")

            def enable() -> dict[str, Any]:
                new = set(names) - project.services
                project.services |= new
                if COMPUTE in new:
                    self._world.add_account(project, f"{project.number}-compute@developer.gserviceaccount.com")
                self._world.settling.update(dict.fromkeys(new, self._world.settling_calls))
                self._world.writes["service"] += len(new)
                return {"services": [resource(project, name) for name in names]}

            return self._operation("acf", enable)

    def _add_identities(self, service: HttpService) -> None:
        @service.route("POST", "/v1beta1/projects/{project}/services/{service}:generateServiceIdentity")
        def generate(request: Request) -> Any:
            project = self._project(request, "serviceusage.services.generateServiceIdentity")
            name = request.parts["service"]
            if name not in AGENTS:
                raise ServiceError(400, f"Service {name} has no service identity.")
            self._world.require_service(project, name)
            email = self.make_agent(project, name)
            answer = {"email": email, "uniqueId": f"1{abs(hash(email)) % 10**20:020d}"}
            kind = "type.googleapis.com/google.api.serviceusage.v1beta1.ServiceIdentity"
            number = f"operations/finished.DONE_OPERATION.{self._world.number()}"
            return {"name": number, "done": True, "response": {"@type": kind, **answer}}

    def _add_operations(self, service: HttpService) -> None:
        @service.route("GET", "/v1/operations/{name}")
        @service.route("GET", "/v1beta1/operations/{name}")
        def get(request: Request) -> Any:
            with self._world.lock:
                operation = self._operations.get(request.parts["name"])
                if operation is None:
                    raise not_found(f"operations/{request.parts['name']}")
                operation["looks"] -= 1
                name = f"operations/{request.parts['name']}"
                if operation["looks"] > 0:
                    return {"name": name}
                if "response" not in operation:
                    operation["response"] = operation["work"]()
                return {"name": name, "done": True, "response": operation["response"]}

    def _add_quotas(self, service: HttpService) -> None:
        @service.route("GET", "/v1beta1/projects/{project}/services/{service}/consumerQuotaMetrics")
        def list_(request: Request) -> Any:
            project = self._project(request, "serviceusage.quotas.get")
            limits: dict[str, dict[str, int]] = {name: {} for name in self.metrics}
            for (owner, region, metric), limit in self._world.quotas.items():
                if owner == project.id and metric.startswith(request.parts["service"]):
                    limits.setdefault(metric, {})[region] = limit
            start = int(request.query.get("pageToken", 0))
            page = sorted(limits)[start : start + PAGE]
            answer = {"metrics": [self._metric(project, metric, limits[metric]) for metric in page]}
            return answer if start + PAGE >= len(limits) else {**answer, "nextPageToken": str(start + PAGE)}

    def _metric(self, project: Project, metric: str, places: dict[str, int]) -> dict[str, Any]:
        service, _, _ = metric.partition("/")
        parent = f"projects/{project.number}/services/{service}/consumerQuotaMetrics"
        name = f"{parent}/{urllib.parse.quote(metric, safe='')}"
        default = "zone" if service == "tpu.googleapis.com" else "region"
        limits = []
        # A metric may have limits by zone and others by region.
        for kind in sorted({_kind(place) for place in places} or {default}):
            buckets: list[dict[str, Any]] = [
                {"effectiveLimit": str(self.metrics.get(metric, 0)), "defaultLimit": str(self.metrics.get(metric, 0))}
            ]
            for place, limit in places.items():
                if _kind(place) == kind:
                    buckets.append({"effectiveLimit": str(limit), "defaultLimit": "0", "dimensions": {kind: place}})
            limits.append(
                {
                    "name": f"{name}/limits/%2Fproject%2F{kind}",
                    "unit": f"1/{{project}}/{{{kind}}}",
                    "metric": metric,
                    "quotaBuckets": buckets,
                }
            )
        return {"name": name, "metric": metric, "unit": "1", "consumerQuotaLimits": limits}

    def _project(self, request: Request, permission: str) -> Project:
        project = self._world.project(request.parts["project"])
        self._world.require(request.caller, permission, f"projects/{project.id}")
        return project

    def _operation(self, kind: str, work: Any) -> dict[str, Any]:
        with self._world.lock:
            name = f"{kind}.p2-{self._world.number()}"
            self._operations[name] = {"looks": self.looks, "work": work}
        return {"name": f"operations/{name}"}


def _kind(place: str) -> str:
    return "zone" if place.count("-") == 2 else "region"
