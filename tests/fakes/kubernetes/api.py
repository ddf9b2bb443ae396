"""The HTTP API of the cluster as Slipway uses it: authorization, validation, lists and logs.

Requests and options that Slipway does not use are answered with 501, and fail the test.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fakes.http_service import HttpService, Raw, Request, Stream
from tests.fakes.kubernetes import access, bodies, nodes, openapi, operator, rules, schema
from tests.fakes.kubernetes.access import ANONYMOUS, Action
from tests.fakes.kubernetes.nodes import Surroundings
from tests.fakes.kubernetes.pods import Kubelets
from tests.fakes.kubernetes.selectors import matches
from tests.fakes.kubernetes.store import (
    NAMESPACES,
    PODS,
    RESOURCES,
    ROLE_BINDINGS,
    ROLES,
    TRAINJOBS,
    ApiError,
    Object,
    Problem,
    Resource,
    Store,
)

# Groups of CRDs; the paths of others are no page at all unless the operator is installed.
CUSTOM = {resource.group for resource in RESOURCES if resource.installed_by}
JSON = {"Content-Type": "application/json"}
CHANGEABLE = (NAMESPACES, ROLES, ROLE_BINDINGS)
# Options of requests that Slipway does not use.
ABSENT_OPTIONS = ("watch", "limit", "continue", "resourceVersion", "dryRun")


class Api:
    """Answers the calls of users, who are known by their tokens.

    `problems`: calls that it does not know. `absent_fields`: those that an older release of the operator does not have,
    such as TrainJob.spec.runtimePatches.
    """

    def __init__(
        self, service: HttpService, store: Store, kubelets: Kubelets, around: Surroundings, installed: set[str]
    ) -> None:
        self.store = store
        self.kubelets = kubelets
        self.problems: list[BaseException] = []
        self.tokens: dict[str, str] = {}
        self.absent_fields: set[str] = set()
        self._around = around
        self._installed = installed
        self._service = service
        self._add_routes()

    def _add_routes(self) -> None:
        def route(method: str, path: str, function: Callable[[Request], Any]) -> None:
            self._service.route(method, path)(functools.partial(self._answer, function))

        route("GET", "/version", lambda _: {"major": "1", "minor": "36", "gitVersion": "v1.36.2"})
        route("GET", "/openapi/v3/apis/{group}/{version}", self._describe)
        route("GET", "/apis/{group}/{version}", self._discover)
        route("GET", "/api/v1/namespaces/{namespace}/pods/{name}/log", self._log)
        for root in ("/api/{version}", "/apis/{group}/{version}"):
            for scope in ("/namespaces/{namespace}/{plural}", "/{plural}"):
                route("GET", root + scope, self._list)
                route("POST", root + scope, self._create)
                route("GET", f"{root}{scope}/{{name}}", self._get)
                route("DELETE", f"{root}{scope}/{{name}}", self._delete)
                route("PATCH", f"{root}{scope}/{{name}}", self._patch)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            route(method, "/{path=**}", self._unknown)

    def _answer(self, function: Callable[[Request], Any], request: Request) -> Any:
        try:
            self._user(request)
            answer = function(request)
        except PageNotFound:
            answer = _page_not_found()
        except ApiError as error:
            if error.code == 501:
                self.problems.append(NotImplementedError(f"{request.method} {request.target}: {error}"))
            answer = _json(error.status, error.code)
        return answer if isinstance(answer, Raw | Stream) else _json(answer)

    def _user(self, request: Request) -> str:
        """Return the caller; without a token, that is the anonymous user."""
        user = self.tokens.get(request.caller.removeprefix("Bearer ")) if request.caller else ANONYMOUS
        if user is None:
            raise ApiError(401, "Unauthorized")
        if user == ANONYMOUS and request.path.startswith(("/apis", "/openapi")) and len(request.path.split("/")) < 5:
            raise ApiError(403, f'forbidden: User "{user}" cannot get path "{request.path}"')
        return user

    def _unknown(self, request: Request) -> Any:
        group = request.path.split("/")[2] if request.path.count("/") > 1 else ""
        if request.path.startswith("/apis/") and group in CUSTOM - {one.group for one in self._served()}:
            raise PageNotFound
        raise ApiError(501, f"the fake has no {request.method} {request.path}")

    def _describe(self, request: Request) -> Any:
        served = [one for one in self._served() if one.api_version == "{group}/{version}".format_map(request.parts)]
        return openapi.document(served, self.absent_fields) if served else _page_not_found()

    def _discover(self, request: Request) -> Any:
        group, version = request.parts["group"], request.parts["version"]
        found = [one for one in self._served() if (one.group, one.version) == (group, version)]
        if not found:
            return _page_not_found()
        verbs = ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
        described = [
            {
                "name": one.plural,
                "singularName": one.kind.lower(),
                "kind": one.kind,
                "namespaced": one.namespaced,
                "verbs": verbs,
            }
            for one in found
        ]
        made = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": f"{group}/{version}"}
        return made | {"resources": described}

    def _served(self) -> list[Resource]:
        return [one for one in RESOURCES if one.installed_by in (None, *self._installed)]

    def _target(self, request: Request, verb: str, subresource: str = "") -> tuple[Resource, str]:
        """Return the resource and namespace of a call that the caller is allowed to make."""
        parts = request.parts
        wanted = (parts.get("group", ""), parts.get("version", "v1"), parts.get("plural", "pods"))
        space = parts.get("namespace", "")
        name = parts.get("name", "")
        if wanted[2] == NAMESPACES.plural:
            space = name
        access.check(self.store, self._user(request), Action(verb, wanted[0], wanted[2], space, name, subresource))
        bodies.check_validation(request)
        if absent := [name for name in ABSENT_OPTIONS if name in request.query]:
            raise ApiError(501, f"the fake has no option {', '.join(absent)}")
        for resource in self._served():
            if (resource.group, resource.version, resource.plural) == wanted:
                return resource, space
        if wanted[0] in CUSTOM or not (wanted[0].endswith(".k8s.io") or "." not in wanted[0]):
            raise PageNotFound
        raise ApiError(501, f"the fake has no {wanted[2]}")

    def _list(self, request: Request) -> Any:
        query = request.query
        resource, space = self._target(request, "list")
        chosen = functools.partial(matches, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        chosen({"metadata": {}})
        with self.store.lock:
            found = sorted((one for one in self.store.all(resource, space or None) if chosen(one)), key=_key)
            metadata = {"resourceVersion": str(self.store.version)}
        if resource.installed_by:
            metadata["continue"] = ""
        kind = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return kind | {"metadata": metadata, "items": found}

    def _get(self, request: Request) -> Any:
        resource, space = self._target(request, "get")
        return self.store.get(resource, space, request.parts["name"])

    def _create(self, request: Request) -> Any:
        resource, space = self._target(request, "create")
        body = bodies.decoded(request, resource)
        metadata, user = body["metadata"], self._user(request)
        if isinstance(metadata, dict) and metadata.get("namespace", space) != space:
            raise ApiError(400, "the namespace of the provided object does not match the namespace sent on the request")
        body.pop("status", None)
        found, headers = self._structure(request, resource, body)
        if body["kind"] != resource.kind:
            text = f"Invalid value: {json.dumps(body['kind'])}: must be {resource.kind}"
            raise resource.invalid(metadata.get("name", ""), [Problem("kind", text)])
        rules.check_namespace(self.store, space)
        rules.fill_in(resource, body)
        if resource == TRAINJOBS and "kueue" in self._installed and operator.QUEUE in metadata.get("labels", {}):
            body["spec"]["suspend"] = True
        if resource == PODS and (why := nodes.refusal(self._around, space, metadata.get("name", ""), body["spec"])):
            raise ApiError(403, why, details=resource.details(metadata.get("name", "")))
        rules.check(self.store, resource, space, body, None, found)
        access.check_escalation(self.store, user, resource, space, body)
        if metadata.get("resourceVersion"):
            raise ApiError(500, "resourceVersion should not be set on objects to be created")
        if resource == PODS:
            body["status"] = {"phase": "Pending"}
        return _json(self.store.create(resource, space, body), 201, headers)

    def _structure(self, request: Request, resource: Resource, body: Object) -> tuple[list[Problem], dict[str, str]]:
        """Drop what the schema of an object does not have; return its problems, and the headers with the warnings."""
        unknown, problems = schema.checked(resource, body)
        found = [f'unknown field "{path}"' for path in unknown]
        if found and request.query.get("fieldValidation") == "Strict":
            raise ApiError(400, schema.cannot_handle(resource, f"strict decoding error: {', '.join(found)}"))
        return problems, {"Warning": f"299 - {json.dumps('; '.join(found))}"} if found else {}

    def _delete(self, request: Request) -> Any:
        resource, space = self._target(request, "delete")
        one = self.store.get(resource, space, request.parts["name"])
        options = bodies.options(request)
        metadata = one["metadata"]
        policy = options.get("propagationPolicy") or request.query.get("propagationPolicy", "Background")
        if policy != "Background" or "preconditions" in options:
            raise ApiError(501, f"the fake has no deletion with {options or dict(request.query)}")
        grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        if self.store.delete(resource, one, grace=None if grace is None else int(grace)):
            details = resource.details(metadata["name"], uid=metadata["uid"])
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return self.store.find(resource, space, metadata["name"]) or one

    def _patch(self, request: Request) -> Any:
        resource, space = self._target(request, "patch")
        if resource not in CHANGEABLE:
            raise ApiError(501, f"the fake has no patches of {resource.plural}")
        old = self.store.get(resource, space, request.parts["name"])
        new = bodies.patched(request, old)
        found, headers = self._structure(request, resource, new)
        rules.check(self.store, resource, space, new, old, found)
        access.check_escalation(self.store, self._user(request), resource, space, new)

        def replace(one: Object) -> None:
            one.clear()
            one.update(copy.deepcopy(new))

        return _json(self.store.change(resource, old, replace), 200, headers)

    def _log(self, request: Request) -> Any:
        self._target(request, "get", "log")
        pod = self.store.get(PODS, request.parts["namespace"], request.parts["name"])
        query, name = request.query, pod["metadata"]["name"]
        if int(query.get("sinceSeconds", 1)) < 1:
            text = "sinceSeconds: Invalid value: 0: must be greater than 0"
            raise ApiError(422, f'PodLogOptions "{name}" is invalid: {text}')
        names = [container["name"] for container in pod["spec"]["containers"]]
        if query.get("container", names[0]) not in names:
            raise ApiError(400, f"container {query['container']} is not valid for pod {name}")
        if not pod["spec"].get("nodeName"):
            return Raw(b"", 204)
        lines = self.kubelets.log(pod, follow=query.get("follow") in ("true", "True"))
        since = ""
        if "sinceSeconds" in query:
            since = (datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))).isoformat()
        stamped = query.get("timestamps") in ("true", "True")
        texts = (f"{at} {text}\n" if stamped else f"{text}\n" for at, text in lines if at[:19] >= since[:19])
        return Stream((text.encode() for text in texts), "text/plain")


class PageNotFound(Exception):
    """No API has the path; the answer is not a Status."""


def _page_not_found() -> Raw:
    return Raw(b"404 page not found\n", 404, {"Content-Type": "text/plain; charset=utf-8"})


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Raw:
    return Raw(json.dumps(body, separators=(",", ":")).encode() + b"\n", status, JSON | (headers or {}))


def _key(one: Object) -> list[str]:
    return [one["metadata"].get("namespace", ""), one["metadata"]["name"]]
