"""A cluster for tests: its API on loopback over TLS, and the loop that runs the controllers."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.certificates import certificates
from tests.fakes.errors import Faults
from tests.fakes.http_service import HttpService
from tests.fakes.kubernetes import access, operator
from tests.fakes.kubernetes.access import ADMIN
from tests.fakes.kubernetes.api import Api
from tests.fakes.kubernetes.jobs import JobController
from tests.fakes.kubernetes.nodes import Surroundings, schedule
from tests.fakes.kubernetes.outages import Outages, status_of
from tests.fakes.kubernetes.pods import Kubelets
from tests.fakes.kubernetes.store import CLAIMS, JOBS, NAMESPACES, PODS, RESOURCES, Object, Store

NAMESPACE = "kubeflow"


def write_kubeconfig(folder: Path, user: str, host: str, token: str) -> Path:
    """Write the kubeconfig of a user of a cluster with the tests' certificates; return its path."""
    path = folder / f"{user.replace(':', '-')}.kubeconfig"
    cluster = {"server": host, "certificate-authority": str(certificates().authority_file)}
    context = {"cluster": "fake", "user": "user", "namespace": NAMESPACE}
    configuration = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "fake", "cluster": cluster}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "fake", "context": context}],
        "current-context": "fake",
    }
    path.write_text(yaml.safe_dump(configuration))
    return path


class FakeKubernetes:
    """A cluster; a context manager. Its files are in `folder`.

    `installed` are the operators: trainer, kueue. `queues`: Kueue's queues that have room. `around`: nodes, claims,
    service accounts and priority classes. `faults` and `outages`: errors to inject.
    """

    def __init__(self, folder: Path, seed: int = 0, faults: Faults | None = None) -> None:
        self.folder = folder
        self.installed = {"trainer"}
        self.queues: set[str] = set()
        self.around = Surroundings(folder)
        self.faults = faults or Faults(seed)
        self.store = Store()
        self._steps: set[str] = set()
        self._service = HttpService("kubernetes", self.faults, lambda headers: headers.get("Authorization") or "")
        self._service.error_body = lambda error: status_of(error.status, error.message)
        self.outages = Outages(self._service)
        self.kubelets = Kubelets(self.store, self.around)
        self._api = Api(self._service, self.store, self.kubelets, self.around, self.installed)
        self.problems = self._api.problems
        for name in ("default", NAMESPACE):
            self.store.create(NAMESPACES, "", {"metadata": {"name": name}, "status": {"phase": "Active"}})
        self._jobs = JobController(self.store, self.around)

    def __enter__(self) -> FakeKubernetes:
        port = self._service.start(certificates().server_context)
        self.host = f"https://localhost:{port}"
        self.kubelets.service = {"KUBERNETES_SERVICE_HOST": "localhost", "KUBERNETES_SERVICE_PORT": str(port)}
        self._loop = threading.Thread(target=self._control, daemon=True)
        self._loop.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.store.stop()
        self._loop.join()
        self.kubelets.stop()
        self._service.stop()
        if self.problems:
            raise self.problems[0]

    def add_claim(self, name: str, modes: Sequence[str] = ("ReadWriteMany",)) -> Path:
        """Create a PersistentVolumeClaim; return the folder with its contents."""
        folder = self.folder / f"claim-{name}"
        folder.mkdir()
        self.around.claims[name] = folder
        claim = {"metadata": {"name": name}, "spec": {"accessModes": list(modes)}, "status": {"phase": "Bound"}}
        self.store.create(CLAIMS, NAMESPACE, claim)
        return folder

    def add_step(self, name: str, account: str = "pipeline-runner") -> Object:
        """Create the running pod of a pipeline's step, which a test plays, and return it."""
        container = {"name": "main", "image": "image"}
        specification = {"serviceAccountName": account, "restartPolicy": "Never", "containers": [container]}
        pod = {"metadata": {"name": name}, "spec": specification, "status": {"phase": "Running"}}
        made = self.store.create(PODS, NAMESPACE, pod)
        self._steps.add(made["metadata"]["uid"])
        return made

    def step_environment(self, pod: Object) -> dict[str, str]:
        """Return the variables with which a step's process is the one in the pod."""
        account = pod["spec"]["serviceAccountName"]
        metadata = pod["metadata"]
        return {
            "KUBECONFIG": str(self.kubeconfig(access.account_name(metadata["namespace"], account))),
            "KFP_POD_NAME": metadata["name"],
            "KFP_POD_UID": metadata["uid"],
        }

    def end_step(self, pod: Object, phase: str) -> None:
        """End a step's pod; its object is kept until it is deleted."""
        self.store.change(PODS, pod, lambda it: it["status"].update(phase=phase))

    def delete_pod(self, pod: Object) -> None:
        self.store.delete(PODS, self.pod(pod["metadata"]["name"]))

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """Return the path of a kubeconfig with a user's token; by default, of the cluster's administrator."""
        tokens = self._api.tokens
        token = next((token for token, name in tokens.items() if name == user), secrets.token_hex(16))
        tokens[token] = user
        return write_kubeconfig(self.folder, user, self.host, token)

    def pod(self, name: str) -> Object:
        """Return the pod whose name begins with `name`."""
        return next(pod for pod in self.store.all(PODS) if pod["metadata"]["name"].startswith(name))

    @property
    def absent_fields(self) -> set[str]:
        """The fields that this release of the operator does not have, such as TrainJob.spec.runtimePatches."""
        return self._api.absent_fields

    def left(self) -> list[str]:
        """Return the kinds and names of the objects of TrainJobs."""
        kinds = [*(kind for kind in RESOURCES if kind.installed_by), JOBS, PODS]
        return [
            f"{kind.kind} {one['metadata']['name']}"
            for kind in kinds
            for one in self.store.all(kind)
            if one["metadata"]["uid"] not in self._steps
        ]

    def wait(self, what: Callable[[], Any], seconds: float = 30.0) -> Any:
        """Wait until `what` returns something true, and return it."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if self.problems:
                raise self.problems[0]
            if time.monotonic() > deadline:
                raise TimeoutError(f"Not within {seconds:g} s: {self.describe()}")
            with self.store.changed:
                self.store.changed.wait(0.05)
        return found

    def describe(self) -> str:
        """Return all objects with their status and their pods' output, for a test's message."""
        told = [
            f"{kind.kind} {one['metadata']['name']}: {one.get('status') or one.get('message', '')}"
            for kind in RESOURCES
            for one in self.store.all(kind)
        ]
        return "\n".join([*told, *self.kubelets.outputs()])

    def _control(self) -> None:
        """Run all controllers after each change, and a few times a second."""
        seen = -1
        while not self.store.stopped:
            with self.store.changed:
                if self.store.version == seen:
                    self.store.changed.wait(0.2)
                seen = self.store.version
            try:
                self._reconcile()
            except BaseException as error:
                self.problems.append(error)
                return

    def _reconcile(self) -> None:
        with self.store.lock:
            self.store.collect_garbage()
            if "kueue" in self.installed and "TrainJob.spec.runtimePatches" not in self.absent_fields:
                operator.admit(self.store, self.queues)
            if "trainer" in self.installed:
                operator.reconcile_runtimes(self.store)
                operator.reconcile_train_jobs(self.store)
                operator.reconcile_jobsets(self.store)
            self._jobs.reconcile()
            schedule(self.store, self.around)
            self.kubelets.reconcile()
