"""The structure of objects: unknown fields, types, required values, quantities and lists with unique keys.

The structure is that of the real CRDs and of Kubernetes: kubeflow_trainer_api and the Kubernetes client have the models
that are generated from them.
"""

from __future__ import annotations

import functools
import json
import re
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

from kubernetes import client
from pydantic import BaseModel

from tests.fakes.kubernetes.store import (
    CLAIMS,
    CLUSTER_RUNTIMES,
    JOBSETS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    RUNTIMES,
    TRAINJOBS,
    ApiError,
    Object,
    Problem,
    Resource,
)

QUANTITY = re.compile(
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
# Lists of CRDs that are maps by this field (x-kubernetes-list-map-keys).
KEYS = {
    **dict.fromkeys(("containers", "initContainers", "env", "volumes", "imagePullSecrets", "replicatedJobs"), "name"),
    "volumeMounts": "mountPath",
}
LIMITS = {"spec.trainer.args": 128, "spec.trainer.command": 128, "spec.trainer.env": 128}
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
GO_TYPES = {str: "string", bool: "bool", int: "number", float: "number", dict: "object", list: "array"}


class Field(NamedTuple):
    """A field: its type inside lists and maps, and whether it is a list, a map, and required."""

    type: Any
    many: bool
    mapped: bool
    required: bool


class Decoding(Exception):
    """A value that the server cannot decode."""


def checked(resource: Resource, body: Object) -> tuple[list[str], list[Problem]]:
    """Remove the fields that the schema does not have; return their paths, and the problems of the others.

    Raises:
        ApiError: Metadata, or a kind of Kubernetes itself, has a value of another type: the server cannot decode it.
    """
    unknown: list[str] = []
    model = _model(resource)
    if model is None:
        return unknown, []
    try:
        return unknown, list(_walk(model, body, "", unknown, resource.installed_by is not None))
    except Decoding as error:
        raise ApiError(400, cannot_handle(resource, str(error))) from None


def cannot_handle(resource: Resource, why: str) -> str:
    kind = resource.kind
    return f'{kind} in version "{resource.version}" cannot be handled as a {kind}: {why}'


@functools.cache
def _model(resource: Resource) -> type[Any] | None:
    from kubeflow_trainer_api import models

    return {
        TRAINJOBS: models.TrainerV1alpha1TrainJob,
        RUNTIMES: models.TrainerV1alpha1TrainingRuntime,
        CLUSTER_RUNTIMES: models.TrainerV1alpha1ClusterTrainingRuntime,
        JOBSETS: models.JobsetV1alpha2JobSet,
        PODS: models.IoK8sApiCoreV1Pod,
        CLAIMS: models.IoK8sApiCoreV1PersistentVolumeClaim,
        ROLES: client.V1Role,
        ROLE_BINDINGS: client.V1RoleBinding,
    }.get(resource)


@functools.cache
def _fields(model: Any) -> dict[str, Field] | None:
    """Return the fields of a model by their names in JSON; None for what is no object."""
    if hasattr(model, "openapi_types"):
        kinds = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
        return {name: _swagger(kind) for name, kind in kinds.items()}
    if not isinstance(model, type) or not issubclass(model, BaseModel) or "actual_instance" in model.model_fields:
        return None
    return {
        field.alias or name: Field(*_inner(field.annotation), field.is_required())
        for name, field in model.model_fields.items()
    }


def _swagger(kind: str) -> Field:
    inner = re.sub(r"^(list\[|dict\(str, )|[\])]$", "", kind)
    plain = {"str": str, "int": int, "bool": bool}
    return Field(plain.get(inner) or getattr(client, inner, None), kind[:5] == "list[", kind[:5] == "dict(", False)


def _inner(annotation: Any) -> tuple[Any, bool, bool]:
    """Return the type inside Optional, List and Dict, and whether it was in a list or a dictionary."""
    many = mapped = False
    while (arguments := typing.get_args(annotation)) and not isinstance(annotation, type):
        origin = typing.get_origin(annotation)
        many, mapped = many or origin is list, mapped or origin is dict
        annotation = arguments[-1] if origin is dict else arguments[0]
    return annotation, many, mapped


def _walk(model: Any, value: Any, path: str, unknown: list[str], custom: bool) -> Iterator[Problem]:
    """Check an object: `custom` is one of a CRD, whose values are validated and not decoded."""
    known = _fields(model)
    if known is None:
        yield from _scalar(model, value, path, custom)
        return
    if not isinstance(value, dict):
        yield _mismatch(value, dict, path, custom)
        return
    for key in list(value):
        where = f"{path}.{key}" if path else key
        validated = custom and where.partition(".")[0] != "metadata"
        if key not in known:
            unknown.append(where)
            del value[key]
        elif value[key] is not None:
            yield from _field(known[key], key, value[key], where, unknown, validated)
    if custom and not path.startswith("metadata"):
        missing = [name for name, field in known.items() if field.required and name not in value]
        yield from (Problem(f"{path}.{name}", "Required value", "FieldValueRequired") for name in missing)


def _field(field: Field, key: str, value: Any, where: str, unknown: list[str], custom: bool) -> Iterator[Problem]:
    container = list if field.many else dict if field.mapped else None
    if container and not isinstance(value, container):
        yield _mismatch(value, container, where, custom)
    elif field.many:
        for number, child in enumerate(value):
            yield from _walk(field.type, child, f"{where}[{number}]", unknown, custom)
        if custom:
            yield from _list_problems(key, value, where)
    elif field.mapped:
        for name, child in value.items():
            yield from _walk(field.type, child, f"{where}.{name}", unknown, custom)
    else:
        yield from _walk(field.type, value, where, unknown, custom)


def _list_problems(key: str, value: list[Any], where: str) -> Iterator[Problem]:
    if len(value) > LIMITS.get(where, len(value)):
        text = f"Too many: {len(value)}: must have at most {LIMITS[where]} items"
        yield Problem(where, text, "FieldValueTooMany")
    names = [one.get(KEYS[key]) if isinstance(one, dict) else None for one in value] if key in KEYS else []
    for number, name in enumerate(names):
        if name is not None and name in names[:number]:
            text = json.dumps({KEYS[key]: name}, separators=(",", ":"))
            yield Problem(f"{where}[{number}]", f"Duplicate value: {text}", "FieldValueDuplicate")


def _scalar(kind: Any, value: Any, path: str, custom: bool) -> Iterator[Problem]:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if getattr(kind, "__name__", "").endswith("ResourceQuantity"):
        if not (isinstance(value, str) or is_number):
            yield _mismatch(value, str, path, custom)
        elif not QUANTITY.fullmatch(str(value)):
            if not custom:
                raise Decoding("unable to parse quantity's suffix")
            text = f"Invalid value: {json.dumps(value)}: {path} in body should match '{QUANTITY.pattern}'"
            yield Problem(path, text)
    elif kind in (str, int, bool) and not (is_number if kind is int else isinstance(value, kind)):
        yield _mismatch(value, kind, path, custom)


def _mismatch(value: Any, wanted: Any, path: str, custom: bool) -> Problem:
    if not custom:
        where = re.sub(r"\[\d+\]", "", path)
        if where.startswith("metadata."):
            where = ".".join(["ObjectMeta", where.split(".")[1]])
        got = GO_TYPES.get(type(value), "null")
        raise Decoding(f"json: cannot unmarshal {got} into Go struct field {where} of type {GO_TYPES[wanted]}")
    got = TYPES.get(type(value), "null")
    text = f'Invalid value: "{got}": {path} in body must be of type {TYPES[wanted]}: "{got}"'
    return Problem(path, text, "FieldValueTypeInvalid")
