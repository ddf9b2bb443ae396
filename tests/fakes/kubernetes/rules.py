"""What the API server fills in and what it and the admission webhooks refuse, besides an object's structure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.fakes.kubernetes.store import (
    CLAIMS,
    CLUSTER_RUNTIMES,
    NAMESPACES,
    PODS,
    RBAC,
    ROLE_BINDINGS,
    ROLES,
    RUNTIMES,
    TRAINJOBS,
    ApiError,
    Object,
    Problem,
    Resource,
    Store,
)

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    f"and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{SUBDOMAIN.pattern}')"
)
LABEL_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_1123_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    f"'{LABEL_1123.pattern}')"
)
# Of the CRD: the name of a TrainJob becomes that of a Service.
LABEL_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL_KEY = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
LABEL_KEY_TEXT = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    f"character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{LABEL_KEY.pattern}')"
)
LABEL_VALUE = re.compile(rf"({LABEL_KEY.pattern})?")
LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    f"'{LABEL_VALUE.pattern}')"
)
ANNOTATIONS_BYTES = 262144
# Errors that keep the rules of a CRD from being checked (hasBlockingErr in k8s.io/apiextensions-apiserver).
BLOCKING = ("FieldValueRequired", "FieldValueTooLong", "FieldValueTooMany", "FieldValueTypeInvalid")
UNCHECKED = Problem(
    "<nil>",
    "Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing "
    "errors to complete validation",
)
MANAGERS = ("trainer.kubeflow.org/trainjob-controller", "kueue.x-k8s.io/multikueue")
POLICIES = ("torch", "mpi", "jax", "xgboost", "flux")
ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
ANCESTORS = {"trainer": "node", "model-initializer": "model-initializer", "dataset-initializer": "dataset-initializer"}
POD_DEFAULTS = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
}


def fill_in(resource: Resource, body: Object) -> None:
    """Set the defaults of the CRDs and of Kubernetes."""
    specification = body.get("spec")
    if not isinstance(specification, dict):
        return
    if resource == TRAINJOBS:
        specification |= {"suspend": False, "managedBy": MANAGERS[0]} | specification
        if isinstance(reference := specification.get("runtimeRef"), dict):
            reference |= {"apiGroup": resource.group, "kind": CLUSTER_RUNTIMES.kind} | reference
    if resource in (RUNTIMES, CLUSTER_RUNTIMES):
        for job in _replicated_jobs(specification):
            if isinstance(job, dict):
                job.setdefault("groupName", "default")
    if resource == PODS:
        specification |= POD_DEFAULTS | specification
        for container in specification.get("containers", ()):
            container.setdefault("resources", {})
            tag = container.get("image", "").rpartition("/")[2].partition(":")[2]
            container.setdefault("imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent")


def check(
    store: Store, resource: Resource, namespace: str, body: Object, old: Object | None, found: list[Problem]
) -> None:
    """Raise the API server's or a webhook's error for an object that is not valid.

    Args:
        found: The problems of its structure.
    """
    problems = [*_metadata_problems(resource, body["metadata"]), *found]
    if resource.installed_by and any(one.reason in BLOCKING for one in problems):
        problems.append(UNCHECKED)
    else:
        problems += RULES.get(resource, _no_problems)(body, old)
    if problems:
        raise resource.invalid(body["metadata"].get("name", ""), problems)
    if resource in (RUNTIMES, CLUSTER_RUNTIMES):
        _deny("trainingruntime", _runtime_denials(body))
    if resource == TRAINJOBS:
        _deny("trainjob", _reference_denials(store, namespace, body["spec"]["runtimeRef"]))


def check_namespace(store: Store, namespace: str) -> None:
    """Raise 404 if there is no such namespace to create an object in."""
    if namespace and store.find(NAMESPACES, "", namespace) is None:
        details = {"name": namespace, "kind": NAMESPACES.plural}
        raise ApiError(404, f'namespaces "{namespace}" not found', details=details)


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


def job_problems(specification: Object) -> list[Problem]:
    """Return what the API server refuses of a Job's specification."""
    pod = specification["template"]["spec"]
    return [
        *_unsupported("spec.completionMode", specification, ("Indexed", "NonIndexed")),
        *_unsupported("spec.template.spec.restartPolicy", pod, ("OnFailure", "Never")),
        *pod_problems({"spec": pod}),
    ]


def _deny(webhook: str, problems: list[str]) -> None:
    if problems:
        by = f'admission webhook "validator.{webhook}.trainer.kubeflow.org" denied the request'
        raise ApiError(403, f"{by}: {', '.join(problems)}", "Forbidden")


