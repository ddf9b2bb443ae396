"""The OpenAPI document of the operator's kinds: of the fields, only the names."""

from __future__ import annotations

import typing
from typing import Any

from tests.fakes.kubernetes.store import Object, Resource

DEPTH = 3


def document(resources: list[Resource], absent: set[str]) -> Object:
    """Return the document with the schemas of resources, without the fields `absent`, such as TrainJob.spec.suspend."""
    from kubeflow_trainer_api import models  # its import takes a second

    schemas = {}
    for one in resources:
        model = getattr(models, f"Trainer{one.version.capitalize()}{one.kind}")
        kind = {"group": one.group, "version": one.version, "kind": one.kind}
        name = ".".join([*reversed(one.group.split(".")), one.version, one.kind])
        schemas[name] = _schema(model, one.kind, absent, DEPTH) | {"x-kubernetes-group-version-kind": [kind]}
    return {"openapi": "3.0.0", "components": {"schemas": schemas}}


def _schema(model: Any, path: str, absent: set[str], depth: int) -> Object:
    fields = {field.alias or name: field.annotation for name, field in getattr(model, "model_fields", {}).items()}
    return {
        "type": "object",
        "properties": {
            name: _schema(next(iter(typing.get_args(kind)), kind), f"{path}.{name}", absent, depth - 1)
            for name, kind in fields.items()
            if depth and f"{path}.{name}" not in absent
        },
    }
