"""Where a worker writes: the folders that AIP_MODEL_DIR, AIP_CHECKPOINT_DIR and AIP_TENSORBOARD_LOG_DIR name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slipway.core.errors import UserError


@dataclass(frozen=True)
class Places:
    """The job's folders: `model` is written once, at the end; `checkpoints` and `logs` grow."""

    model: Path
    checkpoints: Path
    logs: Path


# Where a bucket's objects lie in a container: mounted by Vertex AI, copied in and out by Kubeflow Pipelines.
MOUNTS = {"gs://": "/gcs", "s3://": "/s3", "minio://": "/minio"}


def is_remote(uri: str) -> bool:
    """Whether `uri` names something in an object store, not a folder."""
    return uri.startswith(tuple(MOUNTS))


def local_path(uri: str) -> Path:
    """The folder that `uri` names; gs://bucket/object is /gcs/bucket/object in a container, and so are others."""
    for scheme, mount in MOUNTS.items():
        if uri.startswith(scheme):
            return Path(mount) / uri.removeprefix(scheme)
    return Path(uri)


def is_mounted(path: Path) -> bool:
    """Whether `path` lies in a mounted bucket, where a folder is not renamed in one go."""
    return any(path.is_relative_to(mount) for mount in MOUNTS.values())


def places(environment: Mapping[str, str]) -> Places:
    """The folders that the environment names.

    Raises:
        UserError: One is not named.
    """
    names = ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR", "AIP_TENSORBOARD_LOG_DIR")
    missing = [name for name in names if not environment.get(name)]
    if missing:
        raise UserError(
            f"The job has no place for what it makes: {' and '.join(missing)} not set.",
            fix="give the job a base output directory, or set the variables to folders",
        )
    model, checkpoints, logs = (local_path(environment[name]) for name in names)
    return Places(model, checkpoints, logs)