def _metadata_problems(resource: Resource, metadata: Object) -> Iterator[Problem]:
    name = metadata.get("name") or ""
    if not name:
        yield _required("metadata.name", "name or generateName is required")
    elif resource.group == RBAC:
        if "/" in name or "%" in name:
            yield _invalid("metadata.name", name, f"may not contain '{'/' if '/' in name else '%'}'")
    elif len(name) > 253:
        yield _invalid("metadata.name", name, "must be no more than 253 characters")
    elif not SUBDOMAIN.fullmatch(name):
        yield _invalid("metadata.name", name, SUBDOMAIN_TEXT)
    annotations = metadata.get("annotations") or {}
    for field, keys in (("labels", metadata.get("labels") or {}), ("annotations", annotations)):
        for key in keys:
            prefix, slash, last = key.rpartition("/")
            if not LABEL_KEY.fullmatch(last) or (slash and not SUBDOMAIN.fullmatch(prefix.lower())):
                yield _invalid(f"metadata.{field}", key, LABEL_KEY_TEXT)
            elif len(last) > 63:
                yield _invalid(f"metadata.{field}", key, "name part must be no more than 63 bytes")
    for value in (metadata.get("labels") or {}).values():
        if len(value) > 63:
            yield _invalid("metadata.labels", value, "must be no more than 63 bytes")
        elif not LABEL_VALUE.fullmatch(value):
            yield _invalid("metadata.labels", value, LABEL_VALUE_TEXT)
    if sum(len(f"{key}{value}".encode()) for key, value in annotations.items()) > ANNOTATIONS_BYTES:
        text = f"Too long: may not be more than {ANNOTATIONS_BYTES} bytes"
        yield Problem("metadata.annotations", text, "FieldValueTooLong")
    yield from _owner_problems(metadata.get("ownerReferences") or [])


def _owner_problems(references: list[Object]) -> Iterator[Problem]:
    for reference in references:
        for field in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(field):
                yield _invalid(f"metadata.ownerReferences.{field}", "", "must not be empty")
    if sum(bool(reference.get("controller")) for reference in references) > 1:
        text = "Only one reference can have Controller set to true"
        yield _invalid("metadata.ownerReferences", references, text)


def _train_job_problems(body: Object, _: Object | None) -> Iterator[Problem]:
    """Yield the violations of the CRD's validation rules."""
    name, specification = body["metadata"]["name"], body.get("spec") or {}
    if not LABEL_1035.fullmatch(name):
        yield Problem("<nil>", 'Invalid value: "object": metadata.name must match RFC 1035 DNS label format')
    if len(name) > 63:
        yield Problem("<nil>", 'Invalid value: "object": metadata.name must be no more than 63 characters')
    if specification.get("managedBy", MANAGERS[0]) not in MANAGERS:
        yield _invalid(
            "spec.managedBy", specification["managedBy"], f"ManagedBy must be {' or '.join(MANAGERS)} if set"
        )
    if (seconds := specification.get("activeDeadlineSeconds", 1)) < 1:
        field = "spec.activeDeadlineSeconds"
        yield _invalid(field, seconds, f"{field} in body should be greater than or equal to 1")


def _runtime_problems(body: Object, _: Object | None) -> Iterator[Problem]:
    policy = (body.get("spec") or {}).get("mlPolicy") or {}
    if len([one for one in POLICIES if one in policy]) > 1:
        yield Problem("spec.mlPolicy", "Invalid value: Only one of the policy can be configured")


def pod_problems(body: Object, _: Object | None = None) -> Iterator[Problem]:
    """Yield what the API server refuses of a pod."""
    specification = body.get("spec") or {}
    yield from _unsupported("spec.restartPolicy", specification, ("Always", "OnFailure", "Never"))
    for number, toleration in enumerate(specification.get("tolerations", ())):
        yield from _unsupported(f"spec.tolerations[{number}].operator", toleration, ("Equal", "Exists"))
    names = [volume.get("name", "") for volume in specification.get("volumes", ())]
    yield from _names("spec.volumes", names)
    containers = specification.get("containers") or []
    if not containers:
        yield _required("spec.containers")
    yield from _names("spec.containers", [container.get("name", "") for container in containers])
    for number, container in enumerate(containers):
        where = f"spec.containers[{number}]"
        if not container.get("image"):
            yield _required(f"{where}.image")
        paths: list[str] = []
        for index, mount in enumerate(container.get("volumeMounts", ())):
            if mount.get("name") not in names:
                text = f"Not found: {json.dumps(mount.get('name', ''))}"
                yield Problem(f"{where}.volumeMounts[{index}].name", text, "FieldValueNotFound")
            if mount.get("mountPath") in paths:
                yield _invalid(f"{where}.volumeMounts[{index}].mountPath", mount["mountPath"], "must be unique")
            paths.append(mount.get("mountPath"))


