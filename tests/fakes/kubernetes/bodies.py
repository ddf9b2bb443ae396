"""Bodies of requests, with their options: decoding and its errors, and the kinds of patches."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.fakes.http_service import Request
from tests.fakes.kubernetes.store import NAMESPACES, ROLE_BINDINGS, ROLES, ApiError, Object, Resource

OBJECTS = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC_PATCH, APPLY_PATCH = "application/strategic-merge-patch+json", "application/apply-patch+yaml"
SUMMARY = 30
# Above them, the API server, its client of etcd, and etcd refuse an object.
MAX_REQUEST, MAX_MESSAGE, MAX_STORED = 3 << 20, 2 << 20, 3 << 19


def decoded(request: Request, resource: Resource) -> tuple[Object, list[str]]:
    """Return the object in a request, and the paths of the fields that it has twice."""
    media = _media_type(request, OBJECTS)
    _check_size(len(request.body))
    given = _json(request.body.decode(errors="replace"), media)
    summary = f"{given[:SUMMARY]} ..." if len(given) > SUMMARY else given or "<empty>"
    unrecognized = f"the object provided is unrecognized (must be of type {resource.kind}): "
    try:
        body, twice = _parsed(given)
    except ValueError as error:
        at = getattr(error, "pos", 0)
        problem = f"invalid character {given[at]!r}" if at < len(given.rstrip()) - 1 else "unexpected end of JSON input"
        text = f"{unrecognized}couldn't get version/kind; json parse error: {problem} ({summary})"
        raise ApiError(400, text) from None
    if not isinstance(body, dict):
        raise ApiError(400, f"{unrecognized}couldn't get version/kind; json parse error: no object ({summary})")
    if resource.installed_by is None:  # the path tells the kind
        body = {"kind": resource.kind, "apiVersion": resource.api_version} | body
    if not body.get("kind"):
        raise ApiError(400, f"{unrecognized}Object 'Kind' is missing in '{given}' ({summary})")
    if body.get("apiVersion") != resource.api_version:
        version = str(body.get("apiVersion", "")).rpartition("/")[2]
        kind = body["kind"]
        raise ApiError(
            400, f'{kind} in version "{version}" cannot be handled as a {resource.kind}: no kind is registered for it'
        )
    body["metadata"] = body.get("metadata") or {}
    return body, twice


def check_options(request: Request) -> None:
    """Raise 422 if a request's query has an unknown value of an option."""
    kind = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions"}.get(request.method)
    kind = kind or "DeleteOptions"
    check_option(kind, "dryRun", request.query.get("dryRun", "All"), ("All",))
    validation = request.query.get("fieldValidation", "")
    check_option(kind, "fieldValidation", validation, ("", "Ignore", "Strict", "Warn"))


def check_option(kind: str, field: str, value: str, values: tuple[str, ...]) -> None:
    """Raise 422 if an option of a request has an unknown value."""
    if value not in values:
        given = json.dumps([value] if field == "dryRun" else value)
        told = ", ".join(json.dumps(one) for one in values)
        text = f"{field}: Unsupported value: {given}: supported values: {told}"
        raise ApiError(422, f'{kind}.meta.k8s.io "" is invalid: {text}')


def options(request: Request) -> Object:
    """Return the options of a deletion."""
    try:
        found = json.loads(request.body or b"{}")
    except ValueError as error:
        raise ApiError(400, f"couldn't get version/kind; json parse error: {error}") from None
    if not isinstance(found, dict):
        raise ApiError(400, "couldn't get version/kind; json parse error: no object")
    return found


