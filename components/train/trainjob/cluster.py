"""The Kubernetes API of the cluster on which the step train runs: TrainJobs, their pods, logs and events."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from slipway.components.cloud.retries import CONFLICT
from slipway.components.train.trainjob.manifest import CONTAINER, GROUP, JOBSET_LABEL, VERSION, Owner
from slipway.components.train.trainjob.retries import DENIED, Retries, kind_of, sentence
from slipway.core.errors import UserError
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from kubernetes.client import ApiException, CoreV1Event, V1Pod
    from urllib3.exceptions import HTTPError

KUBECONFIG = "KUBECONFIG"
# Set by Kubeflow Pipelines on every pod of a pipeline (backend/src/v2/compiler/argocompiler/container.go).
POD_NAME_VARIABLE, POD_UID_VARIABLE = "KFP_POD_NAME", "KFP_POD_UID"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# Seconds for connecting and for each part of a response.
CALL_SECONDS = (10, 60)
# A connection that follows a log is renewed when the pod has written nothing for this long.
LOG_SECONDS = (10, 300)
NOT_FOUND = 404
PLURALS = {"TrainJob": "trainjobs", "TrainingRuntime": "trainingruntimes"}
# https://www.kubeflow.org/docs/components/trainer/operator-guides/installation/
INSTALL = (
    'kubectl apply --server-side -k "https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"'
)
SETUP = "slipway setup --target kubeflow --apply"

Result = TypeVar("Result")


class Cluster:
    """One namespace of a cluster.

    Args:
        namespace: None for the namespace of this process's pod, or of the kubeconfig's context.
        context: The context of the kubeconfig; None for the current one, or the pod's own cluster.
        fix: What to do about missing rights.
        retries: None for those of a first call.
    """

    def __init__(
        self,
        namespace: str | None = None,
        *,
        context: str | None = None,
        fix: str = SETUP,
        retries: Retries | None = None,
    ) -> None:
        from kubernetes import client

        self.retries = retries or Retries()
        self.api, default_namespace = _connect(context)
        self._fix = fix
        self.namespace = namespace or default_namespace
        self.core = client.CoreV1Api(self.api)
        self._objects = client.CustomObjectsApi(self.api)

    def check_operator(self) -> None:
        """Raise UserError if Kubeflow Trainer is not installed, or denies access."""
        self.call(
            "read the API of Kubeflow Trainer",
            lambda: self._objects.get_api_resources(GROUP, VERSION, _request_timeout=CALL_SECONDS),
        )

    def create(self, body: JsonObject) -> bool:
        """Create a TrainJob or TrainingRuntime; return whether it did not exist."""
        kind, name = body["kind"], body["metadata"]["name"]
        call = self._custom(self._objects.create_namespaced_custom_object, kind, body, field_validation="Strict")
        return self.found(f"create the {kind} {name}", call, but=CONFLICT) is not None

    def get(self, kind: str, name: str) -> JsonObject | None:
        """Return a TrainJob or TrainingRuntime; None if there is none."""
        call = self._custom(self._objects.get_namespaced_custom_object, kind, name)
        return self.found(f"read the {kind} {name}", call)

    def delete(self, kind: str, name: str) -> None:
        """Request the deletion of a TrainJob or TrainingRuntime, and of what the operator made of it."""
        method = self._objects.delete_namespaced_custom_object
        self.found(f"delete the {kind} {name}", self._custom(method, kind, name, propagation_policy="Background"))

    def _custom(self, method: Callable[..., Any], kind: str, *arguments: object, **options: object) -> partial[Any]:
        """Return the call of a method for the custom objects of a kind."""
        resource = (GROUP, VERSION, self.namespace, PLURALS[kind])
        return partial(method, *resource, *arguments, _request_timeout=CALL_SECONDS, **options)

    def pods(self, name: str) -> list[V1Pod]:
        """Return the pods of a TrainJob, also those that are being deleted."""
        pods: list[V1Pod] = self.call(
            f"list the pods of the TrainJob {name}",
            lambda: self.core.list_namespaced_pod(
                self.namespace, label_selector=f"{JOBSET_LABEL}={name}", _request_timeout=CALL_SECONDS
            ),
        ).items
        return pods

    def event(self, name: str, selector: str) -> str | None:
        """Return the message of the latest event about an object, or about what was made of it; None without one.

        Args:
            name: The object's name, with which the names of those made of it begin.
            selector: A field selector of events.
        """
        events = self.call(
            f"list the events of {name}",
            lambda: self.core.list_namespaced_event(
                self.namespace, field_selector=selector, _request_timeout=CALL_SECONDS
            ),
        ).items
        about = [event for event in events if event.involved_object.name.startswith(name)]
        return max(about, key=_time).message if about else None

    def log_lines(self, pod: str, after: str, *, follow: bool) -> Iterator[tuple[str, str]]:
        """Yield a pod's log lines with their timestamps, those later than the timestamp `after` ("": all).

        With `follow`, until the container or the connection ends.

        Raises:
            ApiException: The pod has no log yet, or no longer exists; or the account lacks the right.
            HTTPError: Of urllib3: the connection broke.
        """
        since = {}
        if after:  # the API has no `sinceTime` in this client; the seconds are rounded, so some lines come again
            passed = datetime.now(UTC) - datetime.fromisoformat(after[:19] + "+00:00")
            since = {"since_seconds": max(1, int(passed.total_seconds()) + 60)}
        response = self.core.read_namespaced_pod_log(
            pod,
            self.namespace,
            container=CONTAINER,
            follow=follow,
            timestamps=True,
            _preload_content=False,
            _request_timeout=LOG_SECONDS,
            **since,
        )
        rest = b""
        try:
            for part in response.stream():
                *lines, rest = (rest + part).split(b"\n")
                yield from _stamped(lines, after)
            yield from _stamped([rest], after)
        finally:
            response.release_conn()

    def call(self, action: str, call: Callable[[], Result]) -> Result:
        """Return the result of `call`, with retries.

        Raises:
            DeniedError: The account lacks the right.
            UserError: The API refused otherwise, or cannot be reached.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            return self.retries(call)
        except (ApiException, HTTPError) as error:
            raise self.refusal(action, error) from error

    def found(self, action: str, call: Callable[[], Result], *, but: int = NOT_FOUND) -> Result | None:
        """Return the result of `call` (see there), None if the response has the status `but`."""
        try:
            return self.call(action, call)
        except UserError as refused:
            error = refused.__cause__
            if getattr(error, "status", None) == but and not isinstance(refused, NotInstalledError):
                return None
            raise

    def refusal(self, action: str, error: ApiException | HTTPError) -> UserError:
        """Return the error that a call failed with, as a UserError."""
        if _is_absent_group(error):
            return NotInstalledError(
                "Kubeflow Trainer is not installed on the cluster: it has no TrainJobs, which train on several "
                "replicas and on TPUs.",
                allowed=f"a cluster with the API {GROUP}/{VERSION}",
                fix=INSTALL,
            )
        if kind_of(error) == DENIED:
            return DeniedError(
                f"The cluster does not allow this account to {action}: {sentence(error)}.", fix=self._fix
            )
        if not getattr(error, "status", None):
            return UserError(
                f"The API of the cluster at {self.api.configuration.host} cannot be reached to {action}: "
                f"{sentence(error)}.",
                fix="kubectl cluster-info",
            )
        return UserError(f"The cluster refused to {action}: {sentence(error)}.")


