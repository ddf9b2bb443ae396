"""Where a run lives on a Kubeflow cluster."""

from __future__ import annotations

import posixpath

from pydantic import Field, field_validator, model_validator

from slipway.trainer.config import Settings

QUANTITY = r"^[1-9]\d*(\.\d+)?(m|Ki|Mi|Gi|Ti|K|M|G|T)?$"
LABEL_NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"


class KubeflowSettings(Settings):
    """Where a run lives on a Kubeflow cluster.

    `host` is the Kubeflow Pipelines server's address. `namespace` is the profile's on a server for several users, and
    where the pods are looked for elsewhere. `image` is the image that the steps and the trainer run in, by digest or by
    a tag that is never moved.

    What is to stay (data sets, checkpoints, models, the registry) has one of two places. `volume` is a
    PersistentVolumeClaim of the namespace, which every step mounts at `folder`; it must be ReadWriteMany where steps
    may run on several nodes. Without it data and model are the run's artifacts below `pipeline_root`, an object store's
    gs://, s3:// or minio:// URI that the server has the keys of: Kubeflow Pipelines copies them into each step and out
    again, checkpoints do not outlive their pod, and no model is registered. With a volume `pipeline_root` says where
    reports and metrics go.

    `cpu` and `memory` are Kubernetes quantities, the limits of each step that works. `accelerator` is the resource by
    which the cluster hands out GPUs; `node_selector` are the labels of the nodes that train.
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
        tag = image.rpartition("/")[2].partition(":")[2]
        if "@sha256:" not in image and tag in ("", "latest"):
            raise ValueError(
                "an image without a digest or a tag of its own changes under the pipeline's cache, which then skips "
                "the new code; give IMAGE@sha256:… or a tag that is never moved"
            )
        return image

    @model_validator(mode="after")
    def _has_a_place(self) -> KubeflowSettings:
        if self.volume is None and self.pipeline_root is None:
            raise ValueError(
                "nothing says where data and models stay; give volume, a PersistentVolumeClaim, or pipeline_root, "
                "a gs://, s3:// or minio:// URI"
            )
        return self

    @property
    def registers(self) -> bool:
        """Whether models are registered: in a folder that stays, which only a volume is."""
        return self.volume is not None

    def place(self, path: str) -> str:
        """Where `path` lies in the volume's folder, an absolute one where it says; "" where there is no volume."""
        return posixpath.join(self.folder, path) if self.volume else ""
