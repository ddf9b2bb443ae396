"""The Kubernetes API over HTTPS, as the official client uses it, and the loop that runs the controllers."""

from __future__ import annotations

import copy
import functools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.certificates import certificates
from tests.fakes.errors import Faults
from tests.fakes.http_service import HttpService, Raw, Request, Stream
from tests.fakes.kubernetes import access, operator, schema
from tests.fakes.kubernetes.access import ADMIN, Action
from tests.fakes.kubernetes.jobs import JobController
from tests.fakes.kubernetes.nodes import Surroundings, schedule
from tests.fakes.kubernetes.pods import Kubelets
from tests.fakes.kubernetes.selectors import matches
from tests.fakes.kubernetes.store import (
    JOBS,
    JOBSETS,
    PODS,
    RESOURCES,
    TRAINJOBS,
    ApiError,
    Object,
    Resource,
    Store,
)

NAMESPACE = "kubeflow"


class FakeKubernetes:
    """A cluster; a context manager. Its files are in `folder`.

    `installed` are the operators: trainer, kueue. `queues`: Kueue's queues that have room. `around`: nodes, claims,
    service accounts, priority classes and secrets. `pruned`: the unknown fields that the server dropped from what
    clients sent. `faults`: errors to inject.
    """

    def __init__(self, folder: Path, seed: int = 0) -> None:
        self.folder = folder
        self.installed = {"trainer"}
        self.queues: set[str] = set()
        self.around = Surroundings(folder)
        self.pruned: list[str] = []
        self.faults = Faults(seed)
        self.store = Store()
        self.problems: list[BaseException] = []
        self._tokens = {secrets.token_hex(16): ADMIN}
        self._service = HttpService("kubernetes", self.faults, lambda headers: headers.get("Authorization") or "")
        self._add_routes()

    def __enter__(self) -> FakeKubernetes:
        port = self._service.start(certificates().server_context)
        self.host = f"https://localhost:{port}"
        service = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(port)}
        self.kubelets = Kubelets(self.store, self.around, service)
        self._jobs = JobController(self.store, self.around)
        self._loop = threading.Thread(target=self._control, daemon=True)
        self._loop.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.store.stop()
        self._loop.join()
        self.kubelets.stop()
        self._service.stop()
        if self.problems:
            raise self.problems[0]

    def add_claim(self, name: str) -> Path:
        """Create a PersistentVolumeClaim; return the folder with its contents."""
        folder = self.folder / f"claim-{name}"
        folder.mkdir()
        self.around.claims[name] = folder
        return folder

    def add_step(self, name: str, account: str = "pipeline-runner") -> Object:
        """Create the running pod of a pipeline's step, which a test plays, and return it."""
        container = {"name": "main", "image": "image"}
        specification = {"serviceAccountName": account, "restartPolicy": "Never", "containers": [container]}
        pod = {"metadata": {"name": name}, "spec": specification, "status": {"phase": "Running"}}
        return self.store.create(PODS, NAMESPACE, pod)

    def step_environment(self, pod: Object) -> dict[str, str]:
        """Return the variables with which a step's process is the one in the pod."""
        account = pod["spec"]["serviceAccountName"]
        metadata = pod["metadata"]
        return {
            "KUBECONFIG": str(self.kubeconfig(access.account_name(metadata["namespace"], account))),
            "KFP_POD_NAME": metadata["name"],
            "KFP_POD_UID": metadata["uid"],
        }

    def end_step(self, pod: Object, phase: str) -> None:
        """End a step's pod; its object is kept until it is deleted."""
        self.store.change(PODS, pod, lambda it: it["status"].update(phase=phase))

    def delete_pod(self, pod: Object) -> None:
        self.store.delete(PODS, self.pod(pod["metadata"]["name"]))

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """Return the path of a kubeconfig with a user's token; by default, of the cluster's administrator."""
        token = next((token for token, name in self._tokens.items() if name == user), secrets.token_hex(16))
        self._tokens[token] = user
        path = self.folder / f"{user.replace(':', '-')}.kubeconfig"
        cluster = {"server": self.host, "certificate-authority": str(certificates().authority_file)}
        context = {"cluster": "fake", "user": "user", "namespace": NAMESPACE}
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "fake", "context": context}],
            "current-context": "fake",
        }
        path.write_text(yaml.safe_dump(configuration))
        return path

    def pod(self, name: str) -> Object:
        """Return the pod whose name begins with `name`."""
        return next(pod for pod in self.store.all(PODS) if pod["metadata"]["name"].startswith(name))

    def left(self) -> list[str]:
        """Return the kinds and names of what there is of TrainJobs."""
        kinds = [*(kind for kind in RESOURCES if kind.installed_by), JOBS, PODS]
        found = [(kind, one) for kind in kinds for one in self.store.all(kind)]
        return [f"{kind.kind} {one['metadata']['name']}" for kind, one in found if "image" not in _images(one)]

    def wait(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait until `what` returns something true, and return it."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if self.problems:
                raise self.problems[0]
            if time.monotonic() > deadline:
                raise TimeoutError(f"Not within {seconds:g} s: {self.describe()}")
            with self.store.changed:
                self.store.changed.wait(0.05)
        return found

    def describe(self) -> str:
        """Return all objects with their status and their pods' output, for a test's message."""
        told = [
            f"{kind.kind} {one['metadata']['name']}: {one.get('status') or one.get('message', '')}"
            for kind in RESOURCES
            for one in self.store.all(kind)
        ]
        return "\n".join([*told, *self.kubelets.outputs()])

    def _control(self) -> None:
        """Run all controllers after each change, and a few times a second."""
        seen = -1
        while not self.store.stopped:
            with self.store.changed:
                if self.store.version == seen:
                    self.store.changed.wait(0.2)
                seen = self.store.version
            try:
                self._reconcile()
            except BaseException as error:
                self.problems.append(error)
                return

    def _reconcile(self) -> None:
        with self.store.lock:
            self.store.collect_garbage()
            if "kueue" in self.installed:
                operator.admit(self.store, self.queues)
            if "trainer" in self.installed:
                operator.reconcile_runtimes(self.store)
                operator.reconcile_train_jobs(self.store)
                operator.reconcile_jobsets(self.store)
            self._jobs.reconcile()
            schedule(self.store, self.around)
            self.kubelets.reconcile()

    def _add_routes(self) -> None:
        def route(method: str, path: str, function: Callable[[Request], Any]) -> None:
            self._service.route(method, path)(functools.partial(self._answer, function))

        route("GET", "/version", lambda _: {"major": "1", "minor": "33", "gitVersion": "v1.33.0"})
        route("GET", "/apis", self._groups)
        route("GET", "/apis/{group}", self._groups)
        route("GET", "/apis/{group}/{version}", self._discover)
        route("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", self._review)
        route("GET", "/api/v1/namespaces/{namespace}/pods/{name}/log", self._log)
        for root in ("/api/{version}", "/apis/{group}/{version}"):
            for scope in ("/namespaces/{namespace}/{plural}", "/{plural}"):
                route("GET", root + scope, self._list)
                route("POST", root + scope, self._create)
                route("GET", f"{root}{scope}/{{name}}", self._get)
                route("DELETE", f"{root}{scope}/{{name}}", self._delete)
                route("PATCH", f"{root}{scope}/{{name}}", self._patch)
                route("PUT", f"{root}{scope}/{{name}}", self._replace)

    def _answer(self, function: Callable[[Request], Any], request: Request) -> Any:
        try:
            if self._user(request) is None:
                raise ApiError(401, "Unauthorized")
            return function(request)
        except PageNotFound:
            return _page_not_found()
        except ApiError as error:
            return Raw(json.dumps(error.status).encode(), error.code, {"Content-Type": "application/json"})

    def _user(self, request: Request) -> str | None:
        return self._tokens.get(request.caller.removeprefix("Bearer "))

    def _groups(self, request: Request) -> Any:
        groups: dict[str, set[str]] = {}
        for resource in self._served():
            groups.setdefault(resource.group, set()).add(resource.version)
        groups.pop("")
        described = [
            {"name": name, "versions": [{"groupVersion": f"{name}/{one}", "version": one} for one in sorted(versions)]}
            for name, versions in groups.items()
        ]
        if wanted := request.parts.get("group"):
            found = [one for one in described if one["name"] == wanted]
            return {"kind": "APIGroup", **found[0]} if found else _page_not_found()
        return {"kind": "APIGroupList", "groups": described}

    def _discover(self, request: Request) -> Any:
        group, version = request.parts["group"], request.parts["version"]
        found = [one for one in self._served() if (one.group, one.version) == (group, version)]
        if not found:
            return _page_not_found()
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        described = [
            {"name": one.plural, "kind": one.kind, "namespaced": one.namespaced, "verbs": verbs} for one in found
        ]
        return {"kind": "APIResourceList", "groupVersion": f"{group}/{version}", "resources": described}

    def _served(self) -> list[Resource]:
        return [one for one in RESOURCES if one.installed_by in (None, *self.installed)]

    def _target(self, request: Request, verb: str, subresource: str = "") -> tuple[Resource, str]:
        """Return the resource and namespace of a call that the caller is allowed to make."""
        parts = request.parts
        wanted = (parts.get("group", ""), parts.get("version", "v1"), parts.get("plural", "pods"))
        space = parts.get("namespace", "")
        action = Action(verb, wanted[0], wanted[2], space, parts.get("name", ""), subresource)
        user = self._user(request)
        assert user is not None
        access.check(self.store, user, action)
        for resource in self._served():
            if (resource.group, resource.version, resource.plural) == wanted:
                return resource, space
        if wanted[0] and wanted[0] not in {resource.group for resource in self._served()}:
            raise PageNotFound
        raise ApiError(404, "the server could not find the requested resource")

    def _review(self, request: Request) -> Any:
        body = request.json
        wanted = body["spec"]["resourceAttributes"]
        action = Action(
            wanted.get("verb", ""),
            wanted.get("group", ""),
            wanted.get("resource", ""),
            wanted.get("namespace", ""),
            wanted.get("name", ""),
            wanted.get("subresource", ""),
        )
        user = self._user(request)
        assert user is not None
        return Raw(
            json.dumps(body | {"status": {"allowed": access.allowed(self.store, user, action)}}).encode(),
            201,
            {"Content-Type": "application/json"},
        )

    def _list(self, request: Request) -> Any:
        query = request.query
        watched = query.get("watch") in ("true", "True", "1")
        resource, space = self._target(request, "watch" if watched else "list")
        chosen = functools.partial(matches, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        with self.store.lock:
            found = [one for one in self.store.all(resource, space or None) if chosen(one)]
            version = str(self.store.version)
        if watched:
            return Stream(self._watch(resource, space, chosen, found, query), "application/json")
        return {
            "kind": f"{resource.kind}List",
            "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": version},
            "items": found,
        }

    def _watch(
        self,
        resource: Resource,
        space: str,
        chosen: Callable[[Object], bool],
        found: list[Object],
        query: Any,
    ) -> Iterator[bytes]:
        deadline = time.monotonic() + float(query.get("timeoutSeconds", 1800))
        version = query.get("resourceVersion", "0")
        start = int(version or 0)
        if start == 0:
            start = self.store.version
            for one in found:
                yield _event("ADDED", one)
        try:
            for change in self.store.changes_after(start):
                if time.monotonic() > deadline:
                    return
                inside = space in ("", change.object.get("metadata", {}).get("namespace"))
                if change.type and change.resource is resource and inside and chosen(change.object):
                    yield _event(change.type, change.object)
        except ApiError as error:
            yield _event("ERROR", error.status)

    def _get(self, request: Request) -> Any:
        resource, space = self._target(request, "get")
        return self.store.get(resource, space, request.parts["name"])

    def _create(self, request: Request) -> Any:
        resource, space = self._target(request, "create")
        body = _body(request)
        if body.get("kind") != resource.kind or body.get("apiVersion") != resource.api_version:
            raise ApiError(400, f"the object provided is unrecognized (must be of type {resource.kind})")
        if body["metadata"].get("namespace", space) != space:
            raise ApiError(400, "the namespace of the provided object does not match the namespace sent on the request")
        headers = self._checked(request, resource, space, body, None)
        body.pop("status", None)
        body["metadata"].pop("uid", None)
        if resource == TRAINJOBS:
            body["spec"].setdefault("suspend", False)
            if "kueue" in self.installed and operator.QUEUE in body["metadata"].get("labels", {}):
                body["spec"]["suspend"] = True
        if resource == PODS:
            body["status"] = {"phase": "Pending"}
        made = body if "dryRun" in request.query else self.store.create(resource, space, body)
        return Raw(json.dumps(made).encode(), 201, {"Content-Type": "application/json"} | headers)

    def _checked(
        self, request: Request, resource: Resource, space: str, body: Object, old: Object | None
    ) -> dict[str, str]:
        """Validate an object; return the headers with the warnings about the fields that are dropped."""
        if not body.get("metadata", {}).get("name") and body.get("metadata", {}).get("generateName"):
            body["metadata"]["name"] = body["metadata"]["generateName"] + "aaaaa"
        unknown = [f'unknown field "{path}"' for path in schema.unknown_fields(resource, body)]
        if unknown and request.query.get("fieldValidation") == "Strict":
            raise ApiError(
                400,
                f"{resource.kind} in version {resource.version!r} cannot be handled as a "
                f"{resource.kind}: strict decoding error: {', '.join(unknown)}",
            )
        self.pruned += unknown
        schema.check(self.store, resource, space, body, old)
        return {"Warning": f'299 - "{"; ".join(unknown)}"'.replace('"', "'").replace("'", '"', 1)} if unknown else {}

    def _delete(self, request: Request) -> Any:
        resource, space = self._target(request, "delete")
        one = self.store.get(resource, space, request.parts["name"])
        options = request.json if request.body else {}
        wanted = (options.get("preconditions") or {}).get("uid")
        if wanted not in (None, one["metadata"]["uid"]):
            raise ApiError(409, f"Precondition failed: UID in precondition: {wanted}", "Conflict")
        policy = options.get("propagationPolicy") or request.query.get("propagationPolicy", "Background")
        grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        if "dryRun" in request.query:
            return one
        if self.store.delete(resource, one, policy, None if grace is None else int(grace)):
            return {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        return self.store.find(resource, space, one["metadata"]["name"]) or one

    def _patch(self, request: Request) -> Any:
        applied = "apply-patch" in request.headers.get("Content-Type", "")
        resource, space = self._target(request, "patch")
        name = request.parts["name"]
        given = yaml.safe_load(request.body)
        if applied and self.store.find(resource, space, name) is None:
            self._target(request, "create")
            self._checked(request, resource, space, given, None)
            return self.store.create(resource, space, given)
        if isinstance(given, list):
            raise ApiError(415, "the fake has no JSON patches; send a merge patch")
        old = self.store.get(resource, space, name)
        return self._put(request, resource, space, old, _merged(old, given))

    def _replace(self, request: Request) -> Any:
        resource, space = self._target(request, "update")
        return self._put(
            request, resource, space, self.store.get(resource, space, request.parts["name"]), _body(request)
        )

    def _put(self, request: Request, resource: Resource, space: str, old: Object, new: Object) -> Any:
        version = new["metadata"].get("resourceVersion", old["metadata"]["resourceVersion"])
        if version != old["metadata"]["resourceVersion"]:
            name = old["metadata"]["name"]
            raise ApiError(
                409,
                f'Operation cannot be fulfilled on {resource.full_name} "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again",
                "Conflict",
            )
        self._checked(request, resource, space, new, old)
        fixed = {key: old["metadata"][key] for key in ("uid", "creationTimestamp", "resourceVersion", "generation")}
        new["metadata"] |= fixed | {"namespace": old["metadata"].get("namespace", "")}
        if resource in (TRAINJOBS, JOBSETS, PODS):
            new["status"] = old.get("status", {})

        def replace(one: Object) -> None:
            one.clear()
            one.update(copy.deepcopy(new))

        return self.store.change(resource, old, replace)

    def _log(self, request: Request) -> Any:
        self._target(request, "get", "log")
        pod = self.store.get(PODS, request.parts["namespace"], request.parts["name"])
        query = request.query
        names = [container["name"] for container in pod["spec"]["containers"]]
        if query.get("container", names[0]) not in names:
            raise ApiError(400, f"container {query['container']} is not valid for pod {pod['metadata']['name']}")
        lines = self.kubelets.log(pod, follow=query.get("follow") in ("true", "True"))
        since = query.get("sinceTime", "")
        if "tailLines" in query:
            lines = iter(list(lines)[-int(query["tailLines"]) :])
        stamped = query.get("timestamps") in ("true", "True")
        texts = (f"{at} {text}\n" if stamped else f"{text}\n" for at, text in lines if at[:19] >= since[:19])
        return Stream((text.encode() for text in texts), "text/plain")


class PageNotFound(Exception):
    """No API has the path; the answer is not a Status."""


def _page_not_found() -> Raw:
    return Raw(b"404 page not found\n", 404, {"Content-Type": "text/plain; charset=utf-8"})


def _body(request: Request) -> Object:
    body: Object = yaml.safe_load(request.body)
    body.setdefault("metadata", {})
    return body


def _merged(old: Any, patch: Any) -> Any:
    """Return an object with a JSON merge patch (RFC 7386) applied."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merged(merged.get(key), value)
    return merged


def _event(kind: str, one: Object) -> bytes:
    return json.dumps({"type": kind, "object": one}).encode() + b"\n"


def _images(one: Object) -> list[str]:
    return [container.get("image", "") for container in one.get("spec", {}).get("containers", [])]
