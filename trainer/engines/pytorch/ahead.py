"""Trace the training step for GPUs that are not there: `python -m slipway.trainer.engines.pytorch.ahead REQUEST`.

The step runs with fake tensors, which have a shape and no values, so that it needs neither a GPU nor the memory of one.
Their sizes add up to what PyTorch's allocator would hold: of a ResNet-50, to what it held for the step on a CPU. CUDA's
context and the workspaces of its libraries come on top; those of a CPU's convolutions were 6 % of a small network.

REQUEST is a `Request` as JSON; the last line of the output is an `Answer` as JSON, or an error.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import TYPE_CHECKING, Any

from slipway.core.errors import UserError
from slipway.core.paths import local_path
from slipway.trainer.engines import ahead, user_modules
from slipway.trainer.engines.ahead import Answer, Costs, Profile, largest_batch

if TYPE_CHECKING:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from slipway.trainer.engines.pytorch.network import Network
    from slipway.trainer.engines.pytorch.step import Step

ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": ""}
# Of a GPU's memory; the rest is for CUDA's context and workspaces.
GPU_MEMORY = 0.9


class Request(ahead.Request):
    """What to trace for how many GPUs, of which compute capability."""

    devices: int
    capability: tuple[int, int]


def answer(request: Request) -> Answer:
    """Trace the step of a job, and those of other batches if the largest is wanted."""
    job, devices = request.job, request.devices
    result = Answer(devices=devices, kind=request.product, fits=True)
    if job.train.sharding == "fsdp":
        return result.model_copy(update={"unknown": "the memory of variables in shards is not traced"})
    tracer = Tracer(request)

    def fits(batch: int) -> bool:
        return tracer.peak(batch // devices) <= GPU_MEMORY * request.memory

    result.peak_bytes, result.fits = tracer.peak(job.train.batch_size // devices), fits(job.train.batch_size)
    costs = tracer.costs(job.train.batch_size // devices)
    result.flops, result.traffic_bytes, result.kernels = costs.flops or None, costs.traffic_bytes, costs.kernels
    if request.largest or not result.fits:
        unit, most = devices * job.train.accumulation, tracer.manifest.splits["train"].examples
        result.largest_batch = largest_batch(job.train.batch_size, result.fits, unit, most, fits)
    if not result.fits and not job.train.remat:
        remat = job.model_copy(update={"train": job.train.model_copy(update={"remat": True})})
        with contextlib.suppress(UserError):  # the network has no segments
            peak = Tracer(request.model_copy(update={"job": remat})).peak(job.train.batch_size // devices)
            if peak <= GPU_MEMORY * request.memory:
                result.savings["train.remat=true"] = peak
    return result


def profile(request: Request) -> Profile:
    """Trace the step of a request's job on one device."""
    tracer = Tracer(request.model_copy(update={"devices": 1}))
    costs = tracer.costs(request.job.train.batch_size)
    return Profile(
        devices=1,
        costs=costs,
        variables=tracer.size.variables,
        trainable=tracer.size.trainable,
        kept_bytes=tracer.kept_bytes,
        files=user_modules.digests(),
    )


