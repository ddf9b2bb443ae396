"""Explanations of refused and failed builds of Cloud Build: which account lacks what, and the command that fixes it."""

from __future__ import annotations

from collections.abc import Callable

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.policies import (
    ACCOUNT_DOMAIN,
    DEFAULT_ACCOUNT_DOMAIN,
    Resource,
    account_name,
    grant_command,
)
from slipway.components.cloud.refusals import is_absent, is_answer, is_disabled, member_of, message_of, refusal
from slipway.components.cloud.retries import retried, status_of
from slipway.components.step import WorkFailed
from slipway.core.errors import UserError
from slipway.core.image_reference import ImageReference
from slipway.core.values import JsonObject

# The regions in which restricted projects may run builds.
# https://cloud.google.com/build/docs/locations#restricted_regions_for_some_projects
OPEN_REGIONS = ("us-central1", "us-west2", "europe-west1", "asia-east1", "australia-southeast1", "southamerica-east1")
# Reported wordings: "due to quota restrictions, cannot run builds in this region, see …", the same with "Cloud Build
# cannot", and for a region in which the project has no quota at all the second one.
CLOSED_REGION = ("cannot run builds in this region", "no concurrent builds quota available")
LEGACY_DOMAIN = "@cloudbuild.gserviceaccount.com"


def account_setting(section: str) -> str:
    """Return the setting with the account that builds run as."""
    return f"{section}.build.service_account"


def is_closed_region(error: BaseException) -> bool:
    """Return whether the project may not run builds in the region."""
    return status_of(error) == 400 and any(words in message_of(error) for words in CLOSED_REGION)


def refused(error: BaseException, connection: Connection, location: str, account: Callable[[], str]) -> UserError:
    """Explain why Cloud Build did not accept a build.

    Args:
        error: The exception of the client.
        connection: The connection of the call.
        location: The region of the build, or global.
        account: Returns the e-mail of the account that the build would run as, "" if there is none.
    """
    project, text = connection.project, message_of(error)
    if is_closed_region(error):
        return UserError(
            f"Google allows builds of the project {project} only in certain regions, and {location} is not one of "
            "them.",
            setting=f"{connection.section}.build.region",
            value=location,
            allowed=", ".join(("global", *OPEN_REGIONS)),
            fix=f"--set {connection.section}.build.region=global",
        )
    if is_disabled(error) or status_of(error) not in (400, 403):
        return refusal(error, connection, f"start builds in {location}")
    problem = _account_problem(connection, account, may_act="act as service account" not in text)
    if problem is not None:
        return problem
    return refusal(error, connection, f"start builds in {location}", "cloudbuild.builds.create")


def _account_problem(connection: Connection, account: Callable[[], str], *, may_act: bool) -> UserError | None:
    """Return what is wrong with the account of builds, which the service's refusal names by its number only."""
    project, setting = connection.project, account_setting(connection.section)
    setup = f"slipway setup --target {connection.section} --apply"
    set_account = f"--set {setting}=slipway-builder@{project}{ACCOUNT_DOMAIN}, which {setup} creates"
    try:
        email = account()
    except Exception as error:
        if not is_answer(error):
            raise
        action = "get the account that builds run as"
        return None if may_act else refusal(error, connection, action, "cloudbuild.builds.get")
    if not email:
        return UserError(
            f"The project {project} has no default account for builds.", setting=setting, value=None, fix=set_account
        )
    if is_legacy(email):
        return None
    service_account = _described(connection, email)
    if not service_account:
        compute = email.endswith(DEFAULT_ACCOUNT_DOMAIN)
        why = ": the Compute Engine API is off, or the account was deleted" if compute else ""
        enable = f"gcloud services enable compute.googleapis.com --project={project}, or "
        return UserError(
            f"The account {email}, as which builds run, does not exist{why}.",
            setting=setting,
            value=None if compute else email,
            fix=f"{enable}{set_account}"
            if compute
            else f"gcloud iam service-accounts create {email.partition('@')[0]} --project={project}, or {setup}",
        )
    if service_account.get("disabled"):
        fix = f"gcloud iam service-accounts enable {email} --project={project}, or {set_account}"
        return UserError(f"The account {email}, as which builds run, is disabled.", setting=setting, fix=fix)
    if may_act:
        return None
    return UserError(
        f"{connection.caller or 'Your account'} may not start builds that run as {email}: iam.serviceAccounts.actAs is "
        "missing.",
        setting=setting,
        value=email,
        fix=grant_command(Resource("account", email), member_of(connection), "roles/iam.serviceAccountUser", project),
    )


def is_legacy(email: str) -> bool:
    """Return whether an account is Cloud Build's legacy one: Google's, and anyone who may start builds may use it."""
    return email.endswith(LEGACY_DOMAIN)


def _described(connection: Connection, email: str) -> JsonObject:
    """Return the account's resource; empty if it does not exist."""
    accounts = connection.api("iam", "v1").projects().serviceAccounts()
    try:
        return dict(retried(accounts.get(name=account_name(email)).execute))
    except Exception as error:
        if not is_answer(error):
            raise
        # Who may not see it learns nothing about it: it is taken to exist.
        return {} if is_absent(error) else {"email": email}


def failed(build: JsonObject, uri: str, account: Callable[[], str], section: str) -> UserError | WorkFailed:
    """Explain why a build ended without success.

    Args:
        build: The build as the service describes it.
        uri: The image that it should have pushed.
        account: Returns the e-mail of the account that it ran as.
        section: The section of the configuration with the settings of builds.
    """
    info = build.get("failureInfo", {})
    detail = str(build.get("statusDetail") or info.get("detail") or "see the build log")
    sentence = f"Cloud Build {build['id']} ended with {build['status']}: {detail} ({build.get('logUrl', '')})"
    if info.get("type") == "PUSH_NOT_AUTHORIZED" or "artifactregistry.repositories.uploadArtifacts" in detail:
        role, target = "roles/artifactregistry.writer", "the repository"
        resource = Resource("repository", ImageReference.parse(uri).artifact_repository or "")
    elif "storage.objects." in detail:
        resource = Resource("bucket", build["source"]["storageSource"]["bucket"])
        role, target = "roles/storage.objectViewer", str(resource)
    else:
        return WorkFailed(sentence)
    email = account()
    fix = grant_command(resource, f"serviceAccount:{email}", role)
    needs = f"{email} needs {role} on {target}"
    return UserError(sentence, setting=account_setting(section), value=email, allowed=needs, fix=fix)
