"""The HTTP API of the cluster as the official client uses it: authorization, validation, watches and logs."""

from __future__ import annotations

import copy
import functools
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from tests.fakes.http_service import HttpService, Raw, Request, Stream
from tests.fakes.kubernetes import access, operator, schema
from tests.fakes.kubernetes.access import Action
from tests.fakes.kubernetes.pods import Kubelets
from tests.fakes.kubernetes.selectors import matches
from tests.fakes.kubernetes.store import JOBSETS, PODS, RESOURCES, TRAINJOBS, ApiError, Object, Resource, Store


class Api:
    """Answers the calls of users, who are known by their tokens.

    `pruned`: the unknown fields that the server dropped from what clients sent.
    """

    def __init__(self, service: HttpService, store: Store, kubelets: Kubelets, installed: set[str]) -> None:
        self.store = store
        self.kubelets = kubelets
        self.tokens: dict[str, str] = {}
        self.pruned: list[str] = []
        self._installed = installed
        self._service = service
        self._add_routes()

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
        return self.tokens.get(request.caller.removeprefix("Bearer "))

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
            {
                "name": one.plural,
                "singularName": one.kind.lower(),
                "kind": one.kind,
                "namespaced": one.namespaced,
                "verbs": verbs,
            }
            for one in found
        ]
        return {"kind": "APIResourceList", "groupVersion": f"{group}/{version}", "resources": described}

    def _served(self) -> list[Resource]:
        return [one for one in RESOURCES if one.installed_by in (None, *self._installed)]

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
        if resource.installed_by is None:
            body = {"kind": resource.kind, "apiVersion": resource.api_version} | body
        if body.get("kind") != resource.kind or body.get("apiVersion") != resource.api_version:
            raise ApiError(400, f"the object provided is unrecognized (must be of type {resource.kind})")
        if body["metadata"].get("namespace", space) != space:
            raise ApiError(400, "the namespace of the provided object does not match the namespace sent on the request")
        headers = self._checked(request, resource, space, body, None)
        body.pop("status", None)
        body["metadata"].pop("uid", None)
        if resource == TRAINJOBS:
            body["spec"].setdefault("suspend", False)
            if "kueue" in self._installed and operator.QUEUE in body["metadata"].get("labels", {}):
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
        return {"Warning": f"299 - {json.dumps('; '.join(unknown))}"} if unknown else {}

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
        since = ""
        if "sinceSeconds" in query:
            since = (datetime.now(UTC) - timedelta(seconds=int(query["sinceSeconds"]))).isoformat()
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