def patched(request: Request, resource: Resource, old: Object) -> tuple[Object, list[str]]:
    """Return an object with the patch in a request applied, and the paths of fields that the patch has twice."""
    custom = resource.installed_by is not None
    known = (
        (JSON_PATCH, MERGE_PATCH, APPLY_PATCH) if custom else (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
    )
    media = _media_type(request, known)
    if media == APPLY_PATCH:
        if not request.query.get("fieldManager"):
            text = 'PatchOptions.meta.k8s.io "" is invalid: fieldManager: Required value: is required for apply patch'
            raise ApiError(422, text)
        applied = _merged(old, json.loads(_json(request.body.decode(), media)))
        if not _keeps(old, applied):
            raise ApiError(501, "the fake knows no managers of fields, which an apply may not change")
        return applied, []
    if media == STRATEGIC_PATCH and resource not in (NAMESPACES, ROLES, ROLE_BINDINGS):  # without merge keys
        raise ApiError(501, f"the fake has no strategic merge patches of {resource.plural}")
    try:
        patch, twice = _parsed(request.body.decode())
    except ValueError as error:
        raise ApiError(400, f"error decoding patch: {error}") from None
    if not isinstance(patch, list if media == JSON_PATCH else dict):
        raise ApiError(400, "error decoding patch: json: cannot unmarshal it")
    if media != JSON_PATCH:
        return _merged(old, patch), twice
    new = copy.deepcopy(old)
    for operation in patch:
        try:
            _apply(new, operation)
        except (KeyError, IndexError, ValueError, TypeError):
            raise ApiError(422, "the server rejected our request due to an error in our request") from None
    return new, twice


def _check_size(size: int) -> None:
    """Raise the error of an object of that many bytes."""
    if size > MAX_REQUEST:
        raise ApiError(413, f"Request entity too large: limit is {MAX_REQUEST}")
    if size > MAX_MESSAGE:
        text = f"trying to send message larger than max ({size} vs. {MAX_MESSAGE})"
        raise ApiError(500, f"rpc error: code = ResourceExhausted desc = {text}")
    if size > MAX_STORED:
        raise ApiError(500, "etcdserver: request is too large")


def _json(text: str, media: str) -> str:
    """Return the JSON of a body in one of the media types that are read."""
    if "yaml" not in media:
        return text
    try:
        return json.dumps(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ApiError(400, f"error converting YAML to JSON: {error}") from None


def _media_type(request: Request, known: tuple[str, ...]) -> str:
    media = (request.headers.get("Content-Type") or known[0]).partition(";")[0]
    if media not in known:
        accepted = ", ".join(known)
        text = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        raise ApiError(415, text)
    return media


def _parsed(text: str) -> tuple[Any, list[str]]:
    """Return the value of a JSON text, and the paths of the keys that an object has twice."""
    repeated: list[tuple[Object, str]] = []

    def collect(pairs: list[tuple[str, Any]]) -> Object:
        made: Object = {}
        for name, value in pairs:
            if name in made:
                repeated.append((made, name))
            made[name] = value
        return made

    value = json.loads(text, object_pairs_hook=collect)
    paths = dict(_paths(value, "")) if repeated else {}
    return value, [f"{paths[id(holder)]}{name}" for holder, name in repeated if id(holder) in paths]


def _paths(value: Any, path: str) -> Iterator[tuple[int, str]]:
    if isinstance(value, dict):
        yield id(value), path
        for name, child in value.items():
            yield from _paths(child, f"{path}{name}.")
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from _paths(child, f"{path.rstrip('.')}[{number}].")


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


def _keeps(old: Any, new: Any) -> bool:
    """Return whether an object has all values that it had."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and _keeps(value, new[key]) for key, value in old.items())
    return bool(old == new)


def _apply(document: Any, operation: Object) -> None:
    """Apply one operation of a JSON patch (RFC 6902)."""
    kind, value = operation["op"], operation.get("value")
    if kind not in ("add", "remove", "replace", "test"):
        raise ApiError(501, f"the fake has no JSON patches with {kind}")
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    target = document
    for part in parents:
        target = target[int(part) if isinstance(target, list) else part]
    place: Any = last
    if isinstance(target, list):
        place = len(target) if last == "-" else int(last)
    if kind == "add" and isinstance(target, list):
        target.insert(place, value)
    elif kind == "add":
        target[place] = value
    elif kind == "test":
        if target[place] != value:
            raise ValueError(f"{operation['path']} is {target[place]}")
    elif kind == "remove":
        del target[place]
    else:
        del target[place]
        _apply(document, {**operation, "op": "add"})
