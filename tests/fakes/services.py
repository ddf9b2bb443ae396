"""All imitated services at once, on loopback ports of this process, for commands in other processes."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from slipway.core.atomic import replace_file
from tests.fakes.errors import Faults

if TYPE_CHECKING:
    from tests.fakes.google import FakeGoogle
    from tests.fakes.huggingface.hub import FakeHub
    from tests.fakes.kubeflow import FakeKubeflow
    from tests.fakes.kubernetes.server import FakeKubernetes
    from tests.fakes.mlflow import FakeMlflow

KINDS = ("google", "huggingface", "kubeflow", "kubernetes", "mlflow")
# The volume, the image and the account of runs on Kubeflow.
CLAIM = "slipway"
KUBEFLOW_IMAGE = f"registry.example.com/slipway/trainer@sha256:{'0' * 64}"


@dataclass
class Services:
    """Google Cloud, Hugging Face, Kubeflow Pipelines, a Kubernetes cluster and MLflow, as far as they are in `kinds`.

    A context manager. `faults` strike all of them. The Google Cloud project is ready for runs; a `bare` one has no
    bucket, accounts and roles. Vertex AI's services, whose imports take seconds, start with their first call.
    """

    folder: Path
    kinds: Collection[str] = KINDS
    bare: bool = False
    faults: Faults = field(default_factory=Faults)
    google: FakeGoogle | None = None
    huggingface: FakeHub | None = None
    kubeflow: FakeKubeflow | None = None
    kubernetes: FakeKubernetes | None = None
    mlflow: FakeMlflow | None = None

    def __enter__(self) -> Services:
        self._stack = contextlib.ExitStack()
        self.folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as starting:
            for kind in self.kinds:
                getattr(self, f"_start_{kind}")(starting)
            self._stack = starting.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.faults.clear()
        self._stack.close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which commands find the services and trust their certificates."""
        found: dict[str, str] = {}
        if self.google is not None:
            found |= self.google.environment
            del found["SLIPWAY_RETRY_SECONDS"]  # users have the default
        if self.huggingface is not None:
            found |= {
                "HF_ENDPOINT": self.huggingface.url,
                "HF_HUB_DISABLE_XET": "1",
                "HF_HUB_DISABLE_TELEMETRY": "1",
            }
        if self.kubernetes is not None:
            found["KUBECONFIG"] = str(self.kubernetes.kubeconfig())
        return found

    @property
    def sections(self) -> dict[str, Any]:
        """The sections of a configuration that name the services."""
        found: dict[str, Any] = {}
        if self.google is not None:
            from tests.fakes.ready import tpu_settings, vertex_settings

            found |= {"vertex": vertex_settings(self.google), "tpu": tpu_settings(self.google)}
        if self.kubeflow is not None:
            found["kubeflow"] = {
                "host": self.kubeflow.host,
                "image": KUBEFLOW_IMAGE,
                "volume": CLAIM,
                "service_account": "pipeline-runner",
            }
        if self.mlflow is not None:
            found["track"] = {"mlflow": self.mlflow.url}
        return found

    def write(self, environment: Mapping[str, str]) -> None:
        """Write the environment as `environment.sh`, and each section as a file of its own, to the folder."""
        for name, section in self.sections.items():
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump({name: section}))
        lines = [f"export {name}={shlex.quote(value)}\n" for name, value in environment.items()]
        replace_file(self.folder / "environment.sh", "".join(lines).encode())

    def _start_google(self, stack: contextlib.ExitStack) -> None:
        from tests.fakes.billing import SERVICE as BILLING
        from tests.fakes.google import COMPUTE_ACCOUNT, PROJECT, FakeGoogle
        from tests.fakes.ready import BUCKET, REPOSITORY, let_build, let_use_tpus, make_ready

        folder = self.folder / "google"
        folder.mkdir(exist_ok=True)
        google = self.google = stack.enter_context(FakeGoogle(folder, faults=self.faults))
        google.vertex.start_on_first_call(lambda: google.region)
        if not self.bare:
            google.world.projects[PROJECT].services.add(BILLING)
            make_ready(google)
            let_build(google, COMPUTE_ACCOUNT, BUCKET, REPOSITORY)
            let_use_tpus(google)

    def _start_huggingface(self, stack: contextlib.ExitStack) -> None:
        from tests.fakes.huggingface.hub import FakeHub

        self.huggingface = stack.enter_context(FakeHub(faults=self.faults))

    def _start_kubeflow(self, stack: contextlib.ExitStack) -> None:
        from tests.fakes.kubeflow import FakeKubeflow

        self.kubeflow = stack.enter_context(FakeKubeflow(faults=self.faults))

    def _start_kubernetes(self, stack: contextlib.ExitStack) -> None:
        from tests.fakes.kubernetes.server import FakeKubernetes

        folder = self.folder / "kubernetes"
        folder.mkdir(exist_ok=True)
        self.kubernetes = stack.enter_context(FakeKubernetes(folder, faults=self.faults))
        self.kubernetes.add_claim(CLAIM)

    def _start_mlflow(self, stack: contextlib.ExitStack) -> None:
        from tests.fakes.mlflow import FakeMlflow

        self.mlflow = stack.enter_context(FakeMlflow(faults=self.faults))
