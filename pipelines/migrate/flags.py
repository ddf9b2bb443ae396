"""`gcloud ai-platform jobs submit training` flags, as the job that they describe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slipway.core.errors import UserError, nearest
from slipway.pipelines.migrate.reading import parse_text

COMMAND = ("gcloud", "alpha", "beta", "ai-platform", "ml-engine", "jobs", "submit", "training")
# Each flag and where its value belongs in the job.
TEXT_FLAGS = {
    "--region": "region",
    "--job-dir": "jobDir",
    "--runtime-version": "runtimeVersion",
    "--python-version": "pythonVersion",
    "--scale-tier": "scaleTier",
    "--module-name": "pythonModule",
    "--service-account": "serviceAccount",
    "--network": "network",
    "--max-running-time": "scheduling.maxRunningTime",
    "--max-wait-time": "scheduling.maxWaitTime",
    "--master-machine-type": "masterType",
    "--master-image-uri": "masterConfig.imageUri",
    "--worker-machine-type": "workerType",
    "--worker-count": "workerCount",
    "--worker-image-uri": "workerConfig.imageUri",
    "--parameter-server-machine-type": "parameterServerType",
    "--parameter-server-count": "parameterServerCount",
    "--parameter-server-image-uri": "parameterServerConfig.imageUri",
    "--tpu-tf-version": "workerConfig.tpuTfVersion",
}
ACCELERATOR_FLAGS = {
    "--master-accelerator": "masterConfig",
    "--worker-accelerator": "workerConfig",
    "--parameter-server-accelerator": "parameterServerConfig",
}
SWITCHES = {"--use-chief-in-tf-config": "useChiefInTfConfig", "--enable-web-access": "enableWebAccess"}
# Said to gcloud, not to the service.
GCLOUD_SWITCHES = ("--stream-logs", "--async", "--quiet", "-q")
GCLOUD_FLAGS = ("--account", "--verbosity", "--format", "--configuration")
KEPT_FLAGS = ("--staging-bucket", "--package-path", "--packages", "--project", "--config", "--labels")
KMS_FLAGS = ("--kms-key", "--kms-keyring", "--kms-location", "--kms-project")
VALUE_FLAGS = (*TEXT_FLAGS, *ACCELERATOR_FLAGS, *KEPT_FLAGS, *KMS_FLAGS, *GCLOUD_FLAGS)


def read_flags(arguments: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The job that the flags describe, and what only gcloud was told (staging bucket, package path, project).

    Args:
        arguments: The command line, with or without "gcloud ai-platform jobs submit training" in front; what comes
            after an argument `--` goes to the user's program.

    Raises:
        UserError: An unknown flag, or one without its value; a --config that cannot be read.
    """
    split = arguments.index("--") if "--" in arguments else len(arguments)
    own, program = list(arguments[:split]), list(arguments[split + 1 :])
    while own and own[0] in COMMAND:
        own.pop(0)
    flags, switches, positional = _collect(own)
    job: dict[str, Any] = _configuration(flags.get("--config"))
    given: dict[str, Any] = job["trainingInput"]
    for flag, path in TEXT_FLAGS.items():
        if flag in flags:
            _put(given, path, flags[flag])
    for flag, path in ACCELERATOR_FLAGS.items():
        if flag in flags:
            _put(given, f"{path}.acceleratorConfig", _pairs(flag, flags[flag]))
    for flag, on in switches.items():
        _put(given, SWITCHES[flag], "true" if on else "false")
    if "--packages" in flags:
        given["packageUris"] = flags["--packages"].split(",")
    if program:
        given["args"] = program
    if "--labels" in flags:
        job["labels"] = _pairs("--labels", flags["--labels"])
    if "--kms-key" in flags:
        _put(given, "encryptionConfig.kmsKeyName", _key_name(flags))
    if len(positional) > 1:
        raise UserError(
            f"{positional[1]} is no flag, and the job is called {positional[0]} already.",
            setting="gcloud",
            value=positional[1],
            allowed="one job id; the program's own arguments behind --",
            fix=f"put -- before {positional[1]}",
        )
    if positional:
        job["jobId"] = positional[0]
    return job, {flag: flags[flag] for flag in ("--staging-bucket", "--package-path", "--project") if flag in flags}


def _collect(arguments: list[str]) -> tuple[dict[str, str], dict[str, bool], list[str]]:
    """The flags with their values, the switches, and what is neither."""
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
            known = [*VALUE_FLAGS, *SWITCHES, *GCLOUD_SWITCHES]
            near = nearest(name, known)
            raise UserError(
                f"gcloud ai-platform jobs submit training had no flag {name}.",
                setting="gcloud",
                value=argument,
                allowed=", ".join(known),
                nearest=near,
                fix=f"write {near}, or put -- before the program's own arguments" if near else f"put -- before {name}",
            )
        else:
            flags[name] = value if equals else next(rest, "")
            if not flags[name]:
                raise UserError(f"{name} is without its value.", setting="gcloud", value=argument, fix=f"{name}=VALUE")
    return flags, switches, positional


def _configuration(path: str | None) -> dict[str, Any]:
    """The job in the file that --config names, with `trainingInput` around it; empty without one."""
    if path is None:
        return {"trainingInput": {}}
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(
            f"There is no file {path}.", setting="--config", value=path, fix="give --config an existing file"
        )
    try:
        text = file.read_text()
    except UnicodeDecodeError:
        raise UserError(
            f"{path} is not text in UTF-8.", setting="--config", value=path, fix="give a YAML file"
        ) from None
    job = dict(parse_text(text, path))
    if "trainingInput" not in job and "jobId" not in job:
        labels = {"labels": job.pop("labels")} if "labels" in job else {}
        job = {"trainingInput": job, **labels}
    given = job.get("trainingInput") or {}
    if not isinstance(given, dict):
        raise UserError(f"trainingInput in {path} holds no settings.", setting="trainingInput", value=str(given))
    return {**job, "trainingInput": given}


def _put(target: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted key; a flag wins over the file."""
    *parents, last = path.split(".")
    for parent in parents:
        child = target.get(parent)
        target[parent] = target = dict(child) if isinstance(child, dict) else {}
    target[last] = value


def _pairs(flag: str, text: str) -> dict[str, str]:
    """ "count=4,type=nvidia-tesla-t4" as a mapping."""
    pairs = [pair.partition("=") for pair in text.split(",")]
    if not all(equals and key for key, equals, _ in pairs):
        raise UserError(
            f"{flag} takes key=value pairs.",
            setting=flag,
            value=text,
            allowed="key=value,key=value",
            fix=f"correct {flag}",
        )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _key_name(flags: dict[str, str]) -> str:
    """The encryption key's full name, from one flag or from four."""
    key = flags["--kms-key"]
    if "/" in key:
        return key
    project, location, ring = (flags.get(f"--kms-{part}", part.upper()) for part in ("project", "location", "keyring"))
    return f"projects/{project}/locations/{location}/keyRings/{ring}/cryptoKeys/{key}"
