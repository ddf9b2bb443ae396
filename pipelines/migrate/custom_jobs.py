"""Vertex AI's custom jobs and hyperparameter tuning jobs, as jobs of AI Platform Training.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.hyperparameterTuningJobs
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeGuard

from slipway.core.errors import UserError
from slipway.core.values import JsonObject

POOLS = "workerPoolSpecs"
SPECS = ("jobSpec", "customJobSpec", "trialJobSpec")
ROLES = ("master", "worker", "parameterServer", "evaluator")
ALLOWED = f"{POOLS}, a list with machineSpec, replicaCount, and containerSpec or pythonPackageSpec"
# Keys that a migration reads. The values of WHOLE are not searched for others.
READ = {
    *SPECS, POOLS, "displayName", "region", "project", "serviceAccount", "network", "maxTrialCount",
    "parallelTrialCount", "maxFailedTrialCount", "scheduling", "timeout", "maxWaitDuration", "strategy",
    "restartJobOnWorkerRestart", "baseOutputDirectory", "outputUriPrefix", "encryptionSpec", "kmsKeyName",
    "machineSpec", "machineType", "acceleratorType", "acceleratorCount", "replicaCount", "containerSpec", "imageUri",
    "pythonPackageSpec", "pythonModule", "diskSpec", "bootDiskType", "bootDiskSizeGb",
}  # fmt: skip
WHOLE = {"labels", "args", "command", "packageUris", "studySpec"}
# Output-only fields that `gcloud ai custom-jobs describe` prints.
ANSWERS = {"name", "state", "createTime", "startTime", "endTime", "updateTime", "error", "webAccessUris", "trials"}
# Why a key has no equivalent, of those that people ask for.
UNREAD = {
    "env": "no setting has environment variables; set them in the program, or in the image's Dockerfile (ENV)",
    "executorImageUri": "Slipway builds the training image when the run starts (docs/vertex-reference.md)",
    "reservationAffinity": "+reservation=NAME in hardware names a reservation",
    "tensorboard": "vertex.experiment sends the metrics to Vertex AI Experiments",
    "metrics[1]": "tune.metric is one metric; the search is for the first",
    "conditionalParameterSpecs": "when, of a parameter of tune.parameters, names the choices with which it is tuned",
    "tpuTopology": "hardware names the topology, such as tpu-v5e-2x4",
}
# The type of AI Platform Training for the values of a parameter.
TYPES = {
    "doubleValueSpec": "DOUBLE",
    "integerValueSpec": "INTEGER",
    "categoricalValueSpec": "CATEGORICAL",
    "discreteValueSpec": "DISCRETE",
}
# The keys that are read of a studySpec and of its parameters.
STUDIED, PARAMETER = {"metrics", "parameters", "algorithm"}, {"parameterId", "scaleType", *TYPES}


def is_custom_job(values: Mapping[str, object]) -> bool:
    """Return whether a body is that of a custom job."""
    return POOLS in values or any(name in values for name in SPECS)


def legacy_of(values: Mapping[str, object]) -> JsonObject:
    """Return the body of a job of AI Platform Training with the same machines and program.

    Raises:
        UserError: It has no worker pools, or they are not mappings.
    """
    spec = {**values, **next((_mapping(values, name) for name in SPECS if name in values), {})}
    pools = spec.get(POOLS)
    pools = [pools] if isinstance(pools, Mapping) else pools
    if not _are_mappings(pools):
        raise UserError(
            f"The job has no {POOLS}.", setting=POOLS, value=str(pools), allowed=ALLOWED, fix=f"add {POOLS}"
        )
    scheduling = _mapping(spec, "scheduling")
    training_input: JsonObject = {"scaleTier": "CUSTOM"}
    for role, pool in zip(ROLES, pools, strict=False):
        training_input |= _of_pool(role, pool)
    training_input |= {
        "region": spec.get("region"),
        "serviceAccount": spec.get("serviceAccount"),
        "network": spec.get("network"),
        "jobDir": _mapping(spec, "baseOutputDirectory").get("outputUriPrefix"),
        "encryptionConfig": {"kmsKeyName": _mapping(values, "encryptionSpec").get("kmsKeyName")},
        "hyperparameters": _study(values),
        "scheduling": {
            "maxRunningTime": scheduling.get("timeout"),
            "maxWaitTime": scheduling.get("maxWaitDuration"),
            "strategy": scheduling.get("strategy"),
            "restartJobOnWorkerRestart": scheduling.get("restartJobOnWorkerRestart"),
        },
    }
    body: JsonObject = {
        "jobId": values.get("displayName"),
        "trainingInput": training_input,
        "labels": values.get("labels") or {},
    }
    return body


def unread(values: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of each value of a custom job that no setting has, and why."""
    study = _mapping(values, "studySpec") if not path else {}
    yield from _unread_of_study(study)
    for key, value in values.items():
        name = f"{path}{key}"
        if key in WHOLE or (not path and key in ANSWERS) or value in (None, "", {}, []):
            continue
        if key not in READ:
            yield name, UNREAD.get(key, "no setting has it")
            continue
        parts = dict(enumerate(value)) if isinstance(value, list) else {None: value}
        for number, part in parts.items():
            if isinstance(part, Mapping):
                yield from unread(part, f"{name}." if number is None else f"{name}[{number}].")