def _names(field: str, names: list[str]) -> Iterator[Problem]:
    """Yield the problems of a list's names, which are unique DNS labels."""
    for number, name in enumerate(names):
        where = f"{field}[{number}].name"
        if not name:
            yield _required(where)
        elif len(name) > 63:
            yield _invalid(where, name, "must be no more than 63 bytes")
        elif not LABEL_1123.fullmatch(name):
            yield _invalid(where, name, LABEL_1123_TEXT)
        elif name in names[:number]:
            yield Problem(where, f"Duplicate value: {json.dumps(name)}", "FieldValueDuplicate")


def _claim_problems(body: Object, _: Object | None) -> Iterator[Problem]:
    if not ((body.get("spec") or {}).get("resources") or {}).get("requests", {}).get("storage"):
        yield _required("spec.resources[storage]")


def _role_problems(body: Object, _: Object | None) -> Iterator[Problem]:
    texts = {
        "verbs": "verbs must contain at least one value",
        "apiGroups": "resource rules must supply at least one api group",
        "resources": "resource rules must supply at least one resource",
    }
    for number, rule in enumerate(body.get("rules") or ()):
        yield from (_required(f"rules[{number}].{field}", text) for field, text in texts.items() if not rule.get(field))


def _binding_problems(body: Object, old: Object | None) -> Iterator[Problem]:
    for number, subject in enumerate(body.get("subjects") or ()):
        if subject.get("kind") == "ServiceAccount" and not SUBDOMAIN.fullmatch(subject.get("name", "")):
            yield _invalid(f"subjects[{number}].name", subject.get("name", ""), SUBDOMAIN_TEXT)
    if old and old["roleRef"] != body["roleRef"]:
        given = {"APIGroup" if key == "apiGroup" else key.title(): value for key, value in body["roleRef"].items()}
        yield _invalid("roleRef", given, "cannot change roleRef")


def _runtime_denials(body: Object) -> list[str]:
    problems = []
    for number, job in enumerate(_replicated_jobs(body.get("spec") or {})):
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


def _reference_denials(store: Store, namespace: str, reference: Object) -> list[str]:
    kind = reference["kind"]
    resource = {"TrainingRuntime": RUNTIMES, "ClusterTrainingRuntime": CLUSTER_RUNTIMES}.get(kind)
    if resource is None:
        return [f"unsupported runtime: {kind}.trainer.kubeflow.org"]
    if store.find(resource, namespace, reference["name"]) is not None:
        return []
    return [
        f'spec.runtimeRef: Invalid value: {resource.full_name} "{reference["name"]}" not found: specified '
        f"{'t' if resource == RUNTIMES else 'clusterT'}rainingRuntime must be created before the TrainJob is created"
    ]


def _replicated_jobs(specification: Object) -> list[Any]:
    found = ((specification.get("template") or {}).get("spec") or {}).get("replicatedJobs") or []
    return found if isinstance(found, list) else []


def _unsupported(field: str, holder: Object, values: tuple[str, ...]) -> Iterator[Problem]:
    value = holder.get(field.rpartition(".")[2])
    if value is not None and value not in values:
        told = ", ".join(json.dumps(one) for one in values)
        yield Problem(
            field, f"Unsupported value: {json.dumps(value)}: supported values: {told}", "FieldValueNotSupported"
        )


def _required(field: str, text: str = "") -> Problem:
    return Problem(field, "Required value" + (f": {text}" if text else ""), "FieldValueRequired")


def _invalid(field: str, value: Any, text: str) -> Problem:
    return Problem(field, f"Invalid value: {json.dumps(value, separators=(',', ':'))}: {text}")


def _no_problems(_: Object, __: Object | None) -> Iterator[Problem]:
    return iter(())


RULES = {
    TRAINJOBS: _train_job_problems,
    RUNTIMES: _runtime_problems,
    CLUSTER_RUNTIMES: _runtime_problems,
    PODS: pod_problems,
    CLAIMS: _claim_problems,
    ROLES: _role_problems,
    ROLE_BINDINGS: _binding_problems,
}
