"""Compile the training step for accelerators that are not there: `python -m slipway.trainer.engines.jax.ahead REQUEST`.

Google's TPU compiler is a library (libtpu) that needs no TPU, and XLA's compiler for NVIDIA's GPUs needs only a
description of the GPU. They say how much memory the step takes of each device, and whether it fits. REQUEST is a
`Request` as JSON; the last line of the output is an `Answer` as JSON, or an error.

It runs in a process of its own: libtpu installs handlers of signals, and its variables are read when it is loaded.
"""

from __future__ import annotations

import functools
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from slipway.core.paths import local_path
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.engines import ahead, user_modules
from slipway.trainer.engines.ahead import Answer, Costs, Profile, largest_batch
from slipway.trainer.engines.jax import hlo

if TYPE_CHECKING:
    import jax

    from slipway.core.manifest import Manifest
    from slipway.trainer.config import JobConfig
    from slipway.trainer.engines.base import Work

# libtpu neither asks for a TPU, nor writes a log or locks other processes out.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "jax",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "JAX_TRACEBACK_FILTERING": "off",  # the last line of an error is the error
    # Without a GPU, Triton's cost model fails for the products of some layers, such as those of ViT-B/16 on 224 pixels
    # ("Couldn't find output tile sizes that satisfy hlo"). cuBLAS computes the same.
    "XLA_FLAGS": "--xla_gpu_enable_triton_gemm=false",
}
# A fifth of the time of the default effort, and nearly the same memory.
QUICK = {"exec_time_optimization_effort": -1.0}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# What JAX takes of a GPU's memory by default; https://docs.jax.dev/en/latest/gpu_memory_allocation.html
GPU_MEMORY = 0.75


class Topology(BaseModel):
    """Accelerators as their compiler knows them: arguments of jax.experimental.topologies.get_topology_desc."""

    name: str
    platform: str = "tpu"
    options: dict[str, Any] = {}


class Request(ahead.Request):
    """What to compile for which devices."""

    topology: Topology


