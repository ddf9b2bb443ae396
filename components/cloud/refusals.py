"""What a call to Google failed with, as a sentence with its fix."""

from __future__ import annotations

import re

from slipway.components.cloud.connection import LOG_IN, Connection
from slipway.components.cloud.retries import is_transient, status_of
from slipway.core.errors import UserError

# Not a part of an address: of an account's e-mail, say.
PERMISSION = re.compile(r"(?<![\w.@/-])([a-z]+\.[a-zA-Z]+\.[a-zA-Z]+)(?![\w.@-]*\w)")
SERVICE = re.compile(r"\b([a-z]+\.googleapis\.com)")
# The role that has a permission, for those that Slipway needs.
ROLES = {
    "aiplatform.": "roles/aiplatform.user",
    "artifactregistry.repositories.downloadArtifacts": "roles/artifactregistry.reader",
    "artifactregistry.repositories.get": "roles/artifactregistry.reader",
    "artifactregistry.": "roles/artifactregistry.admin",
    "cloudbuild.": "roles/cloudbuild.builds.editor",
    "iam.serviceAccounts.actAs": "roles/iam.serviceAccountUser",
    "iam.serviceAccounts.get": "roles/iam.serviceAccountViewer",
    "iam.": "roles/iam.serviceAccountAdmin",
    "logging.": "roles/logging.viewer",
    "resourcemanager.projects.get": "roles/browser",
    "resourcemanager.": "roles/resourcemanager.projectIamAdmin",
    "serviceusage.quotas.": "roles/serviceusage.serviceUsageViewer",
    "serviceusage.services.get": "roles/serviceusage.serviceUsageViewer",
    "serviceusage.": "roles/serviceusage.serviceUsageAdmin",
    "storage.objects.": "roles/storage.objectUser",
    "storage.": "roles/storage.admin",
}


def is_disabled(error: BaseException) -> bool:
    """Whether the call's API is not enabled in the project, or has been only just now."""
    return status_of(error) == 403 and "has not been used in project" in str(error)


def is_absent(error: BaseException) -> bool:
    """Whether the thing is not there."""
    return status_of(error) == 404


def message_of(error: BaseException) -> str:
    """The service's own words, without the address and the frame of its client."""
    for name in ("reason", "message"):  # googleapiclient's HttpError; google.api_core's exceptions
        text = getattr(error, name, None)
        if isinstance(text, str) and text:
            # google.cloud.storage puts method and address before the words.
            return re.sub(r"^[A-Z]+ https?://\S+: ", "", text).strip().rstrip(".")
    return str(error).strip().rstrip(".") or type(error).__name__


def role_with(permission: str) -> str | None:
    """The role to ask for when a permission is missing."""
    found = [prefix for prefix in ROLES if permission.startswith(prefix)]
    return ROLES[max(found, key=len)] if found else None


def refusal(error: BaseException, connection: Connection, what: str) -> UserError:
    """The error of a call, for a user.

    Args:
        error: What the call raised.
        connection: What it was made through.
        what: What the call was to do: "read the policy of gs://b".
    """
    if isinstance(error, UserError):
        return error
    text = message_of(error)
    if is_disabled(error):
        service = SERVICE.search(text)
        name = service[1] if service else "SERVICE.googleapis.com"
        return UserError(
            f"The API {name} is not enabled in {connection.project}, so Slipway cannot {what}.",
            setting="vertex.project",
            value=connection.project,
            fix=f"slipway setup --apply, or gcloud services enable {name} --project={connection.project}",
        )
    if status_of(error) == 403:
        return _forbidden(text, connection, what)
    if status_of(error) == 401:
        return UserError(f"The credentials for Google Cloud are refused: {text}.", fix=LOG_IN)
    if is_transient(error):
        return UserError(
            f"Google did not let Slipway {what}, though it was tried again and again: {text}.",
            fix="try again in a few minutes; https://status.cloud.google.com says what is known to be broken",
        )
    return UserError(f"Slipway cannot {what}: {text}.", fix="slipway doctor --target vertex")


def member_of(connection: Connection) -> str:
    """The caller as a member of a policy, for a command that someone types."""
    caller = connection.caller
    if not caller:
        return "user:YOU@EXAMPLE.COM"
    return f"serviceAccount:{caller}" if caller.endswith("gserviceaccount.com") else f"user:{caller}"


def _forbidden(text: str, connection: Connection, what: str) -> UserError:
    permission = PERMISSION.search(SERVICE.sub("", text))
    role = role_with(permission[1]) if permission else None
    missing = f": {permission[1]} is missing" if permission else f": {text}"
    return UserError(
        f"{connection.caller or 'The account that you are logged in with'} may not {what}{missing}.",
        setting="vertex.project",
        value=connection.project,
        fix=f"an owner grants it: gcloud projects add-iam-policy-binding {connection.project} "
        f"--member={member_of(connection)} --role={role}"
        if role
        else f"gcloud projects get-iam-policy {connection.project} shows who may what; ask an owner",
    )
