"""Parse the flags of `gcloud ai-platform jobs submit training`, or of `gcloud ai custom-jobs create`, into a job."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.migrate.custom_jobs import POOLS
from slipway.pipelines.migrate.job import FIELDS, in_camel_case, parse_text, read_file

COMMAND = ("gcloud", "alpha", "beta", "ai-platform", "ml-engine", "jobs", "submit", "training")
ROLE_FLAGS = {"master": "--master-", "worker": "--worker-", "parameterServer": "--parameter-server-"}
ROLE_FIELDS = {"machine-type": "Type", "image-uri": "Config.imageUri", "count": "Count"}
# Each flag and the dotted job key that it sets.
TEXT_FLAGS = {
    **{row.flag: row.key for row in FIELDS if row.flag and row.kind == "text"},
    **{flag + end: role + key for role, flag in ROLE_FLAGS.items() for end, key in ROLE_FIELDS.items()},
    "--tpu-tf-version": "workerConfig.tpuTfVersion",
}
del TEXT_FLAGS["--master-count"]  # there is one master
ACCELERATOR_FLAGS = {f"{flag}accelerator": f"{role}Config" for role, flag in ROLE_FLAGS.items()}
SWITCHES = {row.flag: row.key for row in FIELDS if row.kind == "switch"}
# Flags for gcloud itself; not sent to the service.
GCLOUD_SWITCHES = ("--stream-logs", "--async", "--quiet", "-q")
GCLOUD_FLAGS = ("--account", "--verbosity", "--format", "--configuration")
KEPT_FLAGS = ("--staging-bucket", "--package-path", "--packages", "--project", "--config", "--labels")
KMS_FLAGS = ("--kms-key", "--kms-keyring", "--kms-location", "--kms-project")
VALUE_FLAGS = (*TEXT_FLAGS, *ACCELERATOR_FLAGS, *KEPT_FLAGS, *KMS_FLAGS, *GCLOUD_FLAGS)

CUSTOM_JOB_COMMANDS = ("custom-jobs", "hp-tuning-jobs")
# Flags of `gcloud ai custom-jobs create`, and the fields of the job that they set.
CUSTOM_JOB_FLAGS = {
    "--display-name": "displayName",
    "--region": "region",
    "--project": "project",
    "--service-account": "serviceAccount",
    "--network": "network",
    "--args": "args",
    "--command": "command",
    "--python-package-uris": "packageUris",
    "--max-trial-count": "maxTrialCount",
    "--parallel-trial-count": "parallelTrialCount",
}
CUSTOM_JOB_SWITCHES = ("--enable-web-access", "--enable-dashboard-access", "--quiet", "-q", "--async")
# Those of them that are the first pool's.
PROGRAM = ("args", "command", "packageUris")
MACHINE = {
    "machineType": "machine-type",
    "acceleratorType": "accelerator-type",
    "acceleratorCount": "accelerator-count",
}
POOL_FLAG = "--worker-pool-spec"


def read_flags(arguments: list[str]) -> tuple[dict[str, object], dict[str, str]]:
    """Return the job described by the flags, and the flags that only gcloud used (bucket, package path, project).

    Args:
        arguments: The command line, with or without the leading "gcloud ai-platform jobs submit training"; arguments
            after `--` belong to the user's program.

    Raises:
        UserError: A flag is unknown or has no value, or the --config file cannot be read.
    """
    split = arguments.index("--") if "--" in arguments else len(arguments)
    gcloud_arguments, program = list(arguments[:split]), list(arguments[split + 1 :])
    while gcloud_arguments and gcloud_arguments[0] in COMMAND:
        gcloud_arguments.pop(0)
    flags, switches, positional = _collect(gcloud_arguments)
    job, training_input = _configuration(flags.get("--config"))
    for flag, path in TEXT_FLAGS.items():
        if flag in flags:
            _put(training_input, path, flags[flag])
    for flag, path in ACCELERATOR_FLAGS.items():
        if flag in flags:
            _put(training_input, f"{path}.acceleratorConfig", _pairs(flag, flags[flag]))
    for flag, on in switches.items():
        _put(training_input, SWITCHES[flag], "true" if on else "false")
    if "--packages" in flags:
        training_input["packageUris"] = flags["--packages"].split(",")
    if program:
        training_input["args"] = program
    if "--labels" in flags:
        job["labels"] = _pairs("--labels", flags["--labels"])
    if "--kms-key" in flags:
        _put(training_input, "encryptionConfig.kmsKeyName", _key_name(flags))
    if len(positional) > 1:
        raise UserError(
            f"Unexpected argument {positional[1]}: the job id is already {positional[0]}.",
            setting="gcloud",
            value=positional[1],
            allowed="one job id; the program's arguments go after --",
            fix=f"put -- before {positional[1]}",
        )
    if positional:
        job["jobId"] = positional[0]
    return job, {flag: flags[flag] for flag in ("--staging-bucket", "--package-path", "--project") if flag in flags}


def _collect(arguments: list[str]) -> tuple[dict[str, str], dict[str, bool], list[str]]:
    flags: dict[str, str] = {}
    switches: dict[str, bool] = {}
    positional: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        positive = name.replace("--no-", "--", 1)
        if not name.startswith("-"):
            positional.append(argument)
        elif positive in GCLOUD_SWITCHES:
            continue
        elif positive in SWITCHES:
            switches[positive] = name == positive and value.lower() != "false"
        elif name not in VALUE_FLAGS:
            raise UserError.unknown(
                "gcloud flag",
                name,
                [*VALUE_FLAGS, *SWITCHES, *GCLOUD_SWITCHES],
                setting="gcloud",
                fix=f"correct {name}, or put -- before the program's arguments",
            )
        else:
            flags[name] = value if equals else next(rest, "")
            if not flags[name]:
                raise UserError(f"{name} requires a value.", setting="gcloud", value=argument, fix=f"{name}=VALUE")
    return flags, switches, positional


def _configuration(path: str | None) -> tuple[dict[str, object], dict[str, object]]:
    """Return the job in the --config file (empty without a file) and its `trainingInput`, which is added if missing."""
    values: dict[str, object] = {}
    if path is not None:
        values = dict(_config_file(path))
    if "trainingInput" not in values and "jobId" not in values:
        labels = {"labels": values.pop("labels")} if "labels" in values else {}
        values = {"trainingInput": values, **labels}
    training_input = values.get("trainingInput") or {}
    if not isinstance(training_input, dict):
        raise UserError(
            f"trainingInput in {path} is not a mapping.", setting="trainingInput", value=str(training_input)
        )
    return {**values, "trainingInput": training_input}, training_input


def _config_file(path: str) -> Mapping[str, object]:
    return parse_text(read_file(Path(path), "--config", "--config config.yaml"), path)


def _put(target: dict[str, object], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        child = target.get(parent)
        section: dict[str, object] = dict(child) if isinstance(child, dict) else {}
        target[parent] = section
        target = section
    target[last] = value


def _pairs(flag: str, text: str) -> dict[str, str]:
    """Parse key=value pairs such as "count=4,type=nvidia-tesla-t4"."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(equals and key for key, equals, _ in pairs):
        raise UserError(
            f"{flag} must be a list of key=value pairs.",
            setting=flag,
            value=text,
            allowed="key=value,key=value",
            fix=f"correct {flag}",
        )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _key_name(flags: dict[str, str]) -> str:
    """Return the encryption key's full resource name, from one flag or from four."""
    key = flags["--kms-key"]
    if "/" in key:
        return key
    project, location, ring = (flags.get(f"--kms-{part}", part.upper()) for part in ("project", "location", "keyring"))
    return f"projects/{project}/locations/{location}/keyRings/{ring}/cryptoKeys/{key}"


