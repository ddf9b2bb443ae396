"""Settings for runs on a Kubeflow cluster."""

from __future__ import annotations

import posixpath

from pydantic import Field, field_validator, model_validator

from slipway.components.build_image.reference import check_pinned
from slipway.trainer.config import Settings

QUANTITY = r"^[1-9]\d*(\.\d+)?(m|Ki|Mi|Gi|Ti|K|M|G|T)?$"
LABEL_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class KubeflowSettings(Settings):
    """Settings for runs on a Kubeflow cluster.

    `host` is the address of the Kubeflow Pipelines server. `namespace` is the profile's namespace on a multi-user
    server; on other servers it is the namespace of the pods. `image` is the container image of the steps and the
    trainer, by digest or by an immutable tag.

    Data sets, checkpoints, models and the registry are stored in one of two ways. `volume` is a PersistentVolumeClaim
    in the namespace, which every step mounts at `folder`; it must be ReadWriteMany if steps may run on several nodes.
    Without a volume, data and model are artifacts of the run below `pipeline_root`, the gs://, s3:// or minio:// URI of
    an object store that the server has credentials for: Kubeflow Pipelines copies them into and out of each step,
    checkpoints are lost with their pod, and no model is registered. With a volume, `pipeline_root` is where reports and
    metrics are stored.

    `cpu` and `memory` are Kubernetes quantities that limit each working step. `accelerator` is the resource name of the
    cluster's GPUs; `node_selector` holds the labels of the training nodes.
    """

    host: str = Field(pattern=r"^https?://[^/\s]+(/\S*)?$")
    namespace: str | None = Field(default=None, pattern=LABEL_NAME)
    image: str = Field(min_length=1)
    experiment: str = Field(default="slipway", min_length=1)
    service_account: str | None = Field(default=None, pattern=LABEL_NAME)
    volume: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")
    folder: str = Field(default="/mnt/slipway", pattern=r"^/[^\s]+$")
    pipeline_root: str | None = Field(default=None, pattern=r"^(gs|s3|minio)://[a-z0-9][a-z0-9._-]+(/[^\s?]*)?$")
    cpu: str | None = Field(default=None, pattern=QUANTITY)
    memory: str | None = Field(default=None, pattern=QUANTITY)
    accelerator: str = Field(default="nvidia.com/gpu", pattern=r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
    node_selector: dict[str, str] = Field(default_factory=dict)
    ca_certificate: str | None = None

    @field_validator("image")
    @classmethod
    def _pinned(cls, image: str) -> str:
        return check_pinned(image)

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
