"""Nodes and what a namespace has: admission of pods, and their scheduling."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubernetes.utils import parse_quantity

from tests.fakes.kubernetes.store import PODS, Object, Store, has_condition, set_condition

INJECT = "sidecar.istio.io/inject"


@dataclass
class Node:
    """A machine of the cluster with what its pods can have; each of its taints (key: value) is NoSchedule."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    taints: dict[str, str] = field(default_factory=dict)
    allocatable: dict[str, str] = field(default_factory=lambda: {"cpu": "16", "memory": "64Gi"})


@dataclass
class Surroundings:
    """What pods refer to: nodes, claims by name with their folder, and the names of other objects.

    `pulling` are the images that the nodes have not pulled yet. With `restricted`, the namespace enforces the Pod
    Security Standard of that name; with `istio`, its pods get sidecars, as in a profile of Kubeflow.
    """

    folder: Path
    nodes: list[Node] = field(default_factory=lambda: [Node("node-a"), Node("node-b")])
    claims: dict[str, Path] = field(default_factory=dict)
    accounts: set[str] = field(default_factory=lambda: {"default", "pipeline-runner"})
    priorities: set[str] = field(default_factory=lambda: {"system-node-critical", "system-cluster-critical"})
    pulling: set[str] = field(default_factory=set)
    restricted: bool = False
    istio: bool = False


def refusal(around: Surroundings, namespace: str, name: str, pod: Object) -> str | None:
    """Return why the API server does not admit a pod."""
    account = pod.get("serviceAccountName", "default")
    if account not in around.accounts:
        why = f'error looking up service account {namespace}/{account}: serviceaccount "{account}" not found'
        return f'pods "{name}" is forbidden: {why}'
    priority = pod.get("priorityClassName")
    if priority and priority not in around.priorities:
        return f'pods "{name}" is forbidden: no PriorityClass with name {priority} was found'
    return pod_security(name, pod) if around.restricted else None


def pod_security(name: str, pod: Object) -> str | None:
    """Return why the Pod Security Standard "restricted" forbids a pod, in the words of its admission plugin."""
    found = []
    for container in pod["containers"]:
        own, who = container.get("securityContext", {}), f'container "{container["name"]}"'
        both = pod.get("securityContext", {}) | own
        rules = {
            f"allowPrivilegeEscalation != false ({who} must set securityContext.allowPrivilegeEscalation=false)":
                own.get("allowPrivilegeEscalation") is False,
            f'unrestricted capabilities ({who} must set securityContext.capabilities.drop=["ALL"])':
                "ALL" in own.get("capabilities", {}).get("drop", ()),
            f"runAsNonRoot != true (pod or {who} must set securityContext.runAsNonRoot=true)":
                both.get("runAsNonRoot") is True,
            f"runAsUser=0 ({who} must not set runAsUser=0)":
                both.get("runAsUser") != 0,
            f'seccompProfile (pod or {who} must set securityContext.seccompProfile.type to "RuntimeDefault" or '
            '"Localhost")':
                both.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
        }  # fmt: skip
        found += [rule for rule, holds in rules.items() if not holds]
    return (
        f'pods "{name}" is forbidden: violates PodSecurity "restricted:latest": {", ".join(found)}' if found else None
    )


def inject_sidecar(metadata: Object, pod: Object) -> None:
    """Add Istio's proxy to a pod that does not refuse it by a label or an annotation."""
    if "false" not in [metadata.get(kind, {}).get(INJECT) for kind in ("labels", "annotations")]:
        pod["containers"].append({"name": "istio-proxy", "image": "docker.io/istio/proxyv2"})


def tolerates(toleration: dict[str, Any], key: str, value: str) -> bool:
    """Return whether a toleration matches a taint; the effect is NoSchedule, as cloud providers set it on GPU nodes."""
    if toleration.get("effect", "") not in ("", "NoSchedule") or toleration.get("key", key) != key:
        return False
    return bool(toleration.get("operator") == "Exists" or toleration.get("value", "") == value)


def schedule(store: Store, around: Surroundings) -> None:
    """Bind each waiting pod to the first node that it fits, or say why there is none."""
    pods = store.all(PODS)
    used = {node.name: Counter[str]() for node in around.nodes}
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node in used and pod.get("status", {}).get("phase") in ("Pending", "Running"):
            used[node].update(_requests(pod["spec"]))
    for pod in pods:
        if pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates") or "deletionTimestamp" in pod["metadata"]:
            continue
        reasons = Counter(_obstacle(node, used[node.name], pod["spec"], around) for node in around.nodes)
        fits = [node for node in around.nodes if not _obstacle(node, used[node.name], pod["spec"], around)]
        if fits:
            used[fits[0].name].update(_requests(pod["spec"]))
            store.change(PODS, pod, lambda it, node=fits[0].name: _bind(it, node))
        else:
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()) if reason)
            claim = _missing_claim(around, pod["spec"])
            message = f"0/{len(around.nodes)} nodes are available: {claim or told}."
            store.change(PODS, pod, lambda it, message=message: _wait(it, message))
            store.say(PODS, pod, "FailedScheduling", message)


def _bind(pod: Object, node: str) -> None:
    pod["spec"]["nodeName"] = node
    set_condition(pod["status"], "PodScheduled", "True", "", "")


def _wait(pod: Object, message: str) -> None:
    if not has_condition(pod, "PodScheduled", "False") or pod["status"]["conditions"][0]["message"] != message:
        set_condition(pod["status"], "PodScheduled", "False", "Unschedulable", message)


def _missing_claim(around: Surroundings, pod: Object) -> str | None:
    for volume in pod.get("volumes", []):
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim and claim not in around.claims:
            return f'persistentvolumeclaim "{claim}" not found'
    return None


def _obstacle(node: Node, used: Counter[str], pod: Object, around: Surroundings) -> str | None:
    """Return why a pod cannot be on a node, in the scheduler's words."""
    if _missing_claim(around, pod):
        return "persistentvolumeclaim not found"
    if "affinity" in pod:
        raise NotImplementedError("affinity of pods")
    for key, value in node.taints.items():
        if not any(tolerates(toleration, key, value) for toleration in pod.get("tolerations", [])):
            return f"node(s) had untolerated taint {{{key}: {value}}}"
    if any(node.labels.get(key) != value for key, value in pod.get("nodeSelector", {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    for name, amount in _requests(pod).items():
        if parse_quantity(node.allocatable.get(name, "0")) < amount + used[name]:
            return f"Insufficient {name}"
    return None


def _requests(pod: Object) -> dict[str, Any]:
    """Return the amounts that a pod's containers request; a limit without a request is one."""
    total: Counter[str] = Counter()
    for container in pod["containers"]:
        resources = container.get("resources", {})
        for name, amount in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            total[name] += parse_quantity(amount)
    return total
