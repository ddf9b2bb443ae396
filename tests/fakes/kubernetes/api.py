"""The HTTP API of the cluster as the official client uses it: authorization, validation, watches and logs.

Requests that the fake does not know are answered with 501, and fail the test.
"""

from __future__ import annotations

import base64
import copy
import functools
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fakes.http_service import HttpService, Raw, Request, Stream
from tests.fakes.kubernetes import access, bodies, nodes, openapi, operator, rules, schema
from tests.fakes.kubernetes.access import ANONYMOUS, Action
from tests.fakes.kubernetes.nodes import Surroundings
from tests.fakes.kubernetes.pods import Kubelets
from tests.fakes.kubernetes.selectors import matches
from tests.fakes.kubernetes.store import (
    ACCOUNTS,
    JOBSETS,
    NAMESPACES,
    PODS,
    RESOURCES,
    SECRETS,
    TRAINJOBS,
    ApiError,
    Object,
    Problem,
    Resource,
    Store,
    suffix,
)

# Groups of CRDs; the paths of others are no page at all unless the operator is installed.
CUSTOM = {resource.group for resource in RESOURCES if resource.installed_by}
JSON = {"Content-Type": "application/json"}
STATUS = (TRAINJOBS, JOBSETS, PODS)


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
        route("GET", "/apis", self._groups)
        route("GET", "/apis/{group}", self._groups)
        route("GET", "/apis/{group}/{version}", self._discover)
        route("POST", "/apis/authorization.k8s.io/v1/{plural}", self._review)
        route("GET", "/api/v1/namespaces/{namespace}/pods/{name}/log", self._log)
        for root in ("/api/{version}", "/apis/{group}/{version}"):
            for scope in ("/namespaces/{namespace}/{plural}", "/{plural}"):
                route("GET", root + scope, self._list)
                route("POST", root + scope, self._create)
                route("DELETE", root + scope, self._delete_all)
                route("POST", f"{root}{scope}/{{name}}", self._create)
                route("GET", f"{root}{scope}/{{name}}", self._get)
                route("DELETE", f"{root}{scope}/{{name}}", self._delete)
                route("PATCH", f"{root}{scope}/{{name}}", self._patch)
                route("PUT", f"{root}{scope}/{{name}}", self._replace)
                route("GET", f"{root}{scope}/{{name}}/status", self._get)
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
            return {"kind": "APIGroup", "apiVersion": "v1", **found[0]} if found else _page_not_found()
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": described}

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
        bodies.check_options(request)
        for resource in self._served():
            if (resource.group, resource.version, resource.plural) == wanted:
                return resource, space
        if wanted[0] in CUSTOM or not (wanted[0].endswith(".k8s.io") or "." not in wanted[0]):
            raise PageNotFound
        raise ApiError(501, f"the fake has no {wanted[2]}")

    def _review(self, request: Request) -> Any:
        """Answer what the caller may do: one action, or all rules."""
        body, user = request.json, self._user(request)
        if user == ANONYMOUS:
            raise ApiError(403, f'User "{user}" cannot create resource "{request.parts["plural"]}"')
        if request.parts["plural"] == "selfsubjectrulesreviews":
            found = access.rules_of(self.store, user, body["spec"]["namespace"])
            status = {"resourceRules": found, "nonResourceRules": [], "incomplete": False}
            return _json(body | {"status": status}, 201)
        if request.parts["plural"] != "selfsubjectaccessreviews":
            raise ApiError(501, f"the fake has no {request.parts['plural']}")
        wanted = body["spec"]["resourceAttributes"]
        given = (wanted.get(key, "") for key in ("verb", "group", "resource", "namespace", "name", "subresource"))
        return _json(body | {"status": {"allowed": access.allowed(self.store, user, Action(*given))}}, 201)

    def _list(self, request: Request) -> Any:
        query = request.query
        watched = query.get("watch") in ("true", "True", "1")
        resource, space = self._target(request, "watch" if watched else "list")
        given = query.get("resourceVersion", "")
        if given and not given.isdecimal():
            why = f'resourceVersion: Invalid value: "{given}": strconv.ParseUint: parsing "{given}": invalid syntax'
            raise ApiError(500, why) if watched else ApiError(400, f"invalid resource version: {why}")
        chosen = functools.partial(matches, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        chosen({"metadata": {}})
        with self.store.lock:
            found = [one for one in self._all(resource, space) if chosen(one)]
            version = str(self.store.version)
        if watched:
            return Stream(self._watch(resource, space, chosen, found, query), "application/json")
        items, more = _page(found, query)
        metadata = {"resourceVersion": version} | ({"continue": ""} if resource.installed_by else {}) | more
        kind = {"kind": f"{resource.kind}List", "apiVersion": resource.api_version}
        return kind | {"metadata": metadata, "items": items}

    def _all(self, resource: Resource, space: str) -> list[Object]:
        if resource == SECRETS:
            return [{"metadata": {"name": name, "namespace": space}} for name in self._around.secrets]
        return self.store.all(resource, space or None)

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
        if "name" in request.parts and not resource.installed_by:
            raise ApiError(501, f"the fake has no POST to one of the {resource.plural}")
        body, twice = bodies.decoded(request, resource)
        metadata, user = body["metadata"], self._user(request)
        if isinstance(metadata, dict) and metadata.get("namespace", space) != space:
            raise ApiError(400, "the namespace of the provided object does not match the namespace sent on the request")
        body.pop("status", None)
        found, headers = self._structure(request, resource, body, twice)
        if body["kind"] != resource.kind:
            text = f"Invalid value: {json.dumps(body['kind'])}: must be {resource.kind}"
            raise resource.invalid(metadata.get("name", ""), [Problem("kind", text)])
        rules.check_namespace(self.store, space)
        rules.fill_in(resource, body)
        if resource == TRAINJOBS and "kueue" in self._installed and operator.QUEUE in metadata.get("labels", {}):
            body["spec"]["suspend"] = True
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + suffix()
        if resource == PODS and (why := nodes.refusal(self._around, space, metadata.get("name", ""), body["spec"])):
            raise ApiError(403, why, details=resource.details(metadata.get("name", "")))
        rules.check(self.store, resource, space, body, None, found)
        access.check_escalation(self.store, user, resource, space, body)
        if metadata.get("resourceVersion"):
            raise ApiError(500, "resourceVersion should not be set on objects to be created")
        if resource == PODS:
            body["status"] = {"phase": "Pending"}
        if resource == ACCOUNTS:
            self._around.accounts.add(metadata["name"])
        return _json(self.store.create(resource, space, body, dry_run="dryRun" in request.query), 201, headers)

    def _structure(
        self, request: Request, resource: Resource, body: Object, twice: list[str]
    ) -> tuple[list[Problem], dict[str, str]]:
        """Drop what the schema of an object does not have; return its problems, and the headers with the warnings."""
        unknown, problems = schema.checked(resource, body)
        found = [f'duplicate field "{path}"' for path in twice] + [f'unknown field "{path}"' for path in unknown]
        if found and request.query.get("fieldValidation") == "Strict":
            raise ApiError(400, schema.cannot_handle(resource, f"strict decoding error: {', '.join(found)}"))
        return problems, {"Warning": f"299 - {json.dumps('; '.join(found))}"} if found else {}

    def _delete(self, request: Request) -> Any:
        resource, space = self._target(request, "delete")
        one = self.store.get(resource, space, request.parts["name"])
        options = bodies.options(request)
        metadata = one["metadata"]
        for key, name, why in (
            ("uid", "UID", "been deleted and then recreated"),
            ("resourceVersion", "ResourceVersion", "been modified"),
        ):
            wanted = (options.get("preconditions") or {}).get(key)
            if wanted not in (None, metadata[key]):
                what = f'Operation cannot be fulfilled on {resource.full_kind} "{metadata["name"]}": the {name} in the'
                text = f"precondition ({wanted}) does not match the {name} in record ({metadata[key]})"
                raise ApiError(409, f"{what} {text}. The object might have {why}", "Conflict")
        policy = options.get("propagationPolicy") or request.query.get("propagationPolicy", "Background")
        bodies.check_option("DeleteOptions", "propagationPolicy", policy, ("Foreground", "Background", "Orphan"))
        grace = options.get("gracePeriodSeconds", request.query.get("gracePeriodSeconds"))
        if "dryRun" in request.query or options.get("dryRun"):
            return one
        if self.store.delete(resource, one, policy, None if grace is None else int(grace)):
            details = resource.details(metadata["name"], uid=metadata["uid"])
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return self.store.find(resource, space, metadata["name"]) or one

    def _delete_all(self, request: Request) -> Any:
        resource, space = self._target(request, "deletecollection")
        grace = request.query.get("gracePeriodSeconds")
        found = self.store.all(resource, space or None)
        for one in found:
            self.store.delete(resource, one, grace=None if grace is None else int(grace))
        return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": {}, "items": found}

    def _patch(self, request: Request) -> Any:
        resource, space = self._target(request, "patch")
        old = self.store.get(resource, space, request.parts["name"])
        return self._put(request, resource, space, old, *bodies.patched(request, resource, old))

    def _replace(self, request: Request) -> Any:
        resource, space = self._target(request, "update")
        new, twice = bodies.decoded(request, resource)
        name, given = request.parts["name"], new["metadata"].get("name")
        if given != name:
            text = f"the name of the object ({given}) does not match the name on the URL ({name})"
            raise ApiError(400, text)
        if resource.installed_by and not new["metadata"].get("resourceVersion"):
            text = "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
            raise ApiError(422, f'{resource.full_name} "{name}" is invalid: {text}')
        return self._put(request, resource, space, self.store.get(resource, space, name), new, twice)

    def _put(self, request: Request, resource: Resource, space: str, old: Object, new: Object, twice: list[str]) -> Any:
        if resource in STATUS:  # it has a path of its own
            new.pop("status", None)
        found, headers = self._structure(request, resource, new, twice)
        name, version = old["metadata"]["name"], old["metadata"]["resourceVersion"]
        if new["metadata"].get("resourceVersion", version) != version:
            raise ApiError(
                409,
                f'Operation cannot be fulfilled on {resource.full_name} "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again",
                "Conflict",
                resource.details(name),
            )
        rules.fill_in(resource, new)
        fixed = ("name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation")
        new["metadata"] |= {key: old["metadata"][key] for key in fixed if key in old["metadata"]}
        if resource in STATUS:
            new["status"] = old.get("status", {})
        rules.check(self.store, resource, space, new, old, found)
        access.check_escalation(self.store, self._user(request), resource, space, new)
        if "dryRun" in request.query:
            return _json(new, 200, headers)

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
        if "tailLines" in query:
            lines = iter(list(lines)[-int(query["tailLines"]) :])
        stamped = query.get("timestamps") in ("true", "True")
        texts = (f"{at} {text}\n" if stamped else f"{text}\n" for at, text in lines if at[:19] >= since[:19])
        return Stream((text.encode() for text in texts), "text/plain")


class PageNotFound(Exception):
    """No API has the path; the answer is not a Status."""


def _page_not_found() -> Raw:
    return Raw(b"404 page not found\n", 404, {"Content-Type": "text/plain; charset=utf-8"})


def _json(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Raw:
    return Raw(json.dumps(body, separators=(",", ":")).encode() + b"\n", status, JSON | (headers or {}))


def _page(found: list[Object], query: Any) -> tuple[list[Object], Object]:
    """Return one page of a list, which is in the order of the names, and the metadata that lead to the next one."""
    found = sorted(found, key=_key)
    if token := query.get("continue"):
        try:
            start = json.loads(base64.urlsafe_b64decode(token))["start"]
        except (ValueError, KeyError, TypeError):
            text = "continue key is not valid: invalid character 'i' looking for beginning of value"
            raise ApiError(400, f"invalid continue token: {text}") from None
        found = [one for one in found if _key(one) >= start]
    limit = int(query.get("limit", 0))
    if not limit or len(found) <= limit:
        return found, {}
    token = base64.urlsafe_b64encode(json.dumps({"v": "meta.k8s.io/v1", "start": _key(found[limit])}).encode())
    return found[:limit], {"continue": token.decode(), "remainingItemCount": len(found) - limit}


def _key(one: Object) -> list[str]:
    return [one["metadata"].get("namespace", ""), one["metadata"]["name"]]


def _event(kind: str, one: Object) -> bytes:
    return json.dumps({"type": kind, "object": one}).encode() + b"\n"
