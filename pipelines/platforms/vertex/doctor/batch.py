"""Checks of a batch prediction on Vertex AI: its machines, project, model and buckets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from slipway.components.cloud import policies
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import is_absent, member_of, refusal, refusing
from slipway.components.cloud.retries import existing, retried, status_of
from slipway.components.cloud.rules import check_bucket_region
from slipway.components.register_model.registry import CHAMPION
from slipway.components.setup_access.requirements import VERTEX_USER
from slipway.core.errors import UserError, nearest
from slipway.pipelines.checks import examine_in_parallel, refuse
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.platforms.vertex.doctor import CHECKS
from slipway.pipelines.platforms.vertex.endpoints.machines import ServingMachine, machine_of

MAX_REPLICAS = 1000
# The checks of `slipway doctor` that apply to a job which trains nothing.
SHARED = ("credentials", "project", "APIs", "service agents", "run-as account", "encryption key")
PERMISSIONS = (
    *(f"aiplatform.batchPredictionJobs.{verb}" for verb in ("cancel", "create", "get", "list")),
    "aiplatform.models.get",
)


def machine(hardware: str, region: str) -> tuple[ServingMachine, int]:
    """Return the machine of a replica, and the number of replicas, of a choice such as l4x1*2+spot."""
    count = re.search(r"\*(\d+)", hardware)
    replicas = int(count[1]) if count else 1
    if not 1 <= replicas <= MAX_REPLICAS:
        raise UserError(
            f"Replicas must be between 1 and {MAX_REPLICAS:,}; got {replicas:,}.", setting="--hardware", value=hardware
        )
    try:
        serving_machine = machine_of(hardware.replace(count[0], "") if count else hardware)
    except UserError as error:
        near = f"{error.nearest}*{replicas}" if error.nearest and replicas > 1 else error.nearest
        raise UserError(
            error.message,
            setting="--hardware",
            value=hardware,
            allowed=error.allowed,
            nearest=near,
        ) from None
    if serving_machine.regions is not None and region not in serving_machine.regions:
        raise UserError(
            f"{hardware} is not available in {region}.",
            setting="--hardware",
            value=hardware,
            allowed=f"in {', '.join(serving_machine.regions)}",
        )
    return serving_machine, replicas


def check_project(config: RunConfig, connection: Connection) -> None:
    """Make the doctor's checks that apply, and check the caller's rights."""
    shared = [check for check in CHECKS if check.name in SHARED]
    refuse(examine_in_parallel(shared, Context(config, platform_of("vertex"))))
    where = policies.Resource("project", connection.project)
    with refusing(connection, "see your rights"):
        missing = sorted(set(PERMISSIONS) - policies.permitted(connection, where, PERMISSIONS))
    if missing:
        raise UserError(
            f"{connection.caller or 'Your account'} lacks {', '.join(missing)}.",
            setting="vertex.project",
            value=connection.project,
            fix=policies.grant_command(where, member_of(connection), VERTEX_USER),
        )


def version(connection: Connection, model: str) -> Any:
    """Return the version of a model: its champion, NAME/VERSION, NAME@ALIAS, or a resource name."""
    name, _, chosen = model.rpartition("@") if "@" in model else (model, "", "")
    if "/models/" not in name:
        short, _, number = name.partition("/")
        name, chosen = f"{connection.parent}/models/{short}", chosen or number
    with refusing(connection, f"see the model {model}", "aiplatform.models.get"):
        model_version = existing(lambda: connection.models.get_model(name=f"{name}@{chosen or CHAMPION}"))
    if model_version is None:
        raise _no_such_model(connection, model, name)
    return model_version


def _no_such_model(connection: Connection, model: str, name: str) -> UserError:
    known: Sequence[Any] = retried(lambda: list(connection.models.list_models({"parent": connection.parent})))
    names = [known_model.name.rpartition("/")[2].partition("@")[0] for known_model in known]
    short = name.rpartition("/")[2]
    if short not in names:
        near = nearest(short, names)
        return UserError(
            f"There is no model {model} in {connection.project} in {connection.region}.",
            setting="MODEL",
            value=model,
            allowed=f"NAME (its champion), NAME/VERSION or NAME@ALIAS; registered: {', '.join(names) or 'none'}",
            nearest=near,
            fix=f"name {near}" if near else "slipway run --target vertex, which registers a model",
        )
    versions = retried(lambda: list(connection.models.list_model_versions({"name": name})))
    numbers = [f"{short}/{model_version.version_id}" for model_version in versions]
    return UserError.unknown("version", model, numbers, setting="MODEL", fix=f"name {numbers[-1]}")


def check_bucket(connection: Connection, uri: str, option: str) -> None:
    """Check that a bucket exists in the job's region, or in the multi-region around it.

    "Your input and output must also be in the same region or multi-region as your model."
    https://cloud.google.com/vertex-ai/docs/predictions/get-batch-predictions
    """
    if not uri.startswith("gs://"):
        return  # which the check of its format reports
    name = uri.removeprefix("gs://").partition("/")[0]
    try:
        location = retried(lambda: connection.storage.get_bucket(name)).location
    except Exception as error:
        if status_of(error) == 403:
            return  # reading the bucket's location is a right of its own
        if is_absent(error):
            raise UserError(f"There is no bucket {name}.", setting=option, value=uri) from None
        raise refusal(error, connection, f"see the bucket {name}") from error
    check_bucket_region(
        name,
        location,
        connection.region,
        job="the model",
        why="batch predictions read and write in the model's region",
        setting=option,
        around=True,
    )
