"""The Job controller: an indexed Job's pods, their replacement after failures, and the Job's end."""

from __future__ import annotations

import copy

from tests.fakes.kubernetes import nodes
from tests.fakes.kubernetes.nodes import Surroundings
from tests.fakes.kubernetes.store import (
    JOBS,
    PODS,
    ApiError,
    Object,
    Store,
    controlled_by,
    has_condition,
    set_condition,
    suffix,
)

INDEX = "batch.kubernetes.io/job-completion-index"
BACKOFF_LIMIT = 6


class JobController:
    """Reconciles all Jobs; remembers which failed pods were counted."""

    def __init__(self, store: Store, around: Surroundings) -> None:
        self._store = store
        self._around = around
        self._counted: dict[str, set[str]] = {}

    def reconcile(self) -> None:
        for job in self._store.all(JOBS):
            if "deletionTimestamp" not in job["metadata"]:
                self._reconcile(job)

    def _reconcile(self, job: Object) -> None:
        store, specification = self._store, job["spec"]
        if specification.get("podFailurePolicy"):
            raise NotImplementedError("pod failure policies of Jobs")
        pods = store.owned(PODS, job)
        active = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        kept = [pod for pod in active if "deletionTimestamp" not in pod["metadata"]]
        if has_condition(job, "Complete") or has_condition(job, "Failed"):
            return
        if specification["suspend"]:
            for pod in kept:
                store.delete(PODS, pod)
            return
        counted = self._counted.setdefault(job["metadata"]["uid"], set())
        failed = [
            pod["metadata"]["uid"]
            for pod in pods
            if pod["status"]["phase"] == "Failed" or (pod in active and pod not in kept)
        ]
        if not has_condition(job, "FailureTarget"):
            counted |= set(failed)
        restarted = sum(
            container["restartCount"] for pod in active for container in pod["status"].get("containerStatuses", [])
        )
        most = specification.get("backoffLimit", BACKOFF_LIMIT)
        done = {pod["metadata"]["annotations"][INDEX] for pod in pods if pod["status"]["phase"] == "Succeeded"}
        if has_condition(job, "FailureTarget") or len(counted) + restarted > most:
            reason = ("BackoffLimitExceeded", "Job has reached the specified backoff limit")
            for pod in kept:
                store.delete(PODS, pod)
            final = "FailureTarget" if active else "Failed"
            store.change(JOBS, job, lambda it: set_condition(it["status"], final, "True", *reason))
        elif len(done) == specification["completions"]:
            store.change(
                JOBS, job, lambda it: set_condition(it["status"], "Complete", "True", "CompletionsReached", "")
            )
        else:
            present = done | {pod["metadata"]["annotations"][INDEX] for pod in active}
            missing = [str(index) for index in range(specification["completions"]) if str(index) not in present]
            for index in missing[: specification["parallelism"] - len(active)]:
                self._create_pod(job, index)
        numbers = {"active": len(active), "succeeded": len(done), "failed": len(counted)}
        store.change(JOBS, job, lambda it: it["status"].update(numbers))

    def _create_pod(self, job: Object, index: str) -> None:
        name = job["metadata"]["name"]
        template = copy.deepcopy(job["spec"]["template"])
        labels = {
            "batch.kubernetes.io/job-name": name,
            "job-name": name,
            "batch.kubernetes.io/controller-uid": job["metadata"]["uid"],
            INDEX: index,
        }
        given = template.get("metadata", {})
        metadata = {
            "name": f"{name}-{index}-{suffix()}",
            "labels": given.get("labels", {}) | labels,
            "annotations": given.get("annotations", {}) | {INDEX: index},
            "ownerReferences": controlled_by(JOBS, job),
        }
        pod = template["spec"] | {"hostname": f"{name}-{index}"}
        field = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
        for container in pod["containers"]:
            if "JOB_COMPLETION_INDEX" not in {variable["name"] for variable in container.get("env", [])}:
                container.setdefault("env", []).append({"name": "JOB_COMPLETION_INDEX", "valueFrom": field})
        if self._around.istio:
            nodes.inject_sidecar(metadata, pod)
        if refused := nodes.refusal(self._around, job["metadata"]["namespace"], metadata["name"], pod):
            message = f"Error creating: {refused}".replace(metadata["name"], f"{name}-{index}-")
            self._store.say(JOBS, job, "FailedCreate", message)
            return
        try:
            body = {"metadata": metadata, "spec": pod, "status": {"phase": "Pending"}}
            self._store.create(PODS, job["metadata"]["namespace"], body)
        except ApiError as error:
            self._store.say(JOBS, job, "FailedCreate", f"Error creating: {error}")
