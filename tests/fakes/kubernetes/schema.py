"""What the API server and the admission webhooks refuse.

The structure is that of the real CRDs: kubeflow_trainer_api has the models that are generated from them.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Iterator
from typing import Any

from kubernetes import client
from pydantic import BaseModel, ValidationError

from tests.fakes.kubernetes.store import (
    CLUSTER_RUNTIMES,
    JOBSETS,
    ROLE_BINDINGS,
    ROLES,
    RUNTIMES,
    TRAINJOBS,
    ApiError,
    Object,
    Resource,
    Store,
)

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# Of the CRD: the name of a TrainJob becomes that of a Service.
LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
MANAGERS = ("trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue")
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
ANCESTORS = {"trainer": "node", "model-initializer": "model-initializer", "dataset-initializer": "dataset-initializer"}
MOST_ENTRIES = 128


@functools.cache
def _model(resource: Resource) -> type[Any] | None:
    from kubeflow_trainer_api import models

    return {
        TRAINJOBS: models.TrainerV1alpha1TrainJob,
        RUNTIMES: models.TrainerV1alpha1TrainingRuntime,
        CLUSTER_RUNTIMES: models.TrainerV1alpha1ClusterTrainingRuntime,
        JOBSETS: models.JobsetV1alpha2JobSet,
        ROLES: client.V1Role,
        ROLE_BINDINGS: client.V1RoleBinding,
    }.get(resource)


def unknown_fields(resource: Resource, body: Object) -> list[str]:
    """Return the paths of the fields that the resource's schema does not have; they are removed from `body`."""
    model = _model(resource)
    if model is None:
        return []
    prune = _prune_model if issubclass(model, BaseModel) else _prune_swagger
    return list(prune(model, body, ""))


def check(store: Store, resource: Resource, namespace: str, body: Object, old: Object | None = None) -> None:
    """Raise the API server's or a webhook's error for an object that is not valid."""
    name = body.get("metadata", {}).get("name") or ""
    problems = [*_metadata_problems(body), *_type_problems(resource, body)]
    if resource == TRAINJOBS:
        problems += _train_job_problems(body, old)
    if resource == ROLE_BINDINGS and old and old["roleRef"] != body["roleRef"]:
        problems.append("roleRef: Invalid value: cannot change roleRef")
    if problems:
        raise ApiError(422, f'{resource.kind}.{resource.group} "{name}" is invalid: {", ".join(problems)}')
    if resource in (RUNTIMES, CLUSTER_RUNTIMES):
        _deny("trainingruntime", _runtime_problems(body))
    if resource == TRAINJOBS and old is None:
        _deny("trainjob", _reference_problems(store, namespace, body["spec"]["runtimeRef"]))


def jobset_problems(jobset: Object) -> list[str]:
    """Return what JobSet's webhook refuses: names of jobs and pods that are longer than a DNS label."""
    problems = []
    for job in jobset["spec"].get("replicatedJobs", []):
        specification = job["template"]["spec"]
        name = f"{jobset['metadata']['name']}-{job['name']}-{job.get('replicas', 1) - 1}"
        if len(name) > 63:
            problems.append("JobSet name is too long, job names generated for this JobSet will exceed 63 characters")
        elif "completions" in specification and len(f"{name}-{specification['completions'] - 1}-abcde") > 63:
            problems.append("JobSet name is too long, pod names generated for this JobSet will exceed 63 characters")
    return problems


def _deny(webhook: str, problems: list[str]) -> None:
    if problems:
        by = f'admission webhook "validator.{webhook}.trainer.kubeflow.org" denied the request'
        raise ApiError(403, f"{by}: {', '.join(problems)}", "Forbidden")


def _metadata_problems(body: Object) -> Iterator[str]:
    metadata = body.get("metadata", {})
    name = metadata.get("name", "")
    if not NAME.fullmatch(name) or len(name) > 253:
        yield f'metadata.name: Invalid value: "{name}": a lowercase RFC 1123 subdomain must consist of lower case …'
    for key, value in (metadata.get("labels") or {}).items():
        if not LABEL_VALUE.fullmatch(value):
            yield f'metadata.labels: Invalid value: "{value}" (of {key}): must be a valid label value'


