"""The controllers of Kubeflow Trainer, JobSet and Kueue: from a TrainJob to its Jobs, and back to its status."""

from __future__ import annotations

import copy
from typing import Any

from tests.fakes.kubernetes import rules
from tests.fakes.kubernetes.store import (
    CLUSTER_RUNTIMES,
    JOBS,
    JOBSETS,
    PODS,
    RUNTIMES,
    TRAINJOBS,
    Object,
    Store,
    controlled_by,
    has_condition,
    set_condition,
)

IN_USE = "trainer.kubeflow.org/resource-in-use"
QUEUE = "kueue.x-k8s.io/queue-name"
JOBSET = "jobset.sigs.k8s.io"


def admit(store: Store, queues: set[str]) -> None:
    """Resume the TrainJobs that Kueue suspended and whose queue has room for them."""
    for job in store.all(TRAINJOBS):
        if job["metadata"].get("labels", {}).get(QUEUE) in queues and job["spec"].get("suspend"):
            store.change(TRAINJOBS, job, lambda it: it["spec"].update(suspend=False))


def reconcile_runtimes(store: Store) -> None:
    """Keep a deleted runtime for as long as TrainJobs refer to it."""
    users = {
        (job["metadata"]["namespace"], job["spec"]["runtimeRef"]["name"])
        for job in store.all(TRAINJOBS)
        if job["spec"]["runtimeRef"].get("kind") == RUNTIMES.kind
    }
    for runtime in store.all(RUNTIMES):
        used = (runtime["metadata"]["namespace"], runtime["metadata"]["name"]) in users
        store.change(RUNTIMES, runtime, lambda it, used=used: _protect(it["metadata"], used))


def reconcile_train_jobs(store: Store) -> None:
    """Create the JobSet of each TrainJob, and copy its state into the TrainJob's status."""
    for job in store.all(TRAINJOBS):
        if "deletionTimestamp" in job["metadata"] or job["spec"].get("managedBy", "").startswith("kueue"):
            continue
        if not (has_condition(job, "Complete") or has_condition(job, "Failed")):
            _apply_jobset(store, job)
        jobset = next(iter(store.owned(JOBSETS, job)), None)
        store.change(TRAINJOBS, job, lambda it, jobset=jobset: _train_job_status(it, jobset))


def reconcile_jobsets(store: Store) -> None:
    """Create the Jobs of each JobSet, and complete, fail or restart it with them."""
    for jobset in store.all(JOBSETS):
        if "deletionTimestamp" in jobset["metadata"]:
            continue
        jobs = store.owned(JOBS, jobset)
        ended = has_condition(jobset, "Completed") or has_condition(jobset, "Failed")
        restarts = jobset["status"].get("restarts", 0)
        current = [job for job in jobs if job["metadata"]["labels"][f"{JOBSET}/restart-attempt"] == str(restarts)]
        failed = [job for job in current if has_condition(job, "Failed")]
        for job in jobs:
            finished = has_condition(job, "Failed") or has_condition(job, "Complete")
            if (job not in current or (ended and not finished)) and "deletionTimestamp" not in job["metadata"]:
                store.delete(JOBS, job, "Foreground")
        if not ended and jobs == current:
            _make_jobs(store, jobset, current, restarts)
        if not ended and failed:
            first = failed[0]["metadata"]["name"]
            most = jobset["spec"].get("failurePolicy", {}).get("maxRestarts")
            store.change(JOBSETS, jobset, lambda it, first=first, most=most: _jobset_failure(it, first, most))
        elif not ended and len(current) >= _wanted(jobset) and all(has_condition(it, "Complete") for it in current):
            done = ("Completed", "True", "AllJobsCompleted", "jobset completed successfully")
            store.change(JOBSETS, jobset, lambda it, done=done: set_condition(it["status"], *done))
        store.change(JOBSETS, jobset, lambda it, jobs=current: _replicated_status(store, it, jobs))


def _protect(metadata: Object, used: bool) -> None:
    finalizers = metadata.setdefault("finalizers", [])
    if used and IN_USE not in finalizers and "deletionTimestamp" not in metadata:
        finalizers.append(IN_USE)
    if not used and IN_USE in finalizers:
        finalizers.remove(IN_USE)
    if not finalizers:
        del metadata["finalizers"]


