"""Estimating whether a model fits in memory."""

from __future__ import annotations

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.hardware import parse
from slipway.pipelines.hardware.memory import GIB, device_bytes, fits_memory


def test_sharded_variables_need_their_part_of_each_device() -> None:
    with pytest.raises(UserError) as info:
        fits_memory(parse("t4x4"), 8 * GIB, "adam", engine="jax")
    assert "--set train.sharding=fsdp or" in str(info.value.fix)
    assert fits_memory(parse("t4x4"), 8 * GIB, "adam", engine="jax", sharding="fsdp").total == 8 * GIB


def test_automatically_sharded_variables_are_so_only_if_they_do_not_fit() -> None:
    assert fits_memory(parse("t4x4"), 4 * GIB, "adam", engine="jax", sharding="auto").total == 16 * GIB
    assert fits_memory(parse("t4x4"), 8 * GIB, "adam", engine="pytorch", sharding="auto").total == 8 * GIB
    for engine, size in (("tensorflow", 8), ("jax", 17)):
        with pytest.raises(UserError, match=r"does not fit"):
            fits_memory(parse("t4x4"), size * GIB, "adam", engine=engine, sharding="auto")


def test_memory_of_variables_gradients_and_optimizer():
    need = fits_memory(parse("t4x4"), 2 * GIB, "adam", trainable_bytes=GIB)
    assert (need.variables, need.gradients, need.optimizer) == (2 * GIB, GIB, 2 * GIB)
    assert str(need) == "variables 2.00 GiB + gradients 1.00 GiB + state of adam 2.00 GiB = 5.00 GiB"
    assert str(fits_memory(parse("t4x4"), GIB, "sgd")) == "variables 1.00 GiB + gradients 1.00 GiB = 2.00 GiB"


def test_exactly_full_fits():
    assert fits_memory(parse("t4x1"), 4 * GIB, "adam").total == 16 * GIB
    with pytest.raises(UserError, match=r"= 16\.00 GiB, and a chip of NVIDIA T4 has 16\.00 GiB"):
        fits_memory(parse("t4x1"), 4 * GIB + 1, "adam")


@pytest.mark.parametrize(
    ("choice", "gibibytes", "optimizer", "part", "nearest"),
    [
        ("tpu-v2-8", 3, "adam", "12.00 GiB, and a core of TPU v2 has 8.00 GiB", "tpu-v3-8"),
        ("t4x4*2", 5, "adamw", "20.00 GiB, and a chip of NVIDIA T4 has 16.00 GiB", "l4x4*2"),
        ("l4x8", 15, "sgd", "30.00 GiB, and a chip of NVIDIA L4 has 24.00 GiB", "a100x8"),
        ("tpu-v5e-2x4", 5, "adam", "20.00 GiB, and a chip of TPU v5e has 16.00 GiB", "tpu-v6e-2x4"),
        ("cpu", 10, "sgd", "20.00 GiB, and the machine has 15.00 GiB", "cpu@n1-highmem-4"),
        ("b200x8", 100, "adam", "400.00 GiB, and a chip of NVIDIA B200 has 180.00 GiB", None),
    ],
)
def test_refusals(choice, gibibytes, optimizer, part, nearest):
    with pytest.raises(UserError) as caught:
        fits_memory(parse(choice), gibibytes * GIB, optimizer)
    assert part in caught.value.message
    assert caught.value.nearest == nearest
    if nearest:
        fits_memory(parse(nearest), gibibytes * GIB, optimizer)


def test_the_suggested_hardware_runs_the_engine():
    with pytest.raises(UserError) as caught:
        fits_memory(parse("tpu-v5e-2x4"), 5 * GIB, "adam", engine="tensorflow")
    assert caught.value.nearest == "l4x8"


def test_momentum_needs_one_value_per_weight():
    assert fits_memory(parse("t4x1"), GIB, "sgd with momentum").optimizer == GIB
    assert fits_memory(parse("t4x1"), GIB, "sgd").optimizer == 0


def test_an_optimizer_without_state_is_named_where_it_would_fit():
    with pytest.raises(UserError) as caught:
        fits_memory(parse("t4x1"), 5 * GIB, "adam")
    assert "train.optimizer=sgd" in caught.value.fix
    with pytest.raises(UserError) as caught:
        fits_memory(parse("t4x1"), 9 * GIB, "adam")
    assert "sgd" not in caught.value.fix


def test_more_chips_do_not_increase_the_memory_per_device():
    assert device_bytes(parse("t4x1")) == device_bytes(parse("t4x4*8")) == 16 * GIB
    assert device_bytes(parse("tpu-v3-8")) == device_bytes(parse("tpu-v3-32")) == 16 * GIB
