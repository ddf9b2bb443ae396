"""Checks of the Google Cloud project of a run with `--target tpu`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from slipway.components.build_image.refusals import is_legacy
from slipway.components.cloud import policies
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.refusals import is_absent, member_of, refusal, refusing
from slipway.components.cloud.retries import pages, retried, status_of
from slipway.components.cloud.roles import MACHINE_ROLE, roles_with
from slipway.components.cloud.rules import check_bucket_region
from slipway.components.setup_access import desired
from slipway.components.setup_access.access import COMMAND
from slipway.components.setup_access.observed import services
from slipway.components.setup_access.requirements import (
    BUCKET,
    BUILDER,
    BUILDS,
    MACHINES,
    PROJECT,
    SUBMITTER,
    TPU,
    Access,
    roles_for,
)
from slipway.components.setup_access.settings import AccessSettings
from slipway.components.train.tpu.settings import TpuSettings
from slipway.core.errors import UserError
from slipway.core.image_reference import ImageReference
from slipway.core.values import JsonObject
from slipway.pipelines.doctor.configuration import cost
from slipway.pipelines.google.platform import connection_of
from slipway.pipelines.platforms.base import Check, CheckWarning, Context, NotApplicableError
from slipway.pipelines.platforms.tpu.checks import access_settings, request_of, settings_of
from slipway.pipelines.platforms.vertex.doctor.project import limits_by, quota_metrics
from slipway.pipelines.platforms.vertex.doctor.quotas import PAGE as QUOTA_PAGE
from slipway.pipelines.platforms.vertex.doctor.quotas import UNLIMITED
from slipway.pipelines.platforms.vertex.doctor.resources import image_exists, lacking

SERVICE = "tpu.googleapis.com"
SETUP = COMMAND.replace("setup", "setup --target tpu")


def credentials(context: Context) -> str:
    """There are credentials, and Google accepts them."""
    return (_settings(context) and connection_of(context).caller) or "user credentials from gcloud"


def apis(context: Context) -> str:
    """The project exists, and the APIs are enabled."""
    settings = _access(context)
    needed = [api.name for api in desired.apis(settings)]
    number, enabled = services(connection_of(context), needed)
    if enabled is None:
        raise NotApplicableError("you may not see which APIs are enabled")
    if missing := sorted(set(needed) - enabled):
        raise UserError(
            f"Not enabled: {', '.join(missing)}.",
            fix=f"{SETUP}, or gcloud services enable {' '.join(missing)} --project={settings.project}",
        )
    return f"{len(needed)} enabled in {settings.project}, number {number}"


def rights(context: Context) -> str:
    """The caller may create, read and delete TPUs."""
    _require(context, PROJECT, TPU)
    return "may create and delete TPUs"


def account(context: Context) -> str:
    """The account of the TPU's machines exists, and the caller may start machines that run as it."""
    settings = _settings(context)
    email = settings.service_account
    try:
        _require(context, MACHINES)
    except Exception as error:
        if not is_absent(error):
            raise
        raise UserError(
            f"The account {email} does not exist.",
            setting="tpu.service_account",
            value=email,
            fix=SETUP,
        ) from None
    return f"{email}; you may start machines that run as it"


def account_roles(context: Context) -> str:
    """The account of the TPU's machines may delete the TPU, use the bucket and pull the image."""
    email = _settings(context).service_account
    needed = desired.bindings(_access(context), 0, None, MACHINES)
    return _check_roles(context, email, needed)


def builds(context: Context) -> str:
    """If the run builds its image: the caller may start builds, and their account may read the source and push."""
    from slipway.pipelines.images.registry import cloud_build

    settings = _access(context)
    if not settings.builds:
        raise NotApplicableError("Cloud Build builds no image")
    _require(context, PROJECT, BUILDS)
    try:
        email = cloud_build(_settings(context)).service().account()
    except Exception as error:
        if status_of(error) != 403:
            raise
        problem = refusal(error, connection_of(context), "see the account of builds", "cloudbuild.builds.get")
        raise NotApplicableError(problem.message) from None
    if not email or is_legacy(email):
        raise NotApplicableError(f"{email or 'the account of builds'} is not checked")
    _require(context, BUILDER, builder=email)
    return _check_roles(context, email, desired.bindings(settings, 0, email, BUILDER))


