"""The TPU API v2: queued resources and their nodes, which pass through their states with a shortened clock."""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.fakes.errors import ServiceError, not_found
from tests.fakes.http_service import HttpService, Request
from tests.fakes.paging import page_of
from tests.fakes.tpu.catalogue import GENERATIONS, Slice
from tests.fakes.tpu.checks import account_of, check_request, check_zone, valid_for
from tests.fakes.tpu.hosts import Host, Machines, hosts_of
from tests.fakes.tpu.queued import Queued, node_of, timestamp
from tests.fakes.world import Project, World

PARENT = "/v2/projects/{project}/locations/{zone}"
TYPE = "type.googleapis.com/google.cloud.tpu.v2"
METADATA = "type.googleapis.com/google.cloud.common.OperationMetadata"
STARTING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE")
# States in which a request may be deleted without `force`.
IDLE = ("ACCEPTED", "FAILED", "SUSPENDED")
TICK_SECONDS = 0.01


class FakeTpu:
    """The service; the hosts of its nodes run on `machines`.

    `seconds` is how long each state lasts at least. In the zones of `stocked_out` requests wait, in those of
    `exhausted` provisioning fails, in those of `provisioning` it never ends; the project may not use
    those of `forbidden`. `second` is how long a second of the requests' `validUntilDuration` takes. `history` has every
    state of every queued resource that there was: (name, state), with "" when it was removed.
    """

    def __init__(self, service: HttpService, world: World, machines: Machines) -> None:
        self.seconds = {
            **dict.fromkeys(("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES"), 0.02),
            "PROVISIONING": 0.05,
            "SUSPENDING": 0.1,
            "DELETING": 0.05,
        }
        self.grace_seconds = 1.0
        self.second = 1.0
        self.stocked_out: set[str] = set()
        self.exhausted: set[str] = set()
        self.provisioning: set[str] = set()
        self.forbidden: set[str] = set()
        self.machines = machines
        self.resources: dict[str, Queued] = {}
        self.history: list[tuple[str, str]] = []
        self._world = world
        self._operations: dict[str, dict[str, Any]] = {}
        self._requests: dict[str, dict[str, Any]] = {}
        self._lock = threading.RLock()
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(64, thread_name_prefix="tpu")
        self._clock: threading.Thread | None = None
        self._add_queued_resources(service)
        self._add_nodes(service)
        self._add_catalogue(service)

    def stop(self) -> None:
        """Kill all hosts."""
        self._over.set()
        if self._clock is not None:
            self._clock.join()
        for resource in self.resources.values():
            for host in resource.hosts:
                host.stop(0.0)
                host.close()
        self._pool.shutdown()

    def states(self, name: str) -> list[str]:
        """Return the states that the queued resource of that id had, in order."""
        return [state for found, state in self.history if state and found.endswith(f"/{name}")]

    def host(self, name: str, number: int) -> Host:
        """Return a host of the active queued resource of that id."""
        with self._lock:
            return self._find(name).hosts[number]

    def preempt(self, name: str) -> None:
        """Take the TPU of a Spot request away, as the service does."""
        with self._lock:
            resource = self._find(name)
            if resource.state != "ACTIVE" or "spot" not in resource.body:
                raise AssertionError(f"{name} is {resource.state}, and only an active Spot TPU is preempted")
            self._suspend(resource, "SERVICE", "PREEMPTED")

    def kill_host(self, name: str, number: int) -> None:
        """Crash a host: its processes are killed, and the machine restarts, which runs the start-up script again."""
        self.host(name, number).restart()

    def _find(self, name: str) -> Queued:
        return next(each for each in self.resources.values() if name in (each.name, each.name.rpartition("/")[2]))

    def _add_queued_resources(self, service: HttpService) -> None:
        @service.route("POST", f"{PARENT}/queuedResources")
        def create(request: Request) -> Any:
            return self._create(request)

        @service.route("GET", f"{PARENT}/queuedResources")
        def list_(request: Request) -> Any:
            project = self._project(request, "tpu.nodes.list")
            parent = f"projects/{project.id}/locations/{request.parts['zone']}/"
            with self._lock:
                found = [self._shown(each) for each in self.resources.values() if each.name.startswith(parent)]
            return _page("queuedResources", found, request)

        @service.route("GET", f"{PARENT}/queuedResources/{{name}}")
        def get(request: Request) -> Any:
            with self._lock:
                return self._shown(self._named(request, "tpu.nodes.get"))

        @service.route("DELETE", f"{PARENT}/queuedResources/{{name}}")
        def delete(request: Request) -> Any:
            with self._lock:
                if earlier := self._requests.get(request.query.get("requestId", "")):
                    return earlier
                resource = self._named(request, "tpu.nodes.delete")
                if resource.state == "DELETING":
                    raise _precondition(f"The queued resource {resource.name} is being deleted.")
                idle = resource.state in IDLE or (resource.node is None and resource.state != "PROVISIONING")
                if request.query.get("force") != "true" and not idle:
                    raise _precondition(
                        f"The queued resource {resource.name} is in state {resource.state} and has nodes. Delete its "
                        "nodes first, or use force."
                    )
                self._delete(resource)
                return self._operation(request, resource.name, "delete", lambda: {} if resource.removed else None)

    def _create(self, request: Request) -> Any:
        project = self._project(request, "tpu.nodes.create")
        zone, identity = request.parts["zone"], request.query.get("queuedResourceId", "")
        body = {name: value for name, value in request.json.items() if name not in ("name", "createTime", "state")}
        found = check_request(self._world, project, zone, identity, body, request.caller)
        name = f"projects/{project.id}/locations/{zone}/queuedResources/{identity}"
        with self._lock:
            if earlier := self._requests.get(request.query.get("requestId", "")):
                return earlier
            nodes = {each.body["tpu"]["nodeSpec"][0]["nodeId"] for each in self.resources.values() if each.zone == zone}
            if name in self.resources:
                raise ServiceError(409, f"Resource '{name}' already exists")
            if (node := body["tpu"]["nodeSpec"][0]["nodeId"]) in nodes:
                raise ServiceError(
                    409, f"Resource 'projects/{project.id}/locations/{zone}/nodes/{node}' already exists"
                )
            self._check_quota(project, zone, found, "spot" in body)
            seconds = valid_for(body)
            now = time.monotonic()
            expires = None if seconds is None else now + seconds * self.second
            body |= {"name": name, "createTime": timestamp(), "state": {"state": "CREATING", "creatingData": {}}}
            resource = self.resources[name] = Queued(name, body, found, project, now, expires)
            self.history.append((name, "CREATING"))
            if self._clock is None:
                self._clock = threading.Thread(target=self._run_clock, daemon=True)
                self._clock.start()

            def created() -> dict[str, Any] | None:
                return None if resource.state == "CREATING" else {"@type": f"{TYPE}.QueuedResource", **resource.body}

            return self._operation(request, name, "create", created)

    def _check_quota(self, project: Project, zone: str, wanted: Slice, spot: bool) -> None:
        """Requests that failed or were suspended count until they are deleted."""
        metric, name = wanted.quota(spot=spot)
        for kind, place in (("zone", zone), ("region", zone.rpartition("-")[0])):
            limit = self._world.quotas.get((project.id, place, metric))
            used = sum(
                each.slice.units
                for each in self.resources.values()
                if each.zone.startswith(place) and each.slice.quota(spot="spot" in each.body)[0] == metric
            )
            if limit is not None and used + wanted.units > limit:
                raise ServiceError(
                    429,
                    f"Quota limit '{name}PerProjectPer{kind.title()}ForTPUAPI' has been exceeded. Limit: {limit} in "
                    f"{kind} {place}.",
                )

    def _add_nodes(self, service: HttpService) -> None:
        @service.route("GET", f"{PARENT}/nodes")
        def list_(request: Request) -> Any:
            project = self._project(request, "tpu.nodes.list")
            parent = f"projects/{project.id}/locations/{request.parts['zone']}/"
            with self._lock:
                nodes = [copy.deepcopy(each.node) for each in self.resources.values() if each.node]
            return _page("nodes", [node for node in nodes if node["name"].startswith(parent)], request)

        @service.route("GET", f"{PARENT}/nodes/{{name}}")
        def get(request: Request) -> Any:
            with self._lock:
                resource = self._with_node(request, "tpu.nodes.get")
                node = copy.deepcopy(resource.node)
                # A new node's health is known a little later.
                if resource.node and resource.node["state"] == "READY":
                    resource.node["health"] = "HEALTHY"
                return node

        @service.route("DELETE", f"{PARENT}/nodes/{{name}}")
        def delete(request: Request) -> Any:
            with self._lock:
                resource = self._with_node(request, "tpu.nodes.delete")
                if resource.state != "ACTIVE":
                    raise _precondition(f"The queued resource {resource.name} is {resource.state}.")
                self._suspend(resource, "USER", "DELETING")
                return self._operation(request, resource.name, "delete", lambda: None if resource.node else {})

    def _add_catalogue(self, service: HttpService) -> None:
        @service.route("GET", f"{PARENT}/runtimeVersions")
        def runtime_versions(request: Request) -> Any:
            self._project(request, "tpu.runtimeversions.list")
            zone = request.parts["zone"]
            versions = {name for each in GENERATIONS if zone in each.zones for name in each.runtimes}
            path = request.path.removeprefix("/v2/")
            return _page(
                "runtimeVersions", [{"name": f"{path}/{one}", "version": one} for one in sorted(versions)], request
            )

        @service.route("GET", f"{PARENT}/operations/{{name}}")
        def operation(request: Request) -> Any:
            self._project(request, "tpu.operations.get")
            with self._lock:
                found = self._operations.get(request.parts["name"])
                if found is None:
                    raise not_found(request.path)
                if "done" not in found and (response := found["look"]()) is not None:
                    found |= {"done": True, "response": response}
                    found["metadata"] = {**found["metadata"], "endTime": timestamp()}
                return {name: value for name, value in found.items() if name != "look"}

    def _operation(self, request: Request, target: str, verb: str, look: Any) -> dict[str, Any]:
        project, zone = target.split("/")[1::2][:2]
        identity = f"operation-{round(1000 * time.time())}-{self._world.number()}"
        metadata = {"@type": METADATA, "apiVersion": "v2", "createTime": timestamp(), "target": target, "verb": verb}
        answer = {"name": f"projects/{project}/locations/{zone}/operations/{identity}", "metadata": metadata}
        self._operations[identity] = {**answer, "look": look}
        if request.query.get("requestId"):
            self._requests[request.query["requestId"]] = answer
        return answer

    def _project(self, request: Request, permission: str) -> Project:
        project = self._world.project(request.parts["project"])
        self._world.require_service(project, "tpu.googleapis.com")
        self._world.require(request.caller, permission, f"projects/{project.id}")
        check_zone(request.parts["zone"], self.forbidden)
        return project

    def _named(self, request: Request, permission: str) -> Queued:
        project = self._project(request, permission)
        name = f"projects/{project.id}/locations/{request.parts['zone']}/queuedResources/{request.parts['name']}"
        if name not in self.resources:
            raise ServiceError(404, f"Resource '{name}' was not found")
        return self.resources[name]

    def _with_node(self, request: Request, permission: str) -> Queued:
        project = self._project(request, permission)
        name = f"projects/{project.id}/locations/{request.parts['zone']}/nodes/{request.parts['name']}"
        for resource in self.resources.values():
            if resource.node and resource.node["name"] == name:
                return resource
        raise ServiceError(404, f"Resource '{name}' was not found")

    def _shown(self, resource: Queued) -> dict[str, Any]:
        return copy.deepcopy(resource.body)

    def _run_clock(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            with self._lock:
                for resource in list(self.resources.values()):
                    self._tick(resource)

    def _tick(self, resource: Queued) -> None:
        now, state = time.monotonic(), resource.state
        if now - resource.entered < self.seconds.get(state, 0.0) or (resource.work and not resource.work.done()):
            return
        if resource.work:
            resource.work.result()
        if state == "DELETING":
            resource.removed = True
            del self.resources[resource.name]
            self.history.append((resource.name, ""))
            for host in resource.hosts:
                host.close()
        elif state == "SUSPENDING":
            for host in resource.hosts:
                host.close()
            resource.node, resource.hosts = None, []
            self._enter(resource, "SUSPENDED", initiator=resource.body["state"]["stateInitiator"])
        elif state == "WAITING_FOR_RESOURCES" and resource.zone in self.stocked_out:
            if resource.expires is not None and now > resource.expires:
                self._fail(resource, 4, "The queued resource request expired: its valid until time has passed.")
        elif state == "PROVISIONING" and resource.zone in self.exhausted:
            resource.node = None
            self._fail(
                resource,
                8,
                f'There is no more capacity in the zone "{resource.zone}"; you can try in another zone where Cloud TPU '
                "Nodes are offered (see https://cloud.google.com/tpu/docs/regions) [EID: 0x5e6d]",
            )
        elif state == "PROVISIONING" and resource.zone in self.provisioning:
            return
        elif state in STARTING[:-1]:
            self._enter(resource, STARTING[STARTING.index(state) + 1])
            if resource.state == "PROVISIONING":
                resource.node = node_of(resource)
            elif resource.state == "ACTIVE":
                self._boot(resource)

    def _boot(self, resource: Queued) -> None:
        assert resource.node is not None
        resource.node["state"] = "READY"
        email = account_of(resource.project, resource.node)
        resource.hosts = hosts_of(self.machines, resource.node, resource.slice, resource.project, email)
        for host in resource.hosts:
            host.boot()

    def _suspend(self, resource: Queued, initiator: str, node_state: str) -> None:
        assert resource.node is not None
        resource.node["state"] = node_state
        self._enter(resource, "SUSPENDING", initiator=initiator)
        for host in resource.hosts:
            host.preempted = initiator == "SERVICE"
        self._stop_hosts(resource)

    def _delete(self, resource: Queued) -> None:
        if resource.node:
            resource.node["state"] = "DELETING"
        self._enter(resource, "DELETING", initiator="USER")
        self._stop_hosts(resource)

    def _stop_hosts(self, resource: Queued) -> None:
        """Stop the hosts on threads of their own; until they have ended, the resource keeps its state."""
        hosts, earlier = resource.hosts, resource.work

        def stop() -> None:
            if earlier is not None:
                earlier.result()
            for stopping in [self._pool.submit(host.stop, self.grace_seconds) for host in hosts]:
                stopping.result()

        resource.work = self._pool.submit(stop)

    def _fail(self, resource: Queued, code: int, message: str) -> None:
        self._enter(resource, "FAILED")
        resource.body["state"]["failedData"] = {"error": {"code": code, "message": message}}

    def _enter(self, resource: Queued, state: str, initiator: str = "SERVICE") -> None:
        words = state.split("_")
        data = "".join([words[0].lower(), *(word.title() for word in words[1:])]) + "Data"
        resource.body["state"] = {"state": state, data: {}, "stateInitiator": initiator}
        if state == "WAITING_FOR_RESOURCES":
            del resource.body["state"][data]
        resource.entered = time.monotonic()
        self.history.append((resource.name, state))


def _page(name: str, things: list[Any], request: Request) -> dict[str, Any]:
    page, token = page_of(things, int(request.query.get("pageSize", 0)), request.query.get("pageToken", ""))
    return {name: page} | ({"nextPageToken": token} if token else {})


def _precondition(message: str) -> ServiceError:
    return ServiceError(400, message, "FAILED_PRECONDITION")