def read_custom_job_flags(arguments: Sequence[str]) -> JsonObject:
    """Return the body of the custom job or hyperparameter tuning job that gcloud's flags describe.

    Raises:
        UserError: A flag is unknown, or has no value, or the --config file cannot be read.
    """
    body: JsonObject = {}
    pools: list[JsonObject] = []
    rest = iter(arguments[1 + next(at for at, word in enumerate(arguments) if word in CUSTOM_JOB_COMMANDS) :])
    for argument in rest:
        if argument == "create" or argument in CUSTOM_JOB_SWITCHES:
            continue
        flag, joined, value = argument.partition("=")
        value = value if joined else next(rest, "")
        if flag == POOL_FLAG:
            pools.append(_pool(value))
        elif flag == "--labels":
            body["labels"] = dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair)
        elif flag == "--config":
            body = {**in_camel_case(_config_file(value)), **body}
        elif flag in CUSTOM_JOB_FLAGS:
            body[CUSTOM_JOB_FLAGS[flag]] = value
        else:
            known = [*CUSTOM_JOB_FLAGS, POOL_FLAG, "--labels", "--config"]
            raise UserError.unknown("flag", flag, known, setting="gcloud", fix=f"remove {flag}")
    program = {name: str(body.pop(name)).split(",") for name in PROGRAM if name in body}
    for pool in pools[:1]:
        (pool.get("containerSpec") or pool["pythonPackageSpec"]).update(program)
    return {**body, POOLS: pools} if pools else body


def _pool(text: str) -> JsonObject:
    """Return the pool of `machine-type=…,replica-count=…,container-image-uri=…`."""
    fields = dict(pair.split("=", 1) for pair in re.split(r",(?=[a-z-]+=)", text) if "=" in pair)
    named = {name: value.strip("'\"") for name, value in fields.items()}
    pool: JsonObject = {
        "machineSpec": {key: named.get(name) for key, name in MACHINE.items()},
        "replicaCount": named.get("replica-count", "1"),
    }
    script = named.get("script", "").removesuffix(".py").replace("/", ".")  # of --local-package-path
    if module := named.get("python-module") or script:
        pool["pythonPackageSpec"] = {"pythonModule": module}
    else:
        pool["containerSpec"] = {"imageUri": named.get("container-image-uri")}
    return pool