def _apply_jobset(store: Store, job: Object) -> None:
    """Create the JobSet from the runtime's template, with what the TrainJob says in place of the template's."""
    space, name = job["metadata"]["namespace"], job["metadata"]["name"]
    suspended = job["spec"].get("suspend", False)
    existing = store.find(JOBSETS, space, name)
    if existing is not None:
        if existing["spec"]["suspend"] != suspended:
            store.change(JOBSETS, existing, lambda it: it["spec"].update(suspend=suspended))
        return
    reference = job["spec"]["runtimeRef"]
    resource = RUNTIMES if reference.get("kind") == RUNTIMES.kind else CLUSTER_RUNTIMES
    runtime = store.find(resource, space, reference["name"])
    if runtime is None:
        problem = f'TrainingRuntime specified in TrainJob is not found: {resource.full_name} "{reference["name"]}"'
        store.say(TRAINJOBS, job, "TrainJobResourcesCreationFailed", problem)
        return
    if {"initializer", "runtimePatches"} & job["spec"].keys():
        raise NotImplementedError("initializers and runtime patches of TrainJobs")
    template = copy.deepcopy(runtime["spec"]["template"])
    nodes = runtime["spec"].get("mlPolicy", {}).get("numNodes", 1)
    for replicated in template["spec"]["replicatedJobs"]:
        _fill_in(replicated, job["spec"].get("trainer", {}), nodes)
    metadata = template.get("metadata", {})
    made: dict[str, Any] = {
        "metadata": {"name": name, "ownerReferences": controlled_by(TRAINJOBS, job)}
        | {key: metadata[key] for key in ("labels", "annotations") if key in metadata},
        "spec": template["spec"] | {"suspend": suspended},
        "status": {},
    }
    if problems := rules.jobset_problems(_with_defaults(made)):
        text = f'admission webhook "vjobset.kb.io" denied the request: {", ".join(problems)}'
        store.say(TRAINJOBS, job, "TrainJobResourcesCreationFailed", text)
        return
    store.create(JOBSETS, space, made)


