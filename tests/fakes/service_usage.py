"""Service Usage: a project's enabled services, service agents and quotas."""

from __future__ import annotations

import urllib.parse
from typing import Any

from tests.fakes.errors import ServiceError, not_found
from tests.fakes.http_service import HttpService, Request
from tests.fakes.world import Project, World

# The agents that a service's identity is made with; the first is the one that is answered.
AGENTS = {
    "aiplatform.googleapis.com": ("gcp-sa-aiplatform", "gcp-sa-aiplatform-cc"),
    "cloudbuild.googleapis.com": ("gcp-sa-cloudbuild",),
    "dataflow.googleapis.com": ("dataflow-service-producer-prod",),
    "tpu.googleapis.com": ("cloud-tpu",),
}
# Enabling it creates the project's default account, without a role where an organization forbids automatic grants.
COMPUTE = "compute.googleapis.com"
PAGE = 50


class FakeServiceUsage:
    """The service, with configurable delays.

    `looks` is the number of polls before an operation is done. With `lazy`, the custom code agent is created by the
    first custom job instead of together with Vertex AI's service agent. `metrics` are quota metrics in addition to
    those of `world.quotas`, with their default limits.
    """

    def __init__(self, service: HttpService, world: World) -> None:
        self.looks = 2
        self.lazy = False
        self.metrics: dict[str, int] = {}
        self._world = world
        self._operations: dict[str, dict[str, Any]] = {}
        self._add_services(service)
        self._add_identities(service)
        self._add_operations(service)
        self._add_quotas(service)

    def make_agents(self, project: Project, service: str) -> str:
        """Return the e-mail of a service's identity in a project; created if missing."""
        names = AGENTS[service][:1] if self.lazy else AGENTS[service]
        emails = [f"service-{project.number}@{name}.iam.gserviceaccount.com" for name in names]
        with self._world.lock:
            for email in emails:
                if email not in self._world.accounts:
                    self._world.accounts[email] = {"email": email}
                    self._world.writes["identity"] += 1
        return emails[0]

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

            def make() -> dict[str, Any]:
                email = self.make_agents(project, name)
                return {"email": email, "uniqueId": f"1{abs(hash(email)) % 10**20:020d}"}

            return self._operation("finishidentity", make)

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

    def _metric(self, project: Project, metric: str, regions: dict[str, int]) -> dict[str, Any]:
        service, _, _ = metric.partition("/")
        parent = f"projects/{project.number}/services/{service}/consumerQuotaMetrics"
        name = f"{parent}/{urllib.parse.quote(metric, safe='')}"
        buckets: list[dict[str, Any]] = [
            {"effectiveLimit": str(self.metrics.get(metric, 0)), "defaultLimit": str(self.metrics.get(metric, 0))}
        ]
        place = "zone" if service == "tpu.googleapis.com" else "region"
        for region, limit in regions.items():
            buckets.append({"effectiveLimit": str(limit), "defaultLimit": "0", "dimensions": {place: region}})
        limit = {
            "name": f"{name}/limits/%2Fproject%2F{place}",
            "unit": f"1/{{project}}/{{{place}}}",
            "metric": metric,
            "quotaBuckets": buckets,
        }
        return {"name": name, "metric": metric, "unit": "1", "consumerQuotaLimits": [limit]}

    def _project(self, request: Request, permission: str) -> Project:
        project = self._world.project(request.parts["project"])
        self._world.require(request.caller, permission, f"projects/{project.id}")
        return project

    def _operation(self, kind: str, work: Any) -> dict[str, Any]:
        with self._world.lock:
            name = f"{kind}.p2-{self._world.number()}"
            self._operations[name] = {"looks": self.looks, "work": work}
        return {"name": f"operations/{name}"}
