"""BatchNorm of two PyTorch processes against one process with the batch of both."""

from __future__ import annotations

import os
import socket
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.engine("pytorch")


def compare(rank: int, port: int, is_keras: bool) -> None:
    """Train a network with half of each batch and its copy with the whole one; raise unless they stay equal."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "KERAS_BACKEND": "torch"}
    import keras
    import torch
    from torch import distributed, nn

    from slipway.trainer.distributed import cluster as clusters
    from slipway.trainer.engines.pytorch import normalization
    from slipway.trainer.engines.pytorch.network import Network
    from tests.trainer.conftest import manifest_of

    distributed.init_process_group("gloo", rank=rank, world_size=2)

    def build() -> Any:
        keras.utils.set_random_seed(1)
        if is_keras:
            layers = [keras.layers.BatchNormalization(), keras.layers.Flatten(), keras.layers.Dense(3)]
            return Network(keras.Sequential([keras.Input((4, 3, 5)), *layers]), manifest_of())
        frozen = nn.BatchNorm2d(5)
        frozen.requires_grad_(False)
        module = nn.Sequential(nn.BatchNorm2d(5), frozen, nn.Flatten(), nn.Linear(60, 3))
        return Network(module, manifest_of())

    class Devices:
        cluster = clusters.read({"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})

    one, two = build().train(), build().train()
    normalization.synchronize(two, Devices())  # type: ignore[arg-type]
    wrapped = nn.parallel.DistributedDataParallel(two, find_unused_parameters=True, forward_sync_buffers=False)
    images = torch.from_numpy(np.random.default_rng(0).normal(3, 2, (3, 8, 4, 3, 5))).float()
    for batch in images:
        for network, part in ((one, batch), (wrapped, batch[4 * rank : 4 * rank + 4])):
            network(part).square().mean().backward()
        for own, other in zip(one.trained(), two.trained(), strict=True):
            torch.testing.assert_close(other.grad, own.grad, rtol=1e-3, atol=1e-4)
    for (name, own), other in zip(one.variables().items(), two.variables().values(), strict=True):
        torch.testing.assert_close(other, own, rtol=1e-4, atol=1e-5)
        if name.endswith("/1.running_mean"):  # the frozen module's
            assert not own.any()
    distributed.barrier()
    os._exit(0)  # as the trainer does: freeing gloo's threads now and then waits forever


@pytest.mark.parametrize("is_keras", [True, False])
def test_two_processes_normalize_over_both_parts_of_the_batch(is_keras: bool) -> None:
    import torch.multiprocessing

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    torch.multiprocessing.spawn(compare, (port, is_keras), nprocs=2)