def _unread_of_study(study: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    metrics, parameters = study.get("metrics"), study.get("parameters")
    if isinstance(metrics, list) and len(metrics) > 1:
        yield "studySpec.metrics[1]", UNREAD["metrics[1]"]
    of_study = [("studySpec.", key) for key in study if key not in STUDIED and not key.endswith("StoppingSpec")]
    of_parameters = [
        (f"studySpec.parameters[{number}].", key)
        for number, parameter in enumerate(parameters if isinstance(parameters, list) else [])
        for key in (parameter if isinstance(parameter, Mapping) else ())
        if key not in PARAMETER
    ]
    for path, key in (*of_study, *of_parameters):
        yield f"{path}{key}", UNREAD.get(key, "no setting has it")


def _study(values: Mapping[str, object]) -> JsonObject:
    """Return the hyperparameters of AI Platform Training for a tuning job; an empty mapping for a custom job."""
    if not (study := _mapping(values, "studySpec")):
        return {}
    metrics, parameters = study.get("metrics"), study.get("parameters")
    if not _are_mappings(metrics) or not _are_mappings(parameters):
        raise UserError(
            "studySpec has no metrics or no parameters.",
            setting="studySpec",
            allowed="metrics, a list with metricId and goal; parameters, a list with parameterId and a value spec",
            fix="add them to studySpec",
        )
    stopping = any(key.endswith("StoppingSpec") for key in study)
    return {
        "goal": metrics[0].get("goal"),
        "hyperparameterMetricTag": metrics[0].get("metricId"),
        "maxTrials": values.get("maxTrialCount"),
        "maxParallelTrials": values.get("parallelTrialCount"),
        "maxFailedTrials": values.get("maxFailedTrialCount"),
        "enableTrialEarlyStopping": str(stopping),
        "algorithm": study.get("algorithm"),
        "params": [_parameter(parameter) for parameter in parameters],
    }


def _parameter(values: Mapping[str, object]) -> JsonObject:
    parameter: JsonObject = {"parameterName": values.get("parameterId"), "scaleType": values.get("scaleType")}
    if spec := next((name for name in TYPES if name in values), None):
        value_spec = _mapping(values, spec)
        parameter |= {"type": TYPES[spec], "categoricalValues": value_spec.get("values")}  # DISCRETE, too
        parameter |= {key: value_spec.get(key) for key in ("minValue", "maxValue")}
    return parameter


def _of_pool(role: str, pool: Mapping[str, object]) -> JsonObject:
    machine, container = _mapping(pool, "machineSpec"), _mapping(pool, "containerSpec")
    package, disk = _mapping(pool, "pythonPackageSpec"), _mapping(pool, "diskSpec")
    accelerator = {"type": machine.get("acceleratorType"), "count": machine.get("acceleratorCount")}
    config = {
        "acceleratorConfig": accelerator,
        "diskConfig": {key: disk.get(key) for key in ("bootDiskType", "bootDiskSizeGb")},
        "imageUri": container.get("imageUri"),
        "containerCommand": container.get("command"),
        "containerArgs": container.get("args"),
    }
    count = str(pool.get("replicaCount") or 1)
    if not count.isdecimal():
        setting = f"{POOLS}.replicaCount"
        raise UserError(f"{setting} is not a whole number.", setting=setting, value=count, fix="correct replicaCount")
    replica: JsonObject = {f"{role}Type": machine.get("machineType"), f"{role}Config": config}
    if role != "master":
        replica[f"{role}Count"] = count
    elif package:
        replica |= {key: package.get(key) for key in ("packageUris", "pythonModule", "args")}
    if role == "master" and count != "1":  # such as of a job whose replicas are all in the first pool
        more = {f"worker{key.removeprefix(role)}": value for key, value in replica.items() if key.startswith(role)}
        replica |= {**more, "workerCount": str(int(count) - 1)}
    return replica


def _are_mappings(values: object) -> TypeGuard[list[JsonObject]]:
    """Return whether a value is a list of mappings that is not empty."""
    return isinstance(values, list) and bool(values) and all(isinstance(value, Mapping) for value in values)


def _mapping(values: Mapping[str, object], key: str) -> JsonObject:
    value = values.get(key) or {}
    if not isinstance(value, Mapping):
        message = f"{key} is not a mapping."
        raise UserError(message, setting=key, value=str(value), allowed="a mapping", fix=f"correct {key}")
    return dict(value)
