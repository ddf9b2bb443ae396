"""A real kube-apiserver with its etcd, for the tests that also run against the fake; it has no controllers.

The binaries are those of controller-runtime's envtest, in the folder KUBEBUILDER_ASSETS: kube-apiserver, etcd and
kubectl. The flags follow pkg/internal/testing/controlplane of kubernetes-sigs/controller-runtime.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from slipway.core.parent_death import dying_with_parent
from tests.fakes.certificates import certificates
from tests.fakes.kubernetes.access import ADMIN, account_name
from tests.fakes.kubernetes.server import NAMESPACE, FakeKubernetes, write_kubeconfig
from tests.ports import free_port

# `make test-cluster` sets it.
VARIABLE = "SLIPWAY_TEST_CLUSTER"
ASSETS, BINARIES = "KUBEBUILDER_ASSETS", ("kube-apiserver", "etcd", "kubectl")
# A folder, file or address of the CRDs; Trainer's from GitHub by default, which needs git and a network.
CRDS_VARIABLE = "SLIPWAY_TEST_CRDS"
CRDS = "https://raw.githubusercontent.com/kubeflow/trainer/v2.3.0/manifests/base/crds/trainer.kubeflow.org_{}.yaml"
KINDS = ("trainjobs", "trainingruntimes", "clustertrainingruntimes")
ACCOUNTS = ("default", "pipeline-runner")
START_SECONDS = 60


@functools.cache
def server() -> RealKubernetes:
    """Return this process's API server; skip the test if the machine lacks a binary."""
    folder = os.environ.get(ASSETS, "")
    missing = [name for name in BINARIES if not shutil.which(name, path=folder)]
    if missing:
        pytest.skip(f"There is no real API server: {ASSETS} is no folder with {', '.join(missing)}.")
    return RealKubernetes(Path(folder), Path(tempfile.mkdtemp(prefix="cluster-")))


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[RealKubernetes | FakeKubernetes]:
    """A cluster without nodes: the real API server if it is asked for, else the fake."""
    if os.environ.get(VARIABLE):
        found = server()
        found.clear()
        yield found
        return
    with FakeKubernetes(folder) as fake:
        fake.around.nodes = []
        yield fake


class RealKubernetes:
    """The servers, which end with this process. Users are known by tokens."""

    def __init__(self, binaries: Path, folder: Path) -> None:
        self._binaries, self.folder = binaries, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        atexit.register(self.stop)
        etcd, port = self._start_etcd(), free_port()
        self.host = f"https://localhost:{port}"
        self._start_api_server(etcd, port)
        api = config.new_client_from_config(str(self.kubeconfig()))
        self._core, self._custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._rbac = client.RbacAuthorizationV1Api(api)
        self._wait("kube-apiserver", lambda: api.call_api("/readyz", "GET", auth_settings=["BearerToken"]))
        self._core.create_namespace({"metadata": {"name": NAMESPACE}})
        for account in ACCOUNTS:  # a controller would create the default one
            self._core.create_namespaced_service_account(NAMESPACE, {"metadata": {"name": account}})
        given = os.environ.get(CRDS_VARIABLE)
        files = [given] if given else [CRDS.format(kind) for kind in KINDS]
        arguments = ["apply", "--server-side", *(part for file in files for part in ("-f", file))]
        subprocess.run([binaries / "kubectl", f"--kubeconfig={self.kubeconfig()}", *arguments], check=True)
        for kind in KINDS:
            listing = functools.partial(self._custom.list_cluster_custom_object, "trainer.kubeflow.org", "v1alpha1")
            self._wait("kube-apiserver", functools.partial(listing, kind))
        fields = "/openapi/v3/apis/trainer.kubeflow.org/v1alpha1"
        self._wait("kube-apiserver", lambda: api.call_api(fields, "GET", auth_settings=["BearerToken"]))

    def kubeconfig(self, user: str = ADMIN) -> Path:
        """Return the path of a kubeconfig with a user's token, which is their name."""
        return write_kubeconfig(self.folder, user, self.host, _token(user))

    def clear(self) -> None:
        """Delete what the tests create in the namespace."""
        for kind in KINDS[:2]:
            arguments = ("trainer.kubeflow.org", "v1alpha1", NAMESPACE, kind)
            for one in self._custom.list_namespaced_custom_object(*arguments)["items"]:
                if one["metadata"].get("finalizers"):
                    none = {"metadata": {"finalizers": None}}
                    self._custom.patch_namespaced_custom_object(*arguments, one["metadata"]["name"], none)
            self._custom.delete_collection_namespaced_custom_object(*arguments)
        self._core.delete_collection_namespaced_pod(NAMESPACE, grace_period_seconds=0)
        for claim in self._core.list_namespaced_persistent_volume_claim(NAMESPACE).items:
            none = {"metadata": {"finalizers": None}}  # which a controller would remove
            self._core.patch_namespaced_persistent_volume_claim(claim.metadata.name, NAMESPACE, none)
        self._core.delete_collection_namespaced_persistent_volume_claim(NAMESPACE)
        self._rbac.delete_collection_namespaced_role_binding(NAMESPACE)
        self._rbac.delete_collection_namespaced_role(NAMESPACE)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_etcd(self) -> str:
        address, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._start(
            "etcd",
            **{"data-dir": self.folder / "etcd", "listen-peer-urls": peers},
            **{"listen-client-urls": address, "advertise-client-urls": address},
        )
        self._wait("etcd", lambda: urllib.request.urlopen(f"{address}/health", timeout=5).read())
        return address

    def _start_api_server(self, etcd: str, port: int) -> None:
        key, chain, tokens = (self.folder / name for name in ("server.key", "server.pem", "tokens.csv"))
        key.write_bytes(certificates().key)
        chain.write_bytes(certificates().chain)
        accounts = [account_name(NAMESPACE, account) for account in ACCOUNTS]
        groups = f"system:serviceaccounts,system:serviceaccounts:{NAMESPACE}"
        lines = [f'{_token(user)},{user},{user},"{groups}"' for user in accounts]
        tokens.write_text("\n".join([f'{_token(ADMIN)},{ADMIN},{ADMIN},"system:masters"', *lines]) + "\n")
        self._start(
            "kube-apiserver",
            **{"etcd-servers": etcd, "secure-port": port, "bind-address": "127.0.0.1"},
            **{"tls-cert-file": chain, "tls-private-key-file": key, "cert-dir": self.folder},
            **{"token-auth-file": tokens, "authorization-mode": "RBAC", "allow-privileged": "true"},
            **{"service-cluster-ip-range": "10.0.0.0/24", "service-account-issuer": self.host},
            **{"service-account-key-file": key, "service-account-signing-key-file": key},
            **{"enable-admission-plugins": "OwnerReferencesPermissionEnforcement"},
        )

    def _start(self, name: str, **flags: Any) -> None:
        command = [str(self._binaries / name), *(f"--{flag}={value}" for flag, value in flags.items())]
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(dying_with_parent(command), stdout=log, stderr=log))

    def _wait(self, name: str, call: Callable[[], object]) -> None:
        """Wait until a call of a server succeeds."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                call()
                return
            except Exception as error:
                if time.monotonic() > deadline or any(process.poll() is not None for process in self._processes):
                    said = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"{name} did not start: {error}\n{said}") from None
                time.sleep(0.2)


def _token(user: str) -> str:
    return user.replace(":", "-")