def _fill_in(replicated: Object, trainer: Object, nodes: int) -> None:
    """Give a replicated job its number of pods, and what `spec.trainer` has in place of the template's."""
    specification = replicated["template"]["spec"]
    ancestor = replicated["template"].get("metadata", {}).get("labels", {}).get(rules.ANCESTOR)
    count = specification.get("parallelism", 1)
    if ancestor == "trainer":
        count = trainer.get("numNodes", nodes)
    specification["parallelism"] = specification["completions"] = count
    for container in specification["template"]["spec"]["containers"]:
        if container["name"] == "node":
            container |= {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
            if "resourcesPerNode" in trainer:
                container["resources"] = trainer["resourcesPerNode"]
            given = {variable["name"]: variable for variable in trainer.get("env", [])}
            kept = [variable for variable in container.get("env", []) if variable["name"] not in given]
            container["env"] = [*kept, *given.values()]


def _with_defaults(jobset: Object) -> Object:
    """Set the defaults of JobSet's webhook."""
    jobset["spec"].setdefault("successPolicy", {"operator": "All"})
    jobset["spec"].setdefault("network", {}).setdefault("enableDNSHostnames", True)
    for replicated in jobset["spec"]["replicatedJobs"]:
        replicated.setdefault("replicas", 1)
        replicated["template"]["spec"].setdefault("completionMode", "Indexed")
        replicated["template"]["spec"]["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    return jobset


def _train_job_status(job: Object, jobset: Object | None) -> None:
    status = job.setdefault("status", {})
    if job["spec"].get("suspend"):
        set_condition(status, "Suspended", "True", "Suspended", "TrainJob is suspended")
    elif has_condition(job, "Suspended"):
        set_condition(status, "Suspended", "False", "Resumed", "TrainJob is resumed")
    if jobset is None:
        return
    for theirs, ours in (("Completed", "Complete"), ("Failed", "Failed")):
        for condition in jobset["status"].get("conditions", []):
            if condition["type"] == theirs and condition["status"] == "True":
                set_condition(status, ours, "True", condition["reason"], condition["message"])
    if "replicatedJobsStatus" in jobset["status"]:
        status["jobsStatus"] = jobset["status"]["replicatedJobsStatus"]


def _wanted(jobset: Object) -> int:
    return sum(replicated["replicas"] for replicated in jobset["spec"]["replicatedJobs"])


def _make_jobs(store: Store, jobset: Object, existing: list[Object], restarts: int) -> None:
    suspended = jobset["spec"]["suspend"]
    known = {job["metadata"]["name"]: job for job in existing}
    for replicated in jobset["spec"]["replicatedJobs"]:
        for index in range(replicated["replicas"]):
            name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
            if name in known:
                if known[name]["spec"]["suspend"] != suspended:
                    store.change(JOBS, known[name], lambda it: it["spec"].update(suspend=suspended))
                continue
            if replicated.get("dependsOn"):
                raise NotImplementedError("dependsOn of replicated jobs")
            labels = {
                f"{JOBSET}/jobset-name": jobset["metadata"]["name"],
                f"{JOBSET}/replicatedjob-name": replicated["name"],
                f"{JOBSET}/replicatedjob-replicas": str(replicated["replicas"]),
                f"{JOBSET}/job-index": str(index),
                f"{JOBSET}/restart-attempt": str(restarts),
            }
            template = copy.deepcopy(replicated["template"])
            specification = template["spec"] | {"suspend": suspended}
            metadata = specification["template"].setdefault("metadata", {})
            metadata["labels"] = metadata.get("labels", {}) | labels
            metadata["annotations"] = metadata.get("annotations", {}) | labels
            specification["template"]["spec"]["subdomain"] = jobset["spec"]["network"].get(
                "subdomain", jobset["metadata"]["name"]
            )
            own = template.get("metadata", {}).get("labels", {})
            if problems := rules.job_problems(specification):
                message = f'job "{name}" creation failed with error: {JOBS.invalid(name, problems)}'
                store.say(JOBSETS, jobset, "JobCreationFailed", message)
                continue
            made = {"name": name, "labels": own | labels, "ownerReferences": controlled_by(JOBSETS, jobset)}
            body = {"metadata": made, "spec": specification, "status": {}}
            store.create(JOBS, jobset["metadata"]["namespace"], body)


def _jobset_failure(jobset: Object, first: str, most: int | None) -> None:
    """Restart the JobSet if its failure policy allows another restart; else it failed."""
    status, because = jobset["status"], f"(first failed job: {first})"
    if jobset["spec"].get("failurePolicy", {}).get("rules"):
        raise NotImplementedError("rules of a JobSet's failure policy")
    if most is None:
        message = f"jobset failed due to one or more job failures {because}"
        set_condition(status, "Failed", "True", "FailedJobs", message)
    elif status.get("restarts", 0) >= most:
        message = f"jobset failed due to reaching max number of restarts {because}"
        set_condition(status, "Failed", "True", "ReachedMaxRestarts", message)
    else:
        status["restarts"] = status.get("restarts", 0) + 1


def _replicated_status(store: Store, jobset: Object, jobs: list[Object]) -> None:
    statuses = []
    for replicated in jobset["spec"]["replicatedJobs"]:
        own = [it for it in jobs if it["metadata"]["labels"][f"{JOBSET}/replicatedjob-name"] == replicated["name"]]
        running = [it for it in own if not (has_condition(it, "Failed") or has_condition(it, "Complete"))]
        pods = {it["metadata"]["name"]: store.owned(PODS, it) for it in running}
        alive = {name: [pod["status"]["phase"] for pod in of] for name, of in pods.items()}
        statuses.append(
            {
                "name": replicated["name"],
                "ready": sum(
                    sum(phase in ("Running", "Succeeded") for phase in alive[it["metadata"]["name"]])
                    >= it["spec"]["parallelism"]
                    for it in running
                ),
                "succeeded": sum(has_condition(it, "Complete") for it in own),
                "failed": sum(has_condition(it, "Failed") for it in own),
                "active": sum(bool({"Running", "Pending"} & set(phases)) for phases in alive.values()),
                "suspended": sum(it["spec"]["suspend"] for it in running),
            }
        )
    jobset["status"]["replicatedJobsStatus"] = statuses
