"""Bodies of requests, with their options: decoding and its errors, and merge patches."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.http_service import Request
from tests.fakes.kubernetes.store import ApiError, Object, Resource

OBJECTS = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
# What can be changed has no lists with merge keys: both kinds of patches have the same result.
PATCHES = ("application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json")
SUMMARY = 30
# Above them, the API server, its client of etcd, and etcd refuse an object.
MAX_REQUEST, MAX_MESSAGE, MAX_STORED = 3 << 20, 2 << 20, 3 << 19


def decoded(request: Request, resource: Resource) -> Object:
    """Return the object in a request, which is JSON."""
    _check_media_type(request, OBJECTS)
    _check_size(len(request.body))
    given = request.body.decode()
    body = json.loads(given)
    if resource.installed_by is None:  # the path tells the kind
        body = {"kind": resource.kind, "apiVersion": resource.api_version} | body
    if not body.get("kind"):
        summary = f"{given[:SUMMARY]} ..." if len(given) > SUMMARY else given
        unrecognized = f"the object provided is unrecognized (must be of type {resource.kind}): "
        raise ApiError(400, f"{unrecognized}Object 'Kind' is missing in '{given}' ({summary})")
    if body.get("apiVersion") != resource.api_version:
        version = str(body.get("apiVersion", "")).rpartition("/")[2]
        kind = body["kind"]
        raise ApiError(
            400, f'{kind} in version "{version}" cannot be handled as a {resource.kind}: no kind is registered for it'
        )
    body["metadata"] = body.get("metadata") or {}
    return dict(body)


def check_validation(request: Request) -> None:
    """Raise 422 if a request's option fieldValidation has an unknown value."""
    value, values = request.query.get("fieldValidation", ""), ("", "Ignore", "Strict", "Warn")
    if value not in values:
        told = ", ".join(json.dumps(one) for one in values)
        text = f"fieldValidation: Unsupported value: {json.dumps(value)}: supported values: {told}"
        raise ApiError(422, f'CreateOptions.meta.k8s.io "" is invalid: {text}')


def options(request: Request) -> Object:
    """Return the options of a deletion."""
    return dict(json.loads(request.body or b"{}"))


def patched(request: Request, old: Object) -> Object:
    """Return an object with the merge patch in a request applied."""
    _check_media_type(request, PATCHES)
    patch = json.loads(request.body)
    if not isinstance(patch, dict):
        raise ApiError(501, "the fake has no JSON patches")
    return dict(_merged(old, patch))


def _check_size(size: int) -> None:
    """Raise the error of an object of that many bytes."""
    if size > MAX_REQUEST:
        raise ApiError(413, f"Request entity too large: limit is {MAX_REQUEST}")
    if size > MAX_MESSAGE:
        text = f"trying to send message larger than max ({size} vs. {MAX_MESSAGE})"
        raise ApiError(500, f"rpc error: code = ResourceExhausted desc = {text}")
    if size > MAX_STORED:
        raise ApiError(500, "etcdserver: request is too large")


def _check_media_type(request: Request, known: tuple[str, ...]) -> None:
    media = (request.headers.get("Content-Type") or known[0]).partition(";")[0]
    if media not in known:
        accepted = ", ".join(known)
        text = f"the body of the request was in an unknown format - accepted media types include: {accepted}"
        raise ApiError(415, text)


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