def _check_roles(context: Context, email: str, needed: list[desired.Binding]) -> str:
    """Return how many roles an account has.

    Raises:
        CheckWarning: It lacks some.
        NotApplicableError: The caller may not see them.
    """
    connection = connection_of(context)
    try:
        everywhere = policies.read(connection, policies.Resource("project", connection.project))
        missing = [
            binding
            for binding in needed
            if not any(
                policies.holds(policy, role, binding.member)
                for policy in (everywhere, policies.read(connection, binding.resource))
                for role in roles_with(binding.role)
            )
        ]
    except Exception as error:
        if status_of(error) not in (403, 404):
            raise
        raise NotApplicableError(refusal(error, connection, f"see the roles of {email}").message) from None
    if missing:
        names = ", ".join(f"{binding.role} on {binding.resource}" for binding in missing)
        result = " Without it, a TPU cannot delete itself when its launcher is lost."
        if not missing[0].role.endswith(MACHINE_ROLE):
            result = ""
        raise CheckWarning(f"{email} lacks {names}, unless it is inherited or part of another role.{result}", SETUP)
    return f"{email} has {len(needed)} roles"


def bucket(context: Context) -> str:
    """The bucket exists in the region of the zones, and the caller may use it."""
    settings, connection = _settings(context), connection_of(context)
    name = settings.bucket.removeprefix("gs://")
    try:
        storage_bucket = retried(lambda: connection.storage.get_bucket(name))
    except Exception as error:
        if status_of(error) == 403:
            raise NotApplicableError(refusal(error, connection, f"see the bucket {name}").message) from None
        if not is_absent(error):
            raise
        raise UserError(
            f"The bucket {settings.bucket} does not exist.",
            setting="tpu.bucket",
            value=settings.bucket,
            fix=SETUP,
        ) from None
    check_bucket_region(
        settings.bucket,
        str(storage_bucket.location),
        settings.region,
        job="the TPU",
        why="every file that the TPU reads would cross regions, which is slow and costs money",
        setting="tpu.bucket",
    )
    _require(context, BUCKET)
    return f"{settings.bucket} in {settings.region}"


def image(context: Context) -> str:
    """The configured image exists; skipped if it is built."""
    settings = _settings(context)
    setting = "train.image" if context.config.train.image else "tpu.image"
    text = context.config.train.image or settings.image
    if text is None:
        raise NotApplicableError("it is built if the registry does not have it (slipway config build --target tpu)")
    if not image_exists(ImageReference.parse(text), connection_of(context)):
        raise UserError(
            f"There is no image {text}.",
            setting=setting,
            value=text,
            fix=f"--set {setting}=null to let the run build its image",
        )
    return text


def runtime_version(context: Context) -> str:
    """The zones have the TPU's runtime version."""
    settings = _settings(context)
    version = _request(context).runtime_version
    having = [zone for zone in settings.zones if version in set(_versions(connection_of(context), zone))]
    if not having:
        raise UserError(
            f"No zone of {', '.join(settings.zones)} has the runtime version {version}.",
            setting="tpu.zones",
            value=", ".join(settings.zones),
            allowed="zones that have the TPU: https://cloud.google.com/tpu/docs/regions-zones",
            fix="--set tpu.zones=[ZONE] with a bucket in its region",
        )
    return f"{version} in {', '.join(having)}"


