"""Wait for and initialize a TPU VM's TPU for TensorFlow.

TensorFlow on a TPU requires the package tensorflow-tpu: PyPI's tensorflow has no TPU kernels. Not tested on a TPU yet;
the calls follow Google's guide for TPU VMs, where the resolver's name for the local machine is "local".
"""

from __future__ import annotations

import importlib.metadata
import os

import tensorflow as tf

from slipway.core.errors import UserError
from slipway.trainer.distributed.accelerators import (
    DEFAULT_TPU_SECONDS,
    TPU_SECONDS_VARIABLE,
    Accelerators,
    wait_for_tpu,
)
from slipway.trainer.distributed.cluster import Cluster

# As in requirements/trainer-tpu.txt: newer libtpu no longer have the C API that TensorFlow loads.
INSTALL = "pip uninstall -y tensorflow && pip install tensorflow-tpu==2.20.0 libtpu==0.0.21.1"
# The runtime's errors while the TPU is being provisioned, restarted, or held by another process.
_TEMPORARY = (
    tf.errors.UnavailableError,
    tf.errors.NotFoundError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.AbortedError,
)


def tpu_strategy(cluster: Cluster) -> tf.distribute.TPUStrategy:
    """Return a TPUStrategy over all cores of this machine's TPU; waits until the TPU responds.

    Raises:
        UserError: TensorFlow has no TPU support, the job has several replicas, or the TPU does not respond in time.
    """
    refuse_without_support()
    if cluster.world_size > 1:
        raise UserError(
            f"The engine tensorflow trains on a single TPU VM; the job has {cluster.world_size} replicas.",
            setting="hardware",
            value=f"{cluster.world_size} replicas",
            allowed="one replica, or several with the engine jax",
            fix="--set train.engine=jax",
        )
    seconds = float(os.environ.get(TPU_SECONDS_VARIABLE) or DEFAULT_TPU_SECONDS)
    return tf.distribute.TPUStrategy(_connected(cluster.accelerators, seconds))


def _connected(accelerators: Accelerators, seconds: float) -> tf.distribute.cluster_resolver.TPUClusterResolver:
    def connect() -> tf.distribute.cluster_resolver.TPUClusterResolver:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return resolver

    return wait_for_tpu(accelerators, connect, _TEMPORARY, seconds)


def refuse_without_support() -> None:
    """Raise UserError if the installed TensorFlow has no TPU kernels."""
    try:
        importlib.metadata.version("tensorflow-tpu")
    except importlib.metadata.PackageNotFoundError:
        raise UserError(
            f"TensorFlow {tf.__version__} as installed cannot use this machine's TPU.",
            setting="train.engine",
            value="tensorflow",
            allowed="tensorflow with the package tensorflow-tpu (TPU v2, v3 and v5e), or jax",
            nearest="jax",
            fix=f"{INSTALL}, or --set train.engine=jax",
        ) from None