def own_pod() -> Owner | None:
    """Return the pod that this process runs in; None outside of Kubeflow Pipelines."""
    name, uid = os.environ.get(POD_NAME_VARIABLE), os.environ.get(POD_UID_VARIABLE)
    return Owner(name, uid) if name and uid else None


class NoClusterError(UserError):
    """No cluster is configured."""


class NotInstalledError(UserError):
    """The cluster has no TrainJobs."""


class DeniedError(UserError):
    """The account lacks a right."""


def _connect(context: str | None) -> tuple[Any, str]:
    """Return a client of the API, and the namespace: as the kubeconfig says, else as this pod's service account."""
    from kubernetes import client, config

    configuration = client.Configuration()
    configuration.retries = False  # `Retries` does; urllib3 would warn of each try, and wait as long as the server says
    file = os.environ.get(KUBECONFIG)
    try:
        if file or context or not NAMESPACE_FILE.is_file():
            config.load_kube_config(file, context, client_configuration=configuration)
            contexts, active = config.list_kube_config_contexts(file)
            used = next((entry for entry in contexts if entry["name"] == context), active)
            namespace = used["context"].get("namespace") or "default"
        else:
            config.load_incluster_config(client_configuration=configuration)
            namespace = NAMESPACE_FILE.read_text().strip()
    except config.ConfigException as error:
        raise NoClusterError(
            f"No Kubernetes cluster is configured: {str(error).rstrip('.')}.",
            allowed="a kubeconfig, or a pod with a service account",
            fix=f"kubectl config get-contexts; or export {KUBECONFIG}=PATH",
        ) from None
    return client.ApiClient(configuration), namespace


def _is_absent_group(error: ApiException | HTTPError) -> bool:
    """Return whether the server does not serve the API at all: its response is not the Status of a lost object."""
    if getattr(error, "status", None) != NOT_FOUND:
        return False
    try:
        return json.loads(getattr(error, "body", ""))["kind"] != "Status"
    except (TypeError, ValueError, KeyError):
        return True


def _time(event: CoreV1Event) -> datetime:
    """Return when an event was last seen; newer components, such as the scheduler, only set `event_time`."""
    seen_at: datetime = event.last_timestamp or event.event_time or event.metadata.creation_timestamp
    return seen_at


def _stamped(lines: list[bytes], after: str) -> Iterator[tuple[str, str]]:
    for line in lines:
        stamp, _, text = line.decode(errors="replace").partition(" ")
        if stamp > after:
            yield stamp, text
