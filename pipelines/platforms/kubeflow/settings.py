"""Settings for runs on a Kubeflow cluster."""

from __future__ import annotations

import posixpath
import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from slipway.components.cloud.settings import PinnedImage
from slipway.core.errors import UserError
from slipway.pipelines.config.kubernetes import (
    DNS_LABEL,
    LABEL_VALUE,
    RESOURCE,
    WORDS,
    Cpu,
    DnsLabel,
    LabelKey,
    LabelName,
    LabelValue,
    Memory,
    OptionalLabelKey,
    Subdomain,
)
from slipway.pipelines.config.resources import StepResources, check_steps
from slipway.trainer.settings import Settings

SHARED_MEMORY, SHARED_MEMORY_PATH = "slipway-shm", "/dev/shm"
# Volumes that the pods have besides the claim, with their mount paths. Sources: addContainerExecutorTemplate in
# backend/src/v2/compiler/argocompiler/container.go of kubeflow/pipelines; those of Argo Workflows, which runs them.
POD_VOLUMES = {
    "kfp-launcher": "/kfp-launcher",
    "gcs-scratch": "/gcs",
    "s3-scratch": "/s3",
    "minio-scratch": "/minio",
    "dot-local-scratch": "/.local",
    "dot-cache-scratch": "/.cache",
    "dot-config-scratch": "/.config",
    "var-run-argo": "/var/run/argo",
    "tmp-dir-argo": "",  # not in the step's container
    SHARED_MEMORY: SHARED_MEMORY_PATH,
}
MAX_USER = 2**31 - 1


class Toleration(Settings):
    """A taint of the cluster's nodes that the training pod tolerates, as in a Kubernetes pod spec."""

    key: OptionalLabelKey = Field(default="", description="The taint's key; empty: every taint, with operator Exists.")
    operator: Literal["Equal", "Exists"] = Field(
        default="Equal", description="Equal compares `value` with the taint's; Exists accepts any value."
    )
    value: str = Field(default="", pattern=LABEL_VALUE, description="The taint's value; empty with operator Exists.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute", ""] = Field(
        default="", description="The taint's effect; empty: any."
    )
    tolerationSeconds: int | None = Field(  # noqa: N815 (as in a pod spec)
        default=None, description="How long a pod stays on a node that gets the taint; null: for ever."
    )

    @model_validator(mode="after")
    def _as_kubernetes_accepts(self) -> Toleration:
        # Source: the rules of ValidateTolerations in Kubernetes' API server, described at
        # https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
        if self.operator == "Exists" and self.value:
            raise ValueError("a toleration with operator Exists has no value")
        if self.operator == "Equal" and not self.key:
            raise ValueError("a toleration without a key needs operator Exists")
        if self.tolerationSeconds is not None and self.effect != "NoExecute":
            raise ValueError("a toleration with tolerationSeconds needs the effect NoExecute")
        return self