@dataclass
class Compiler:
    """Compiles the steps of a job for the devices of a topology."""

    request: Request

    def answer(self) -> Answer:
        """Compile the job's batch, and others if the largest is wanted."""
        job, manifest = self._opened()
        devices, answer = self._devices, self._compiled(job.train.batch_size)
        if self.request.largest or not answer.fits:
            answer.largest_batch = self._largest(job.train.batch_size, fits=answer.fits)
        if not answer.fits and job.train.engine == "jax":
            sharded = {"sharding": "fsdp"} if len(devices.all) > 1 else {}
            for setting, value in {**sharded, "remat": True}.items():
                if getattr(job.train, setting) == value:
                    continue
                train = job.train.model_copy(update={setting: value})
                self._engine.build(job.model_copy(update={"train": train}), manifest)
                other = self._compiled(job.train.batch_size)
                if other.fits and other.peak_bytes is not None:
                    answer.savings[f"train.{setting}={str(value).lower()}"] = other.peak_bytes
        return answer

    def profile(self) -> Profile:
        """Compile the job's batch for what it takes."""
        job, _ = self._opened()
        size, kept, batch = self._engine.size(), self._kept(), job.train.batch_size
        profile = Profile(
            devices=len(self._devices.all), variables=size.variables, trainable=size.trainable, kept_bytes=kept
        )
        answer = self._compiled(batch)
        if answer.peak_bytes is None or not answer.flops:
            return profile.model_copy(update={"unknown": answer.refusal or "XLA does not count its operations"})
        costs = Costs(
            batch=batch,
            peak_bytes=answer.peak_bytes - kept,
            flops=answer.flops,
            traffic_bytes=answer.traffic_bytes,
            kernels=answer.kernels,
        )
        return profile.model_copy(update={"costs": costs, "files": user_modules.digests()})

    def _opened(self) -> tuple[JobConfig, Manifest]:
        """Build the job's network for the devices; return the job of one process, and its data's manifest."""
        from slipway.core import manifest as manifests
        from slipway.trainer.engines.jax.devices import TopologyDevices
        from slipway.trainer.engines.jax.engine import JaxEngine

        job, topology = self.request.job, self.request.topology
        devices = TopologyDevices(topology.name, topology.platform, topology.options, self.request.memory)
        plan = job.plan.model_copy(update={"replicas": 1, "processes": 1, "batch_per_replica": job.train.batch_size})
        data = local_path(job.data)
        manifest = manifests.read(data)
        parts = [ShardAssignment(data, manifest, rank, devices.hosts) for rank in range(devices.hosts)]
        self._part, self._devices = max(parts, key=lambda part: part.examples("train")), devices
        self._engine = JaxEngine(devices)
        job = job.model_copy(update={"plan": plan})
        self._engine.build(job, manifest)
        self._rebuild = functools.partial(self._engine.build, job, manifest)
        return job, manifest

    def _lowered(self, batch: int) -> jax.stages.Lowered:
        import jax

        program, arguments = self._engine.program(self._part, batch)
        try:
            return program.lower(*arguments)
        except jax.errors.UnexpectedTracerError:  # the network keeps what it computed while it was built
            if self._devices.needs_values:
                raise
            self._devices.needs_values = True
            self._rebuild()
            return self._lowered(batch)

    def _kept(self) -> int:
        """Return the bytes of the training split that each device keeps; 0 if it is streamed."""
        import jax

        _, (_, inputs, *_) = self._engine.program(self._part, self.request.job.train.batch_size)
        *examples, _ = inputs  # the last one is the order of the examples, or the labels of a stream
        whole = sum(array.size * array.dtype.itemsize for array in jax.tree.leaves(examples))
        return int(whole) // len(self._devices.all) if len(inputs) > 2 else 0

    def _largest(self, batch: int, *, fits: bool) -> int | None:
        """Return the largest batch that fits, of at most the whole training split."""
        unit = len(self._devices.all) * self.request.job.train.accumulation
        most = self._part.manifest.splits["train"].examples
        return largest_batch(batch, fits, unit, most, lambda size: self._compiled(size).fits)

    def _compiled(self, batch: int) -> Answer:
        import jax

        product, is_gpu = self.request.product, self.request.topology.platform == "cuda"
        kind = product if is_gpu else self._devices.all[0].device_kind
        answer = Answer(devices=len(self._devices.all), kind=kind, fits=False)
        lowered = self._lowered(batch)
        try:
            try:
                compiled = lowered.compile(compiler_options=None if is_gpu else QUICK)
            except jax.errors.JaxRuntimeError as error:
                if not is_refusal(error):
                    raise
                compiled = lowered.compile()  # with the default effort, it may still fit
        except jax.errors.JaxRuntimeError as error:
            if not is_refusal(error):
                raise
            answer.refusal = sentence(str(error))
            return answer
        memory, costs = compiled.memory_analysis(), compiled.cost_analysis() or {}
        answer.peak_bytes = int(memory.peak_memory_in_bytes)
        answer.fits = not is_gpu or answer.peak_bytes <= GPU_MEMORY * self.request.memory
        answer.flops = self._gpu_flops(batch) if is_gpu else costs.get("flops")
        text = compiled.as_text()
        answer.traffic_bytes, answer.kernels = hlo.traffic(text)
        answer.collectives = {
            name: count for name in COLLECTIVES if (count := len(re.findall(rf" {name}(?:-start)?\(", text)))
        }
        return answer

    @functools.cached_property
    def _work(self) -> Work:
        """The work of the job's own step, whose FLOPs are counted once."""
        return self._engine.work()

    def _gpu_flops(self, batch: int) -> float | None:
        """Return the FLOPs on each GPU, which XLA counts for CPUs only; None for operations that CPUs do not have."""
        try:
            whole = self._work.step_flops
        except ValueError:  # such as float16 attention that is summed in float32
            return None
        return whole and whole * batch / self.request.job.train.batch_size / len(self._devices.all)


def is_refusal(error: Exception) -> bool:
    """Whether the compiler says that a program needs more memory than a device has."""
    return "RESOURCE_EXHAUSTED" in str(error) or "CompileTimeHbmOom" in str(error)


def sentence(text: str) -> str:
    """Return the compiler's sentence about the memory without its prefixes and what follows."""
    match = re.search(r"Ran out of memory.*?(?=\.\s|\n|$)", text)
    return match[0] if match else text.partition("\n")[0]


if __name__ == "__main__":
    compiler = Compiler(Request.model_validate_json(sys.argv[1]))
    print((compiler.profile() if compiler.request.profile else compiler.answer()).model_dump_json(), flush=True)
