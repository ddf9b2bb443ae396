"""Lookup of images' digests and environments in container registries."""

from __future__ import annotations

import base64
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Protocol

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.policies import Resource, grant_command
from slipway.components.cloud.refusals import is_disabled, member_of, refusal
from slipway.components.cloud.retries import existing, retried, status_of
from slipway.core.errors import UserError
from slipway.core.image_reference import artifact_repository

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
SECONDS = 30


class Registry(Protocol):
    """A container registry."""

    def digest(self, repository: str, name: str, tag: str) -> str | None:
        """Return the digest ("sha256:…") of repository/name:tag, or None if the image does not exist.

        Raises:
            UserError: The registry cannot be reached or denies access.
        """


class ArtifactRegistry:
    """Google's Artifact Registry, through its API and with the caller's credentials."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._api = connection.api("artifactregistry", "v1").projects().locations().repositories()

    def digest(self, repository: str, name: str, tag: str) -> str | None:
        """See Registry; also raises UserError if the repository does not exist."""
        parent = artifact_repository(repository)
        if parent is None:
            raise UserError(
                f"{repository} is not an Artifact Registry repository.",
                setting="vertex.build.repository",
                value=repository,
                allowed="REGION-docker.pkg.dev/PROJECT/REPOSITORY",
            )
        get = self._api.packages().tags().get(name=f"{parent}/packages/{name}/tags/{tag}")
        try:
            image = existing(get.execute)
            exists = image is not None or existing(self._api.get(name=parent).execute) is not None
        except Exception as error:
            if status_of(error) == 403:
                raise self._no_rights(repository, parent, error) from None
            raise
        if not exists:
            raise UserError(
                f"There is no repository {repository}.",
                setting="vertex.build.repository",
                value=repository.rpartition("/")[2],
                fix="slipway setup --apply",
            )
        return None if image is None else str(image["version"]).rpartition("/")[2]

    def _no_rights(self, repository: str, parent: str, error: Exception) -> UserError:
        if is_disabled(error):
            return refusal(error, self._connection, f"read the images in {repository}")
        resource = Resource("repository", parent)
        return UserError(
            f"Could not read the images in {repository}: {error}",
            setting="vertex.build.repository",
            value=str(resource),
            allowed="a repository on which you have roles/artifactregistry.reader",
            fix=grant_command(resource, member_of(self._connection), "roles/artifactregistry.reader"),
        )


class HttpRegistry:
    """Any other registry, through the OCI distribution API; plain HTTP is used for loopback hosts only.

    `setting` is the name of the setting for its address; `login` a user and password other than those that `docker
    login` stored.
    """

    def __init__(self, setting: str, login: tuple[str, str] | None = None) -> None:
        self._setting, self._login = setting, login

    def digest(self, repository: str, name: str, tag: str) -> str | None:
        """See Registry."""
        answer = self._answer("HEAD", repository, f"{name}/manifests/{tag}")
        return str(answer[0]["Docker-Content-Digest"]) if answer else None

    def configuration(self, repository: str, name: str, version: str) -> dict[str, Any] | None:
        """Return an image's `config` (Env, Entrypoint …), on amd64 if it is for several platforms; None if none exists.

        Raises:
            UserError: The registry cannot be reached or denies access.
        """
        manifest = self._document(repository, f"{name}/manifests/{version}")
        if manifest and "manifests" in manifest:
            entries = manifest["manifests"]
            chosen = [entry for entry in entries if entry.get("platform", {}).get("architecture") == "amd64"]
            manifest = self._document(repository, f"{name}/manifests/{(chosen or entries)[0]['digest']}")
        configuration = manifest and self._document(repository, f"{name}/blobs/{manifest['config']['digest']}")
        return None if configuration is None else dict(configuration.get("config") or {})

    def _document(self, repository: str, path: str) -> dict[str, Any] | None:
        answer = self._answer("GET", repository, path)
        return dict(json.loads(answer[1])) if answer else None

    def _answer(self, method: str, repository: str, path: str) -> tuple[Any, bytes] | None:
        """Return the headers and the body of `path` in a repository; None if it does not exist."""
        host, _, folder = repository.partition("/")
        scheme = "http" if is_loopback(host) else "https"
        address = f"{scheme}://{host}/v2/{'/'.join(part for part in (folder, path) if part)}"
        request = urllib.request.Request(address, method=method, headers={"Accept": ", ".join(MANIFESTS)})
        try:
            with self._open(request, host) as answer:
                return answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise self._unreachable(repository, f"it returned {error.code} {error.reason}") from None
        except (OSError, urllib.error.URLError) as error:
            raise self._unreachable(repository, str(getattr(error, "reason", error))) from None

    def _open(self, request: urllib.request.Request, host: str) -> Any:
        """Send a request; on a 401, authenticate. Where a blob is redirected to, other credentials hold."""
        try:
            return retried(lambda: urllib.request.urlopen(request, timeout=SECONDS))
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code != 401 or not challenge:
                raise
        request.add_unredirected_header("Authorization", _authorization(challenge, self._login or _stored_login(host)))
        return urllib.request.urlopen(request, timeout=SECONDS)

    def _unreachable(self, repository: str, why: str) -> UserError:
        host = repository.partition("/")[0]
        port = host.partition(":")[2] or "80"
        start = f"docker run --detach --publish 127.0.0.1:{port}:5000 docker.io/library/registry:2"
        return UserError(
            f"Could not query the registry {host}: {why}.",
            setting=self._setting,
            value=repository,
            fix=start if is_loopback(host) else f"docker login {host}",
        )


def is_loopback(host: str) -> bool:
    """Return whether a registry's host[:port] is this machine."""
    return host.partition(":")[0] in ("localhost", "127.0.0.1")


def _authorization(challenge: str, login: tuple[str, str] | None) -> str:
    basic = "Basic " + base64.b64encode(":".join(login).encode()).decode() if login else None
    kind, _, parameters = challenge.partition(" ")
    if kind.lower() == "basic":
        return basic or "Basic Og=="
    fields = dict(re.findall(r'(\w+)="([^"]*)"', parameters))
    query = urllib.parse.urlencode({key: fields[key] for key in ("service", "scope") if key in fields})
    request = urllib.request.Request(f"{fields['realm']}?{query}", headers={"Authorization": basic} if basic else {})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        token = json.load(answer)
    return f"Bearer {token.get('token') or token['access_token']}"


def _stored_login(host: str) -> tuple[str, str] | None:
    """Return the user and password stored by `docker login`, including those in credential helpers."""
    try:
        from docker import auth, errors
    except ImportError:
        return None
    try:
        login = auth.load_config().resolve_authconfig(host)
    except errors.DockerException:
        return None
    if not login or ("username" not in login and "Username" not in login):
        return None
    return login.get("username") or login["Username"], login.get("password") or login["Password"]
