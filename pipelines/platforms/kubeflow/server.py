"""A Kubeflow Pipelines server, accessed through the kfp client."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from slipway.components.cloud.retries import TRANSIENT, retried
from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.platforms.kubeflow.settings import KubeflowSettings
from slipway.pipelines.runs.continuing import UnansweredError

if TYPE_CHECKING:
    from kfp import Client
    from kfp_server_api import ApiException, V2beta1Run

# Credentials of a caller outside the cluster: a bearer token, or the cookie of a login page.
TOKEN_VARIABLE = "SLIPWAY_KUBEFLOW_TOKEN"
COOKIE_VARIABLE = "SLIPWAY_KUBEFLOW_COOKIE"
HEALTH = "/apis/v2beta1/healthz"
HEALTH_SECONDS = 20
CONFLICT = 409
NOT_FOUND = 404
# The error of a server that does not have the final status of tasks, with which exit tasks know the outcome.
NO_FINAL_STATUS = "task final status not supported"
# The error of a server that runs no container as root.
NO_ROOT = "runAsUser=0 (root) is not allowed"
RUN_AS_USER = "--set kubeflow.run_as_user=65534; first give this user the volume, as in docs/kubeflow.md"

Result = TypeVar("Result")


class Server:
    """The configured server. Connects on first use."""

    def __init__(self, settings: KubeflowSettings) -> None:
        self.settings = settings
        self._token = os.environ.get(TOKEN_VARIABLE)
        self._cookie = os.environ.get(COOKIE_VARIABLE)

    @functools.cached_property
    def namespace(self) -> str | None:
        """The profile's namespace on a multi-user server, else None.

        Raises:
            UserError: The server is unreachable or denies access, or is multi-user and no namespace is configured.
        """
        if not self._health().get("multi_user"):
            return None
        if self.settings.namespace is None:
            raise UserError(
                "This Kubeflow Pipelines server is multi-user, and the configuration names no profile.",
                setting="kubeflow.namespace",
                value=None,
                allowed="the namespace of your profile",
                fix="--set kubeflow.namespace=PROFILE",
            )
        return self.settings.namespace

    def check(self) -> None:
        """Raise UserError if the server is unreachable or denies access."""
        _ = self.namespace

    def submit(self, run_id: str, specification: Path, parameters: JsonObject) -> V2beta1Run:
        """Start the run called `run_id`, unless it exists; return it.

        If a response is lost, the retry finds the run by its name, so that no name has two runs.
        """

        def start() -> V2beta1Run:
            experiment = self._client.create_experiment(self.settings.experiment, namespace=self.namespace)
            existing = self._find(run_id, experiment.experiment_id)
            return existing or self._client.run_pipeline(
                experiment_id=experiment.experiment_id,
                job_name=run_id,
                pipeline_package_path=str(specification),
                params=parameters,
                pipeline_root=self.settings.pipeline_root,
                service_account=self.settings.service_account,
            )

        return self._call(start)

    def find(self, run_id: str) -> V2beta1Run | None:
        """Return the run called `run_id`; None if there is none."""

        def search() -> V2beta1Run | None:
            experiment = self._client.create_experiment(self.settings.experiment, namespace=self.namespace)
            return self._find(run_id, experiment.experiment_id)

        return self._call(search)

    def get(self, resource: str) -> V2beta1Run:
        """Return the run with the server's id `resource`."""
        return self._call(lambda: self._client.get_run(resource))

    def terminate(self, resource: str) -> None:
        """Terminate a run."""
        self._call(lambda: self._client.terminate_run(resource))

    def page(self, resource: str) -> str:
        """Return the URL of the run's page in the server's user interface."""
        return f"{self.settings.host.rstrip('/')}/#/runs/details/{resource}"

    def _find(self, run_id: str, experiment_id: str) -> V2beta1Run | None:
        named = {"operation": "EQUALS", "key": "display_name", "stringValue": run_id}
        response = self._client.list_runs(experiment_id=experiment_id, filter=json.dumps({"predicates": [named]}))
        return response.runs[0] if response.runs else None

    @functools.cached_property
    def _client(self) -> Client:
        namespace = self.namespace
        from kfp import Client

        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore", FutureWarning)
            return Client(
                host=self.settings.host,
                namespace=namespace or "kubeflow",
                existing_token=self._token,
                cookies=self._cookie,
                ssl_ca_cert=self.settings.ca_certificate,
            )

    def _call(self, call: Callable[[], Result]) -> Result:
        """Return the result of `call`, with retries and without the URLs that the client prints."""
        from kfp_server_api import ApiException
        from urllib3.exceptions import HTTPError

        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return retried(call, also=_is_transient, service=self.settings.host)
        except ApiException as error:
            raise self._rejection(error) from None
        except HTTPError as error:
            reason = getattr(error, "reason", None) or error
            raise UnansweredError(
                f"The Kubeflow Pipelines server does not respond: {str(reason).rstrip('.')}.",
                setting="kubeflow.host",
                value=self.settings.host,
                fix="try again; kubectl -n kubeflow get pods shows whether the server runs",
            ) from None

    def _rejection(self, error: ApiException) -> UserError:
        if error.status in (401, 403):
            return self._access_denied(error.status)
        sentence = _sentence(error)
        fixes = {
            "the run was deleted on the server; start another: slipway run --target kubeflow": error.status
            == NOT_FOUND,
            # Source: kubeflow/pipelines#11953, in 2.14.0.
            "update the server to Kubeflow Pipelines 2.14, or remove the section notify": NO_FINAL_STATUS in sentence,
            # Source: kubeflow/pipelines#13885, of August 2026.
            RUN_AS_USER: NO_ROOT in sentence,
        }
        return UserError(
            f"The Kubeflow Pipelines server rejected the request: {sentence}.",
            setting="kubeflow.host",
            value=self.settings.host,
            fix=next((fix for fix, applies in fixes.items() if applies), None),
        )

    def _health(self) -> JsonObject:
        """Return the server's health response. Requested here: kfp's client takes half a minute to give up."""
        import requests

        identity = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        identity |= {"Cookie": self._cookie} if self._cookie else {}

        def ask() -> requests.Response:
            try:
                answer = requests.get(
                    f"{self.settings.host.rstrip('/')}{HEALTH}",
                    headers=identity,
                    timeout=HEALTH_SECONDS,
                    allow_redirects=False,
                    verify=self.settings.ca_certificate or True,
                )
            except (requests.ConnectionError, requests.Timeout) as error:
                if _is_unreachable(error):
                    raise self._unreachable(f"it cannot be reached ({type(error).__name__})") from None
                raise
            if answer.status_code in TRANSIENT:
                answer.raise_for_status()
            return answer

        try:
            answer = retried(ask, also=lambda error: isinstance(error, requests.HTTPError), service=self.settings.host)
        except requests.HTTPError as error:
            answer = error.response
            raise UserError(
                f"The gateway before the Kubeflow Pipelines server answers {answer.status_code}: "
                f"{answer.text.strip()[:80].rstrip('.') or answer.reason}.",
                setting="kubeflow.host",
                value=self.settings.host,
                fix="try again; kubectl -n kubeflow get pods shows whether the server runs",
            ) from None
        except requests.RequestException as error:
            raise self._unreachable(f"unexpected response ({error})") from None
        if answer.status_code in (401, 403) or answer.is_redirect:
            raise self._access_denied(answer.status_code)
        try:
            health: JsonObject = answer.json()
        except ValueError:
            raise self._unreachable(f"the response is from something else (HTTP {answer.status_code})") from None
        if answer.status_code != 200 or "error" in health:
            raise self._unreachable(f"the response is from something else (HTTP {answer.status_code})")
        return health

    def _unreachable(self, why: str) -> UserError:
        return UserError(
            f"No Kubeflow Pipelines server at this address: {why}.",
            setting="kubeflow.host",
            value=self.settings.host,
            allowed="the address of the server's user interface or API",
            fix="kubectl -n kubeflow port-forward svc/ml-pipeline-ui 8080:80, and kubeflow.host: http://localhost:8080",
        )

    def _access_denied(self, status: int) -> UserError:
        return UserError(
            f"The Kubeflow Pipelines server denied access (HTTP {status}).",
            setting="kubeflow.host",
            value=self.settings.host,
            allowed=f"a bearer token in {TOKEN_VARIABLE}, or the login page's cookie in {COOKIE_VARIABLE}",
            fix=f"export {TOKEN_VARIABLE}=$(kubectl create token ACCOUNT --audience pipelines.kubeflow.org)",
        )


def _is_unreachable(error: Exception) -> bool:
    """Return whether no trusted server listens there; a broken connection is transient instead."""
    import requests
    import urllib3

    cause = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(error, requests.exceptions.SSLError | requests.exceptions.ConnectTimeout) or isinstance(
        cause, urllib3.exceptions.NewConnectionError
    )


def _is_transient(error: BaseException) -> bool:
    """Return whether a failed call of kfp's client may be retried; after a conflict, the retry finds the run."""
    import urllib3
    from kfp_server_api import ApiException

    if isinstance(error, ApiException):
        return error.status in TRANSIENT or error.status == CONFLICT
    return isinstance(error, urllib3.exceptions.HTTPError)


def _sentence(error: ApiException) -> str:
    try:
        body = json.loads(error.body)
        text = str(body.get("message") or body.get("error") or error.reason)
    except (TypeError, ValueError):
        text = str(error.reason)
    return text.rstrip(".")
