"""A TPU VM's TPU for TensorFlow: found, waited for, initialised.

TensorFlow on a TPU needs the package tensorflow-tpu: the one on PyPI called tensorflow has no TPU kernels. Not run on a
TPU yet; the calls are those of Google's guide for TPU VMs, where the resolver's name for the own machine is "local".
"""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

import tensorflow as tf

from slipway.core.errors import UserError
from slipway.trainer.distributed.accelerators import (
    DEFAULT_TPU_SECONDS,
    TPU_SECONDS_VARIABLE,
    Accelerators,
    wait_for_tpu,
)
from slipway.trainer.distributed.cluster import Cluster

# A libtpu that TensorFlow can load; 0.0.51 has no C API any more.
INSTALL = "pip uninstall -y tensorflow && pip install tensorflow-tpu==2.20.0 libtpu==0.0.15"
# What the runtime says while the TPU is being provisioned, restarted, or still held by another process.
_TEMPORARY = (
    tf.errors.UnavailableError,
    tf.errors.NotFoundError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.AbortedError,
)


def tpu_strategy(cluster: Cluster) -> Any:
    """A TPUStrategy over all cores of this machine's TPU, once it answers.

    Raises:
        UserError: TensorFlow cannot use TPUs here, several replicas would share it, or it does not answer in time.
    """
    refuse_without_support()
    if cluster.replicas > 1:
        raise UserError(
            f"TensorFlow trains on one TPU VM, and the job has {cluster.replicas} replicas.",
            setting="hardware",
            value=f"{cluster.replicas} replicas",
            allowed="one replica, or the engine jax, which trains on several",
            fix="--set train.engine=jax",
        )
    seconds = float(os.environ.get(TPU_SECONDS_VARIABLE) or DEFAULT_TPU_SECONDS)
    return tf.distribute.TPUStrategy(_connected(cluster.accelerators, seconds))


def _connected(accelerators: Accelerators, seconds: float) -> Any:
    """The resolver of an initialised TPU."""

    def connect() -> Any:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return resolver

    return wait_for_tpu(accelerators, connect, _TEMPORARY, seconds)


def refuse_without_support() -> None:
    """Raise UserError where the TensorFlow at hand has no TPU kernels."""
    try:
        importlib.metadata.version("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"This machine has a TPU, and TensorFlow {tf.__version__} cannot use it.",
            setting="train.engine",
            value="tensorflow",
            allowed="tensorflow with the package tensorflow-tpu (TPU v2, v3 and v5e), or jax",
            nearest="jax",
            fix=f"{INSTALL}, or --set train.engine=jax",
        ) from None
