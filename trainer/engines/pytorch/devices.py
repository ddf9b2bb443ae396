"""This process's PyTorch device, and the job's process group."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from datetime import timedelta

import torch
import torch.distributed as distributed

from slipway.core.cores import available_cores
from slipway.core.errors import UserError
from slipway.core.memory import available_bytes
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.distributed.rendezvous import listen
from slipway.trainer.distributed.shared_sums import ProcessEnded
from slipway.trainer.distributed.verification import verify_library
from slipway.trainer.engines.base import OutOfMemory, PeerLost
from slipway.trainer.engines.quick_import import let_tensorflow_only_read

# Timeout of a collective; long because the others wait while the chief exports.
COLLECTIVE_MINUTES = 10
# How long a process waits for the others at the end, and its polling interval.
LEAVE_SECONDS = 10.0
LEAVE_POLL_SECONDS = 0.01
# In the errors of gloo's transport and of NCCL when another process is lost; those of the store have their own classes.
_LOST = re.compile(
    r"gloo/transport|ncclRemoteError|ncclSystemError|remote (?:process|peer)|collective operation timeout|"
    r"connection (?:closed|reset|refused|timed out)|broken pipe",
    re.IGNORECASE,
)


class Devices:
    """This process's device, and the process group if there are several processes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        let_tensorflow_only_read()
        verify_library("torch")
        if torch.cuda.is_available() and cluster.accelerators.kind != "virtual":
            _check_gpus(cluster, torch.cuda.device_count())
            self.device = torch.device("cuda", cluster.local_rank)
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
            if cluster.on_this_machine > 1:  # this process's part of the cores
                torch.set_num_threads(min(torch.get_num_threads(), available_cores()))
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for reproducible cuBLAS sums
        torch.use_deterministic_algorithms(True, warn_only=True)
        if cluster.world_size > 1:
            self._join()

    @property
    def kind(self) -> str:
        """CPU or GPU."""
        return "GPU" if self.device.type == "cuda" else "CPU"

    @property
    def name(self) -> str:
        """The device's vendor name."""
        return str(torch.cuda.get_device_name(self.device)) if self.kind == "GPU" else self.kind

    @property
    def capability(self) -> tuple[int, int] | None:
        """A GPU's compute capability, None for other devices."""
        return torch.cuda.get_device_capability(self.device) if self.kind == "GPU" else None

    @property
    def memory(self) -> int | None:
        """The device's memory in bytes; None for a CPU, which uses the machine's memory."""
        return int(torch.cuda.get_device_properties(self.device).total_memory) if self.kind == "GPU" else None

    @property
    def own_memory(self) -> int | None:
        """The same, of a CPU this process's part of the machine's memory."""
        if self.kind == "GPU":
            return self.memory
        available = available_bytes()
        return available and available // self.cluster.on_this_machine

    def _join(self) -> None:
        """Join the process group at the chief's address, and set torchrun's variables for user code."""
        host, _, port = self.cluster.tasks[0].address.rpartition(":")
        os.environ |= {
            "MASTER_ADDR": host,
            "MASTER_PORT": port,
            "RANK": str(self.cluster.rank),
            "WORLD_SIZE": str(self.cluster.world_size),
            "LOCAL_RANK": str(self.cluster.local_rank),
            "LOCAL_WORLD_SIZE": str(self.cluster.on_this_machine),
        }
        if host in ("127.0.0.1", "localhost"):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        timeout = timedelta(minutes=COLLECTIVE_MINUTES)
        self._listener = listen(self.cluster.task) if self.cluster.is_chief else None
        self._store = distributed.TCPStore(
            host,
            int(port),
            self.cluster.world_size,
            self.cluster.is_chief,
            timeout,
            master_listen_fd=self._listener.detach() if self._listener else None,
        )
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if self.kind == "GPU" else "gloo",
            store=self._store,
            rank=self.cluster.rank,
            world_size=self.cluster.world_size,
            timeout=timeout,
        )

    def reduced(self, values: torch.Tensor, operation: str) -> torch.Tensor:
        """All-reduce `values` (a tensor on the CPU) over all processes with "SUM" or "MAX"."""
        if self.cluster.world_size > 1:
            distributed.all_reduce(values, getattr(distributed.ReduceOp, operation))
        return values

    def leave(self) -> None:
        """Leave the group after all processes have finished the last collective; gloo would abort it otherwise."""
        other_processes = self.cluster.world_size - 1
        if not other_processes:
            return
        with contextlib.suppress(RuntimeError):  # the chief, which hosts the store, may have left after the timeout
            self._store.add("through", 1)
            self._wait_for("through", other_processes + 1)
            if self.cluster.is_chief:
                self._wait_for("left", other_processes)
            else:
                self._store.add("left", 1)
        distributed.destroy_process_group()

    def _wait_for(self, name: str, count: int) -> None:
        deadline = time.monotonic() + LEAVE_SECONDS
        while self._store.add(name, 0) < count and time.monotonic() < deadline:
            time.sleep(LEAVE_POLL_SECONDS)


def _check_gpus(cluster: Cluster, gpus: int) -> None:
    """Raise UserError if this machine has fewer GPUs than processes, each of which needs its own."""
    if gpus < cluster.on_this_machine:
        raise UserError(
            f"The engine pytorch has {cluster.on_this_machine} processes on this machine, which has {gpus} "
            f"GPU{'s' if gpus > 1 else ''}.",
            setting="hardware",
            value=f"{cluster.on_this_machine} processes on one machine",
            allowed="at most one process per GPU",
            nearest=str(gpus),
            fix="use fewer replicas, or train on the CPU: slipway rehearse",
        )


@contextlib.contextmanager
def errors_named(cluster: Cluster) -> Iterator[None]:
    """Convert the errors of a lost replica and of exhausted memory to PeerLost and OutOfMemory."""
    try:
        yield
    except ProcessEnded as error:
        raise PeerLost(str(error)) from error
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(str(error).partition("\n")[0]) from error
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        if "DefaultCPUAllocator" in first and "memory" in first:
            raise OutOfMemory(first) from error
        is_store = isinstance(error, (distributed.DistNetworkError, distributed.DistStoreError))
        if cluster.world_size > 1 and (is_store or _LOST.search(str(error))):
            raise PeerLost(first) from error
        raise
