"""Parse `gcloud ai-platform jobs submit training` flags into a job."""

from __future__ import annotations

from pathlib import Path

from slipway.core.errors import UserError
from slipway.pipelines.migrate.job import FIELDS, parse_text, read_file

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


def read_flags(arguments: list[str]) -> tuple[dict[str, object], dict[str, str]]:
    """Return the job described by the flags, and the flags that only gcloud used (bucket, package path, project).

    Args:
        arguments: The command line, with or without the leading "gcloud ai-platform jobs submit training"; arguments
            after `--` belong to the user's program.

    Raises:
        UserError: A flag is unknown or has no value, or the --config file cannot be read.
    """
    split = arguments.index("--") if "--" in arguments else len(arguments)
    own, program = list(arguments[:split]), list(arguments[split + 1 :])
    while own and own[0] in COMMAND:
        own.pop(0)
    flags, switches, positional = _collect(own)
    job, given = _configuration(flags.get("--config"))
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
        values = dict(parse_text(read_file(Path(path), "--config", "--config config.yaml"), path))
    if "trainingInput" not in values and "jobId" not in values:
        labels = {"labels": values.pop("labels")} if "labels" in values else {}
        values = {"trainingInput": values, **labels}
    given = values.get("trainingInput") or {}
    if not isinstance(given, dict):
        raise UserError(f"trainingInput in {path} is not a mapping.", setting="trainingInput", value=str(given))
    return {**values, "trainingInput": given}, given


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
