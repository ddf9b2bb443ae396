"""A network whose intermediate values are computed again for their gradient (`train.remat`).

Of a Keras network, see `slipway.trainer.engines.keras.remat`. Of a Module, the segments are members of its lists
(Sequential, ModuleList, ModuleDict), the outermost ones that have at most the root of the network's products; those
of a Sequential are joined up to that number.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from slipway.trainer.config import JobConfig
from slipway.trainer.engines.keras.remat import Recomputing, Rematerialization, Tensor, refused

if TYPE_CHECKING:
    from slipway.trainer.engines.pytorch.network import Network

Forward = Callable[..., Any]


def rematerialization(job: JobConfig, network: Network) -> Recomputing:
    """Return a context in which a network keeps only what its segments read, if `train.remat`.

    Raises:
        UserError: It has no segments.
    """
    if not job.train.remat:
        return contextlib.nullcontext
    if network.is_keras:
        return Rematerialization(job.model, network.inner, _checkpoint, explicit=False)
    forwards = dict(_forwards(network.inner, _share(network.inner)))
    if not forwards:
        raise refused(job.model, "put its blocks into a ModuleList or Sequential")
    return functools.partial(_replaced, forwards)


def _checkpoint(function: Callable[..., list[Tensor]], tensors: list[Tensor]) -> list[Tensor]:
    """Call a function of Keras layers so that it is computed again.

    What Keras calls leaves its tensors in cycles of references: torch's tree_flatten does, and so would the exception
    that ends a computation early.
    """

    def collected(*arguments: Tensor) -> list[Tensor]:
        results = function(*arguments)
        gc.collect(1)
        return results

    with set_checkpoint_early_stop(False):
        outputs: list[Tensor] = checkpoint(collected, *tensors, use_reentrant=False)
    return outputs


@contextlib.contextmanager
def _replaced(forwards: dict[torch.nn.Module, Forward]) -> Iterator[None]:
    before = {module: vars(module).get("forward") for module in forwards}
    for module, forward in forwards.items():
        vars(module)["forward"] = forward
    try:
        yield
    finally:
        for module, forward in before.items():
            if forward is None:
                del vars(module)["forward"]
            else:
                vars(module)["forward"] = forward


def _forwards(module: torch.nn.Module, share: int) -> Iterator[tuple[torch.nn.Module, Forward]]:
    """Yield the modules in a module whose forward pass is to be replaced, and by what."""
    if isinstance(module, torch.nn.Sequential) and type(module).forward is torch.nn.Sequential.forward:
        runs = []
        for run in _runs(module, share):
            inside = list(_forwards(run[0], share)) if _products(run) > share else []
            yield from inside
            runs.append((run, not inside))
        yield module, functools.partial(_in_runs, runs)
        return
    is_list = isinstance(module, (torch.nn.ModuleList, torch.nn.ModuleDict))
    for child in module.children():
        inside = list(_forwards(child, share)) if not is_list or _products([child]) > share else []
        if is_list and not inside:
            yield child, functools.partial(_again, child.forward, [child])
        yield from inside


def _runs(module: torch.nn.Sequential, share: int) -> Iterator[list[torch.nn.Module]]:
    """Yield successive members whose products are at most `share`, or one member that has more."""
    run: list[torch.nn.Module] = []
    for child in module.children():
        if run and _products([*run, child]) > share:
            yield run
            run = []
        run.append(child)
    if run:
        yield run


def _in_runs(runs: Sequence[tuple[Sequence[torch.nn.Module], bool]], values: Any) -> Any:
    """Return what a Sequential returns, for its runs and whether each is a segment."""
    for run, is_segment in runs:
        forward = functools.partial(_sequence, run)
        values = _again(forward, run, values) if is_segment else forward(values)
    return values


def _sequence(run: Sequence[torch.nn.Module], values: Any) -> Any:
    for module in run:
        values = module(values)
    return values


def _again(forward: Forward, modules: Sequence[torch.nn.Module], *args: Any, **kwargs: Any) -> Any:
    """Return what `forward` returns, which is computed again for the gradient with the buffers as they were."""
    contexts = functools.partial(_contexts, modules)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(modules: Sequence[torch.nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    held = [
        (inner._buffers, name, buffer.clone())
        for module in modules
        for inner in module.modules()
        for name, buffer in inner._buffers.items()
        if buffer is not None
    ]

    @contextlib.contextmanager
    def again() -> Iterator[None]:
        after = [buffers[name] for buffers, name, _ in held]
        try:
            for buffers, name, before in held:
                buffers[name] = before
            yield
        finally:
            for (buffers, name, _), buffer in zip(held, after, strict=True):
                buffers[name] = buffer

    return contextlib.nullcontext(), again()


def _share(module: torch.nn.Module) -> int:
    return max(1, round(math.sqrt(_products([module]))))


def _products(modules: Sequence[torch.nn.Module]) -> int:
    """Return about how many matrix products or convolutions modules have."""
    return sum(parameter.dim() > 1 for module in modules for parameter in module.parameters())
