"""The hosts of a TPU slice of several machines: JAX tells how many there are, and which of them this process is.

On a TPU VM, JAX finds the other hosts in the TPU's metadata. Where processes on this machine stand in for the hosts
(`slipway.components.train.local_cluster`), it is told by the variables that a TPU VM on GKE has. Multi-host slices have
not been seen on Vertex AI yet; the calls follow https://docs.jax.dev/en/latest/multi_process.html.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Any

import jax

from slipway.core.errors import UserError
from slipway.trainer.distributed import accelerators, rendezvous
from slipway.trainer.distributed.cluster import HOSTS_VARIABLE, SLICE, Cluster, Task, slice_hosts
from slipway.trainer.engines.jax.devices import HEARTBEAT_SECONDS, configure

# Read by JAX itself. With it, the other two say which process this is, as they do on GKE.
_ADDRESS, _HOSTS, _NUMBER = "JAX_COORDINATOR_ADDRESS", "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID"

logger = logging.getLogger(__name__)


def join() -> tuple[Cluster, rendezvous.Watch]:
    """Join the slice's other hosts; return them as a cluster, and a watch over them.

    Raises:
        UserError: JAX does not find the hosts.
    """
    stand_in = bool(os.environ.get(_ADDRESS))
    hosts = slice_hosts(os.environ)
    configure(hosts if stand_in else 1)
    seconds = rendezvous.seconds_to_wait(os.environ)
    logger.info("waiting for the %d hosts of the TPU slice, for at most %g s", hosts, seconds)
    try:
        # Unlike in `devices._join`, JAX's runtime aborts the hosts (SIGABRT) when one is lost or does not come: the
        # service watches only host 0, a host that waits for the others inside the TPU raises no error, and addresses
        # at which hosts could watch each other are not known.
        jax.distributed.initialize(
            **(_stand_in(os.environ) if stand_in else {}),
            initialization_timeout=round(seconds),
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            shutdown_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, RuntimeError) as error:  # neither the metadata nor the variables name the hosts
        raise UserError(
            f"JAX did not find the {hosts} hosts of the TPU slice: {str(error).partition(chr(10))[0]}",
            setting=HOSTS_VARIABLE,
            value=hosts,
            allowed="the number of machines of a TPU slice, on which JAX finds the others",
            fix="check that the hardware is this slice and that the image has jax[tpu]",
        ) from None
    count, rank = jax.process_count(), jax.process_index()
    cluster = Cluster(
        tuple(Task("host", number, "") for number in range(count)),
        rank,
        SLICE,
        accelerators.find(os.environ),
        rank if stand_in else 0,
        count if stand_in else 1,
    )
    return cluster, _SliceWatch()


def _stand_in(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "num_processes": len(environment[_HOSTS].split(",")),
        "process_id": int(environment[_NUMBER]),
        "cluster_detection_method": "deactivate",
    }


class _SliceWatch(rendezvous.Watch):
    """A watch over the other hosts, which JAX's runtime keeps."""

    def __init__(self) -> None:
        super().__init__({})

    def close(self) -> None:
        """Leave together with all hosts: one that loses the first host would be aborted."""
        super().close()
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # another host has failed since
            jax.distributed.shutdown()