def quota(context: Context) -> str:
    """The quota of the TPU's generation is enough in one of the zones."""
    settings, hardware = _settings(context), context.config.training_hardware
    _request(context)
    row = hardware.accelerator_row
    vm = row.tpu_vm if row else None
    if vm is None or vm.quota is None:
        raise NotApplicableError("the name of the quota for this TPU is not known")
    name = (hardware.hosts == 1 and vm.serving_quota) or vm.quota
    metric = f"{SERVICE}/{name}" + ("-preemptible" if hardware.provisioning == "spot" else "")
    listed = quota_metrics(connection_of(context), SERVICE).get(metric)
    if listed is None:
        raise NotApplicableError(f"the project does not list {metric}")
    needed = hardware.chips * vm.quota_per_chip
    limits = [_limit(listed, zone) for zone in settings.zones]
    text = ", ".join(f"{'unlimited' if limit == UNLIMITED else limit} in {place}" for limit, place in limits)
    if not any(limit == UNLIMITED or limit >= needed for limit, _ in limits):
        raise UserError(
            f"The quota is too small: the TPU needs {needed} of {metric}, and the limit is {text}. Requests that "
            "failed or expired count until they are deleted.",
            setting="tpu.zones",
            value=", ".join(settings.zones),
            fix=f"request it at {QUOTA_PAGE.format(project=settings.project)}; slipway runs tpu list",
        )
    return f"{needed} of {name}: {text}"


def _settings(context: Context) -> TpuSettings:
    """Return the section `tpu`; without it, the check of the hardware reports that."""
    try:
        return settings_of(context.config)
    except UserError:
        raise NotApplicableError("the section tpu is missing") from None


def _access(context: Context) -> AccessSettings:
    _settings(context)
    return access_settings(context.config)


def _request(context: Context) -> Any:
    try:
        return request_of(context.config)
    except UserError:
        raise NotApplicableError("the hardware is not a Cloud TPU VM's") from None


def _require(context: Context, place: str, when: str = "", builder: str | None = None) -> None:
    """Check that the caller has the permissions of the roles that a submitter needs on a resource.

    Raises:
        UserError: The caller lacks some.
    """
    access, connection = Access(_access(context), builder=builder), connection_of(context)
    for where, role in itertools.product(access.resources()[place], roles_for(SUBMITTER, place, when)):
        if missing := lacking(connection, where, role):
            raise UserError(
                f"{connection.caller or 'Your account'} lacks {', '.join(missing)} on {where}.",
                fix=policies.grant_command(where, member_of(connection), role, connection.project),
            )


def _versions(connection: Connection, zone: str) -> Iterable[str]:
    versions = connection.api("tpu", "v2").projects().locations().runtimeVersions()
    with refusing(connection, f"list the runtime versions of {zone}", "tpu.runtimeversions.list"):
        for page in pages(versions, parent=f"projects/{connection.project}/locations/{zone}"):
            yield from (runtime["version"] for runtime in page.get("runtimeVersions", ()))


def _limit(metric: JsonObject, zone: str) -> tuple[int, str]:
    """Return the lower one of a metric's limits for a zone and for its region, and which of them it is."""
    candidates = []
    for kind, place in (("zone", zone), ("region", zone.rpartition("-")[0])):
        limits = limits_by(metric, kind)
        if limits is not None:
            candidates.append((limits.get(place, limits.get("", 0)), place))
    return min((candidate for candidate in candidates if candidate[0] != UNLIMITED), default=(UNLIMITED, zone))


CHECKS = (
    Check("cost", cost, of_run=True),
    Check("credentials", credentials, of_run=True, remote=True),
    Check("APIs", apis, of_run=True, remote=True),
    Check("own rights", rights, of_run=True, remote=True),
    Check("machines' account", account, of_run=True, remote=True),
    Check("machines' roles", account_roles, of_run=True, remote=True),
    Check("bucket", bucket, of_run=True, remote=True),
    Check("image", image, of_run=True, remote=True),
    Check("builds", builds, of_run=True, remote=True),
    Check("runtime version", runtime_version, of_run=True, remote=True),
    Check("quota", quota, of_run=True, remote=True),
)