def _train_job_problems(body: Object, old: Object | None) -> Iterator[str]:
    """Yield the violations of the CRD's validation rules and limits."""
    name, specification = body["metadata"]["name"], body.get("spec", {})
    if not LABEL_1035.fullmatch(name):
        yield "<nil>: Invalid value: metadata.name must match RFC 1035 DNS label format"
    if len(name) > 63:
        yield "<nil>: Invalid value: metadata.name must be no more than 63 characters"
    if not specification.get("runtimeRef", {}).get("name"):
        yield "spec.runtimeRef.name: Required value"
    if specification.get("managedBy", MANAGERS[0]) not in MANAGERS:
        yield f"spec.managedBy: Invalid value: ManagedBy must be {' or '.join(MANAGERS)} if set"
    if specification.get("activeDeadlineSeconds", 1) < 1:
        yield "spec.activeDeadlineSeconds: Invalid value: should be greater than or equal to 1"
    trainer = specification.get("trainer", {})
    for field in ("args", "command", "env"):
        if len(trainer.get(field, [])) > MOST_ENTRIES:
            yield f"spec.trainer.{field}: Too many: {len(trainer[field])}: must have at most {MOST_ENTRIES} items"
    names = [one["name"] for one in trainer.get("env", [])]
    for twice in sorted({one for one in names if names.count(one) > 1}):
        yield f'spec.trainer.env: Duplicate value: {{"name":"{twice}"}}'
    for field in ("runtimeRef", "trainer", "managedBy", "activeDeadlineSeconds"):
        if old is not None and old["spec"].get(field) != specification.get(field):
            yield f"spec.{field}: Invalid value: field is immutable"


def _runtime_problems(body: Object) -> list[str]:
    problems = []
    jobs = body.get("spec", {}).get("template", {}).get("spec", {}).get("replicatedJobs", [])
    for number, job in enumerate(jobs):
        place = f"spec.template.spec.replicatedJobs[{number}]"
        ancestor = job["template"].get("metadata", {}).get("labels", {}).get(ANCESTOR)
        pod = job["template"]["spec"]["template"]["spec"]
        if ancestor in ANCESTORS:
            if job.get("replicas", 1) != 1:
                problems.append(f"{place}.replicas: Invalid value: {job['replicas']}: always must be 1")
            if ANCESTORS[ancestor] not in [container["name"] for container in pod["containers"]]:
                problems.append(
                    f"{place}: Invalid value: must contain the required container for the ancestor: {ancestor}"
                )
    return problems


def _reference_problems(store: Store, namespace: str, reference: Object) -> list[str]:
    kind = reference.get("kind", "ClusterTrainingRuntime")
    resource = {"TrainingRuntime": RUNTIMES, "ClusterTrainingRuntime": CLUSTER_RUNTIMES}.get(kind)
    if resource is None:
        return [f"unsupported runtime: {kind}.trainer.kubeflow.org"]
    if store.find(resource, namespace, reference["name"]) is not None:
        return []
    return [
        f'spec.runtimeRef: Invalid value: {resource.full_name} "{reference["name"]}" not found: specified '
        f"{'t' if resource == RUNTIMES else 'clusterT'}rainingRuntime must be created before the TrainJob is created"
    ]


def _type_problems(resource: Resource, body: Object) -> list[str]:
    """Return the values that have a wrong type, or are missing."""
    model = _model(resource)
    if model is None or not issubclass(model, BaseModel):
        return []
    try:
        model.from_dict(body)  # type: ignore[attr-defined]
    except ValidationError as error:
        return [f"{'.'.join(str(part) for part in one['loc'])}: {one['msg']}" for one in error.errors()]
    except (AttributeError, TypeError, ValueError) as error:
        return [f"<nil>: Invalid value: {error}"]
    return []


def _prune_model(model: Any, value: Any, path: str) -> Iterator[str]:
    """Remove what a pydantic model does not have."""
    if not isinstance(value, dict):
        return
    fields = {field.alias or name: field.annotation for name, field in model.model_fields.items()}
    for key in list(value):
        if key not in fields:
            yield f"{path}{key}"
            del value[key]
            continue
        inner, many, mapped = _inner(fields[key])
        if not (isinstance(inner, type) and issubclass(inner, BaseModel) and inner.model_fields):
            continue
        if "actual_instance" in inner.model_fields:  # a quantity, or a number or string
            continue
        children = value[key] if many else list(value[key].values()) if mapped else [value[key]]
        for number, child in enumerate(children or []):
            yield from _prune_model(inner, child, f"{path}{key}{f'[{number}]' if many else ''}.")


def _inner(annotation: Any) -> tuple[Any, bool, bool]:
    """Return the type inside Optional, List and Dict, and whether it was in a list or a dictionary."""
    many = mapped = False
    while (arguments := typing.get_args(annotation)) and not isinstance(annotation, type):
        origin = typing.get_origin(annotation)
        many, mapped = many or origin is list, mapped or origin is dict
        annotation = arguments[-1] if origin is dict else arguments[0]
    return annotation, many, mapped


def _prune_swagger(model: Any, value: Any, path: str) -> Iterator[str]:
    """Remove what a model of the Kubernetes client does not have."""
    types = {model.attribute_map[name]: kind for name, kind in model.openapi_types.items()}
    for key in list(value or {}):
        if key not in types:
            yield f"{path}{key}"
            del value[key]
            continue
        many = types[key].startswith("list[")
        inner = getattr(client, types[key].removeprefix("list[").rstrip("]"), None)
        for number, child in enumerate((value[key] or []) if many else [value[key]]):
            if inner is not None:
                yield from _prune_swagger(inner, child, f"{path}{key}{f'[{number}]' if many else ''}.")
