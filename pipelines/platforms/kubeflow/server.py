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
from typing import Any, TypeVar

from slipway.components.cloud.retries import TRANSIENT, retried
from slipway.core.errors import UserError
from slipway.pipelines.config.kubeflow import KubeflowSettings

# How a caller who is not inside the cluster says who they are: a bearer token, or the cookie of a login page.
TOKEN_VARIABLE = "SLIPWAY_KUBEFLOW_TOKEN"
COOKIE_VARIABLE = "SLIPWAY_KUBEFLOW_COOKIE"
HEALTH = "/apis/v2beta1/healthz"
HEALTH_SECONDS = 20
CONFLICT = 409
NOT_FOUND = 404

Result = TypeVar("Result")


class Server:
    """The server that a configuration names; nothing is asked of it before it is needed."""

    def __init__(self, settings: KubeflowSettings) -> None:
        self.settings = settings
        self._token = os.environ.get(TOKEN_VARIABLE)
        self._cookie = os.environ.get(COOKIE_VARIABLE)

    @functools.cached_property
    def namespace(self) -> str | None:
        """The namespace that calls name: the profile's on a server for several users, none on others.

        Raises:
            UserError: No such server answers, it does not let us in, or it has several users and no profile is named.
        """
        if not self._health().get("multi_user"):
            return None
        if self.settings.namespace is None:
            raise UserError(
                "This Kubeflow Pipelines server has several users, and the configuration does not say which profile.",
                setting="kubeflow.namespace",
                value=None,
                allowed="the namespace of your profile",
                fix="--set kubeflow.namespace=PROFILE",
            )
        return self.settings.namespace

    def check(self) -> None:
        """Raise UserError if the server is unreachable or denies access."""
        _ = self.namespace

    def submit(self, run_id: str, specification: Path, parameters: dict[str, Any]) -> Any:
        """The run called `run_id` (a V2beta1Run), started unless it is there already.

        A call whose answer is lost is found again by the run's name: there is never a second run of one name.
        """

        def start() -> Any:
            experiment = self._client.create_experiment(self.settings.experiment, namespace=self.namespace)
            found = self._find(run_id, experiment.experiment_id)
            return found or self._client.run_pipeline(
                experiment_id=experiment.experiment_id,
                job_name=run_id,
                pipeline_package_path=str(specification),
                params=parameters,
                pipeline_root=self.settings.pipeline_root,
                service_account=self.settings.service_account,
            )

        return self._call(start)

    def find(self, run_id: str) -> Any | None:
        """The run called `run_id`, None where there is none."""

        def look() -> Any | None:
            experiment = self._client.create_experiment(self.settings.experiment, namespace=self.namespace)
            return self._find(run_id, experiment.experiment_id)

        return self._call(look)

    def get(self, resource: str) -> Any:
        """The run with the server's own id `resource` (a V2beta1Run)."""
        return self._call(lambda: self._client.get_run(resource))

    def terminate(self, resource: str) -> None:
        """Terminate a run."""
        self._call(lambda: self._client.terminate_run(resource))

    def page(self, resource: str) -> str:
        """The run's address in the server's user interface."""
        return f"{self.settings.host.rstrip('/')}/#/runs/details/{resource}"

    def _find(self, run_id: str, experiment_id: str) -> Any | None:
        named = {"operation": "EQUALS", "key": "display_name", "stringValue": run_id}
        found = self._client.list_runs(experiment_id=experiment_id, filter=json.dumps({"predicates": [named]}))
        return found.runs[0] if found.runs else None

    @functools.cached_property
    def _client(self) -> Any:
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
        """What `call` gives; the client prints addresses, which are not what a user asked for."""
        from kfp_server_api import ApiException

        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return retried(call, also=_is_transient)
        except ApiException as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Any) -> UserError:
        """The server's own sentence, with what fixes it."""
        if error.status in (401, 403):
            return self._not_let_in(error.status)
        gone = error.status == NOT_FOUND
        return UserError(
            f"The Kubeflow Pipelines server rejected the request: {_sentence(error)}.",
            setting="kubeflow.host",
            value=self.settings.host,
            fix="the run was deleted on the server; start another: slipway run --target kubeflow" if gone else None,
        )

    def _health(self) -> dict[str, Any]:
        """What the server says of itself. Asked here, as kfp's client hides for half a minute that nobody answers."""
        import requests

        def ask() -> Any:
            try:
                answer = requests.get(
                    f"{self.settings.host.rstrip('/')}{HEALTH}",
                    headers=self._identity,
                    timeout=HEALTH_SECONDS,
                    allow_redirects=False,
                    verify=self.settings.ca_certificate or True,
                )
            except (requests.ConnectionError, requests.Timeout) as error:
                if _is_unreachable(error):
                    raise self._no_answer(f"it cannot be reached ({type(error).__name__})") from None
                raise
            if answer.status_code in TRANSIENT:
                answer.raise_for_status()
            return answer

        try:
            answer = retried(ask, also=lambda error: isinstance(error, requests.HTTPError))
        except requests.RequestException as error:
            raise self._no_answer(f"unexpected response ({error})") from None
        if answer.status_code in (401, 403) or answer.is_redirect:
            raise self._not_let_in(answer.status_code)
        try:
            told: dict[str, Any] = answer.json()
        except ValueError:
            raise self._no_answer(f"the response is from something else (HTTP {answer.status_code})") from None
        if answer.status_code != 200 or "error" in told:
            raise self._no_answer(f"the response is from something else (HTTP {answer.status_code})")
        return told

    @property
    def _identity(self) -> dict[str, str]:
        """The headers that say who calls."""
        token = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        return token | ({"Cookie": self._cookie} if self._cookie else {})

    def _no_answer(self, why: str) -> UserError:
        return UserError(
            f"No Kubeflow Pipelines server at this address: {why}.",
            setting="kubeflow.host",
            value=self.settings.host,
            allowed="the address at which the server's user interface or API is reached",
            fix="kubectl -n kubeflow port-forward svc/ml-pipeline-ui 8080:80, and kubeflow.host: http://localhost:8080",
        )

    def _not_let_in(self, status: int) -> UserError:
        return UserError(
            f"The Kubeflow Pipelines server denied access (HTTP {status}).",
            setting="kubeflow.host",
            value=self.settings.host,
            allowed=f"a bearer token in {TOKEN_VARIABLE}, or the login page's cookie in {COOKIE_VARIABLE}",
            fix=f"export {TOKEN_VARIABLE}=$(kubectl create token ACCOUNT --audience pipelines.kubeflow.org)",
        )


def _is_unreachable(error: Exception) -> bool:
    """Whether nobody is there, or nobody whom we trust; a connection that broke is another thing."""
    import requests
    import urllib3

    cause = getattr(error.args[0] if error.args else None, "reason", None)
    return isinstance(error, requests.exceptions.SSLError | requests.exceptions.ConnectTimeout) or isinstance(
        cause, urllib3.exceptions.NewConnectionError
    )


def _is_transient(error: BaseException) -> bool:
    """Whether a failure of kfp's client is worth another try; a name taken in between is: it is found then."""
    import urllib3
    from kfp_server_api import ApiException

    if isinstance(error, ApiException):
        return error.status in TRANSIENT or error.status == CONFLICT
    return isinstance(error, urllib3.exceptions.HTTPError)


def _sentence(error: Any) -> str:
    """What the server said in its answer's body."""
    try:
        body = json.loads(error.body)
        text = str(body.get("message") or body.get("error") or error.reason)
    except (TypeError, ValueError):
        text = str(error.reason)
    return text.rstrip(".")