class Tracer:
    """Runs a job's steps with fake tensors.

    Attributes:
        manifest: The data set's.
        precision: The compute precision.
        size: The network's size.
        kept_bytes: The size of the part of the training split that a device keeps, 0 if it is streamed.
    """

    def __init__(self, request: Request) -> None:
        from slipway.trainer.engines.quick_import import import_tensorflow

        import_tensorflow("pytorch")
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode

        from slipway.core import manifest as manifests
        from slipway.trainer.data.inputs import DEVICE_MEMORY_FRACTION, MEMORY_BUDGET
        from slipway.trainer.distributed import cluster as clusters
        from slipway.trainer.engines.keras import model as keras_model
        from slipway.trainer.engines.pytorch import network as pytorch_network
        from slipway.trainer.engines.pytorch.devices import Devices

        self._job = job = request.job
        self.manifest = manifest = manifests.read(local_path(job.data))
        self.precision = keras_model.prepare(job, manifest, request.devices, "GPU", request.capability)
        self._network = pytorch_network.build_network(job.model, manifest)
        self.size = pytorch_network.size(self._network.inner)
        data = -(-manifest.splits["train"].examples // request.devices) * manifest.decoded_bytes
        is_kept = data <= min(MEMORY_BUDGET, DEVICE_MEMORY_FRACTION * request.memory)
        # What no operation makes: the examples on the GPU, and the gradients' copies in DistributedDataParallel.
        self.kept_bytes = data if is_kept else 0
        self._beside = self.kept_bytes + (self.size.trainable if request.devices > 1 else 0)
        self._devices = Devices(clusters.read({}))
        self._mode, self._live = FakeTensorMode(allow_non_fake_inputs=True), Live()
        self._make_fake(self._network)
        for module in vars(torch.optim).values():
            if hasattr(module, "_get_value"):  # the number of the step, which a fake tensor does not have
                module._get_value = lambda value: 1.0 if isinstance(value, torch.Tensor) else value
        self._known: dict[int, Costs] = {}

    def peak(self, size: int) -> int:
        """Return the most bytes that are in use at a time in a step of `size` examples."""
        return self._traced(size).peak_bytes + self._beside

    def costs(self, size: int) -> Costs:
        """Return what a step of `size` examples takes, without what is kept beside it."""
        from torch.utils.flop_counter import FlopCounterMode

        with self._mode, FlopCounterMode(display=False) as counter:  # on its own, since its hooks keep tensors
            self._step(size).run(*self._batch(size), 0, 1e-3)
        return self._traced(size).model_copy(update={"flops": float(counter.get_total_flops())})

    def _traced(self, size: int) -> Costs:
        """Return the costs of a step but its FLOPs."""
        if size not in self._known:
            live = self._live
            with self._mode, live.counting():
                step = self._step(size)
                inputs, labels = self._batch(size)
                live.begin()
                step.run(inputs, labels, 0, 1e-3)
            traffic, kernels = live.traffic, live.kernels
            self._known[size] = Costs(batch=size, peak_bytes=live.peak, flops=0, traffic_bytes=traffic, kernels=kernels)
        return self._known[size]

    def _step(self, size: int) -> Step:
        import torch

        from slipway.trainer.engines import hooks
        from slipway.trainer.engines.keras.objective import objective
        from slipway.trainer.engines.pytorch import optimizer
        from slipway.trainer.engines.pytorch.remat import rematerialization
        from slipway.trainer.engines.pytorch.step import CLASSIFICATION, Step

        train = self._job.train
        made = optimizer.make(train, self._network)
        for group in made.param_groups:
            if group.get("foreach", True) is None:  # as on GPUs by default: all parameters together
                group["foreach"] = True
        self._network.train()
        return Step(
            network=self._network,
            wrapped=self._network,
            optimizer=made,
            scaler=torch.amp.GradScaler("cpu", enabled=False),
            objective=objective(self.manifest, CLASSIFICATION, train),
            train=train,
            precision=self.precision,
            batch=size,
            devices=self._devices,
            own_augmentation=hooks.augmentation(train, self.manifest),
            recomputing=rematerialization(self._job, self._network),
        )

    def _batch(self, size: int) -> tuple[Any, torch.Tensor]:
        import torch

        from slipway.trainer.data.features import blank, each
        from slipway.trainer.engines.pytorch.tensors import tensors

        inputs, labels = (tensors(part) for part in blank(self.manifest, 1))
        inputs = each(lambda tensor: torch.empty((size, *tensor.shape[1:]), dtype=tensor.dtype), inputs)
        kind = torch.int64 if labels.dtype == torch.int32 else labels.dtype
        return inputs, torch.empty((size, *labels.shape[1:]), dtype=kind)

    def _make_fake(self, network: Network) -> None:
        """Replace a network's parameters, buffers and Keras variables by fake tensors, which are counted."""
        import torch

        fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # with the originals, whose ids are kept so

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in fakes:
                made = self._mode.from_tensor(tensor.detach())
                if isinstance(tensor, torch.nn.Parameter):
                    made = torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
                fakes[id(tensor)] = made, tensor
                self._live.add(made)
            return fakes[id(tensor)][0]

        generators = network.seed_generators()
        seeds = {id(generator.state) for generator in generators}
        for generator in generators:
            generator.next = lambda *_, **__: (0, 0)  # a seed has to be a number
        network.seed_generators = list  # type: ignore[method-assign]
        for module in network.modules():
            for held in (module._parameters, module._buffers):
                held.update({name: fake(tensor) for name, tensor in held.items() if tensor is not None})
        for variable in network.inner.variables if network.is_keras else ():
            if id(variable) not in seeds:
                variable._value = fake(variable._value)


class Live:
    """The bytes of the tensors that are alive, `now` and at their `peak`, of those that were added.

    `traffic` are those that operations read and write, each of which is one of `kernels`.
    """

    def __init__(self) -> None:
        self.now = self.peak = self.traffic = self.kernels = 0
        self._known: set[int] = set()

    def begin(self) -> None:
        """Begin with the peak, the traffic and the kernels of another step."""
        self.peak, self.traffic, self.kernels = self.now, 0, 0

    def _count(self, arguments: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        """Count an operation, unless it only makes views or new tensors."""
        held = {tensor.untyped_storage()._cdata for tensor in arguments}
        new = [tensor for tensor in made if tensor.untyped_storage()._cdata not in held]
        if arguments and (new or len(held) > 1):
            self.traffic += sum(tensor.nbytes for tensor in (*arguments, *made))
            self.kernels += 1

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage until it is freed."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._known:
            return
        self._known.add(storage._cdata)
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size

    def counting(self) -> TorchDispatchMode:
        """Return a context that adds what operations return."""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_iter

        live = self

        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                arguments = [value for value in tree_iter((args, kwargs)) if isinstance(value, torch.Tensor)]
                made = func(*args, **(kwargs or {}))
                results = [value for value in tree_iter(made) if isinstance(value, torch.Tensor)]
                for tensor in results:
                    live.add(tensor)
                live._count(arguments, results)
                return made

        return Counting()


if __name__ == "__main__":
    asked = Request.model_validate_json(sys.argv[1])
    print((profile(asked) if asked.profile else answer(asked)).model_dump_json(), flush=True)