class KubeflowSettings(Settings):
    """Settings for runs on a Kubeflow cluster.

    Data sets, checkpoints, models and the registry are stored in one of two ways. With `volume`, every step mounts a
    PersistentVolumeClaim. Without it, data and model are artifacts of the run below `pipeline_root`: Kubeflow Pipelines
    copies them into and out of each step, checkpoints are lost with their pod, and no model is registered.
    """

    host: str = Field(
        pattern=r"^https?://[^/\s]+(/\S*)?$", description="Address of the Kubeflow Pipelines server, http(s)://…"
    )
    namespace: DnsLabel | None = Field(
        default=None,
        description="The profile's namespace, required on a multi-user server; on other servers, the namespace of "
        "the pods (null: the server's default).",
    )
    context: str | None = Field(
        default=None,
        min_length=1,
        description="Context of your kubeconfig for this cluster, with which `slipway setup`, the doctor and, if it "
        "is set, `slipway run` use the Kubernetes API. null: the current context.",
    )
    image: PinnedImage = Field(
        min_length=1,
        description="Container image of the steps and the trainer, by digest or by an immutable tag.",
    )
    experiment: str = Field(default="slipway", min_length=1, description="Kubeflow experiment that lists the run.")
    service_account: Subdomain | None = Field(
        default=None, description="Service account of the pods; null: the server's default."
    )
    volume: str | None = Field(
        default=None,
        json_schema_extra={"pattern": DNS_LABEL},
        description="PersistentVolumeClaim in the namespace, which every step mounts at `folder`; ReadWriteMany if "
        "steps may run on several nodes. null: artifacts below `pipeline_root`; no model is registered.",
    )
    run_as_user: int | None = Field(
        default=0,
        ge=0,
        le=MAX_USER,
        description="User id of the steps' containers; null: the image's user. A new claim is usually writable only "
        "for root, 0, which servers since kubeflow/pipelines#13885 refuse; those before #12832 ignore the setting.",
    )
    folder: str = Field(default="/mnt/slipway", pattern=r"^/[^\s:]+$", description="Path at which `volume` is mounted.")
    pipeline_root: str | None = Field(
        default=None,
        pattern=r"^(gs|s3|minio)://[a-z0-9][a-z0-9._-]+(/[^\s?]*)?$",
        description="URI (gs://, s3:// or minio://) in an object store that the server has credentials for. Required "
        "without `volume`; with it, only reports and metrics are stored here. null: the server's default.",
    )
    cpu: Cpu | None = Field(
        default=None,
        description="CPU limit of each working step, a Kubernetes quantity such as 4 or 500m; null: none.",
    )
    memory: Memory | None = Field(
        default=None,
        description="Memory limit of each working step, a Kubernetes quantity such as 16Gi; null: none.",
    )
    steps: dict[str, StepResources] = Field(
        default_factory=dict,
        description="CPU and memory limits by the step's name, in place of `cpu` and `memory`. A step uses the disk of "
        "its node, because Kubeflow Pipelines cannot request ephemeral storage.",
    )
    accelerator: str = Field(
        default="nvidia.com/gpu",
        pattern=RESOURCE,
        description="Resource name of the cluster's GPUs.",
    )
    gpu_labels: Literal["gke", "nvidia"] | None = Field(
        default=None,
        description="Labels by which nodes with the kind of GPU in `hardware` are selected: GKE's "
        "(cloud.google.com/gke-accelerator), or those of NVIDIA's GPU feature discovery (nvidia.com/gpu.product). "
        "null: none; then `node_selector` selects the kind, or `hardware` is any GPU (gpu, gpux2).",
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict,
        description="Labels of the training nodes; they replace labels of the same name that `hardware` implies.",
    )
    tolerations: list[Toleration] = Field(
        default_factory=list, description="Taints of the training nodes that the training pod tolerates."
    )
    queue: LabelName | None = Field(
        default=None,
        description="Kueue's LocalQueue in the namespace, which admits the training; null: none.",
    )
    priority_class: LabelName | None = Field(
        default=None,
        description="Priority of the training: with `queue` a WorkloadPriorityClass of Kueue, otherwise the "
        "PriorityClass of the training pods. null: the cluster's default.",
    )
    image_pull_secrets: list[Subdomain] = Field(
        default_factory=list, description="Secrets in the namespace with the credentials of the image's registry."
    )
    secret: Subdomain | None = Field(
        default=None,
        description="Secret in the namespace whose key NAME is the value of the environment variable NAME of "
        "`notify.webhook: env:NAME`.",
    )
    ca_certificate: str | None = Field(
        default=None,
        description="Path of a PEM file with the certificate authority of `host`; null: the system's authorities.",
    )

    @field_validator("steps")
    @classmethod
    def _known_steps(cls, steps: dict[str, StepResources]) -> dict[str, StepResources]:
        check_steps(steps, "kubeflow")
        return steps

    @field_validator("volume")
    @classmethod
    def _names_a_new_volume(cls, claim: str | None) -> str | None:
        problem = None
        if claim in POD_VOLUMES:
            problem = "Every pod of Kubeflow Pipelines already has a volume of this name."
        elif claim is not None and not re.search(DNS_LABEL, claim):
            problem = f"Kubeflow Pipelines names the volume of a pod after the claim, so it {WORDS[DNS_LABEL]}."
        if problem:
            raise UserError(
                problem,
                setting="kubeflow.volume",
                value=claim,
                fix="bind the volume to a claim of another name, and --set kubeflow.volume=CLAIM",
            )
        return claim

    @field_validator("folder")
    @classmethod
    def _is_a_new_mount_path(cls, folder: str) -> str:
        if posixpath.normpath(folder) in POD_VOLUMES.values():
            raise UserError(
                "The pods already have another volume at this path.",
                setting="kubeflow.folder",
                value=folder,
                fix="--set kubeflow.folder=/mnt/slipway",
            )
        return folder

    @model_validator(mode="after")
    def _has_a_place(self) -> KubeflowSettings:
        if self.volume is None and self.pipeline_root is None:
            raise ValueError(
                "no storage for data and models; set volume, a PersistentVolumeClaim, or pipeline_root, "
                "a gs://, s3:// or minio:// URI"
            )
        return self

    @property
    def registers(self) -> bool:
        """Whether models are registered, which requires persistent storage: a volume."""
        return self.volume is not None

    def place(self, path: str) -> str:
        """Return `path` inside the volume's folder (unchanged if absolute), or "" without a volume."""
        return posixpath.join(self.folder, path) if self.volume else ""
