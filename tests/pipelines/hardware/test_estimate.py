"""Estimated steps: the parts of a step grow as they must with the hardware, and memory is that of what is compiled."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.core.durations import between, duration
from slipway.core.manifest import Manifest, Shard, Split
from slipway.pipelines.hardware import estimate as estimates
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.choice import choices
from slipway.pipelines.hardware.estimate import Estimate, Training, estimate
from slipway.pipelines.hardware.memory import GIB
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.config import TrainSettings
from slipway.trainer.engines.ahead import Costs, Profile
from slipway.trainer.metrics.speed import peak_flops

EXAMPLES = 2**16
# A network of 100 million variables, whose activations take 10 MiB an example.
VARIABLES, OF_VARIABLES = 400_000_000, 16 * 400_000_000
COSTS = Costs(
    batch=64, peak_bytes=3 * VARIABLES + 64 * 10 * 2**20, flops=64e10, traffic_bytes=64e8 + OF_VARIABLES, kernels=500
)
PROFILE = Profile(devices=1, costs=COSTS, variables=VARIABLES, trainable=VARIABLES)


def manifest() -> Manifest:
    shards = [Shard(file="0.tfrecord", examples=EXAMPLES, bytes=2**30, sha256="")]
    return Manifest(
        name="shapes", fingerprint="", source="", settings={}, classes=["a", "b"], image_size=(8, 8), channels=3,
        resize=False, encodings=["jpeg"], splits={"train": Split(examples=EXAMPLES, classes={}, shards=shards)},
    )  # fmt: skip


def made(choice: str, *, per_core: float | None = None, profile: Profile = PROFILE, **train: object) -> Estimate:
    values = {"engine": "jax", "batch_size": 256, "steps": 100, **train}
    training = Training(train=TrainSettings.model_validate(values), manifest=manifest(), examples_per_core=per_core)
    result = estimate(parse(choice), training, profile, "compiled")
    assert result is not None
    return result


def test_the_arithmetic_and_the_memory_of_a_step() -> None:
    """At the rates of the table: flops by the peak, bytes by the bandwidth."""
    step = made("a100x1", batch_size=64)
    known = estimates.rates(load().accelerator_index["a100"], "compiled")
    assert known is not None
    assert step.parts["compute"] == pytest.approx(64e10 / (known.compute * 312e12))
    assert step.parts["memory bandwidth"] == pytest.approx((64e8 + OF_VARIABLES) / (known.memory * 1.555e12), rel=0.01)
    assert step.step.middle == pytest.approx(math.hypot(step.parts["compute"], step.parts["memory bandwidth"]))
    assert step.limit == "memory bandwidth"
    assert step.peak_bytes == pytest.approx(3 * VARIABLES + 64 * 10 * 2**20)


def test_float32_is_slower_than_bfloat16() -> None:
    slow, fast = made("a100x1", precision="float32"), made("a100x1")
    assert slow.parts["compute"] == pytest.approx(2 * fast.parts["compute"])


def test_costs_are_linear_in_the_batch() -> None:
    few, many, most = (made("a100x1", batch_size=batch).parts["memory bandwidth"] for batch in (64, 128, 192))
    assert most - many == pytest.approx(many - few)


def test_a_machine_reads_as_fast_as_its_cores_do() -> None:
    fed, starved = made("l4x1", per_core=1e9), made("l4x1", per_core=10.0)
    assert (fed.limit, starved.limit) == ("memory bandwidth", "input")
    assert starved.step.middle == pytest.approx(256 / (10.0 * (parse("l4x1").machine_row.vcpus or 0)))
    larger = made("l4x1@g2-standard-16", per_core=10.0)
    assert larger.step.middle < starved.step.middle


def test_small_steps_take_as_long_as_their_kernels_start() -> None:
    tiny = Costs(batch=8, peak_bytes=2**20, flops=1e6, traffic_bytes=1e5, kernels=300)
    step = made("h100x1", profile=Profile(devices=1, costs=tiny, variables=1000, trainable=1000), batch_size=8)
    assert step.limit == "kernel launches"
    assert step.step.middle > 300e-6


def test_gradients_are_summed_over_the_slowest_network() -> None:
    alone, one_machine, two = made("a100x1"), made("a100x8"), made("a100x8*2")
    assert alone.parts["all-reduce"] == 0
    assert one_machine.parts["all-reduce"] == pytest.approx(2 * 7 / 8 * VARIABLES / 300e9)
    between_machines = 2 * 1 / 2 * VARIABLES / (100e9 / 8)
    assert two.parts["all-reduce"] == pytest.approx(one_machine.parts["all-reduce"] + between_machines)
    assert two.limit == "all-reduce"


def test_sharded_variables_take_less_memory_and_more_of_the_network() -> None:
    whole, parts = made("a100x8", sharding="replicated"), made("a100x8", sharding="fsdp")
    assert parts.peak_bytes and whole.peak_bytes and parts.peak_bytes < whole.peak_bytes
    assert parts.parts["all-reduce"] == pytest.approx(1.5 * whole.parts["all-reduce"])


def test_the_largest_batch_is_the_last_that_fits() -> None:
    most = made("t4x1").largest_batch
    assert most is not None and 256 < most < EXAMPLES
    assert made("t4x1", batch_size=most).fits
    assert not made("t4x1", batch_size=most + 1).fits
    assert (made("t4x1", batch_size=most).peak_bytes or 0) <= 0.75 * 16 * GIB
    assert made("t4x4").largest_batch == pytest.approx(4 * most, abs=8)


def test_what_is_larger_than_a_device_fits_none() -> None:
    large = PROFILE.model_copy(update={"variables": 100 * GIB, "trainable": 100 * GIB})
    nothing = made("t4x1", profile=large, batch_size=4)
    assert (nothing.fits, nothing.largest_batch) == (False, None)


def test_the_split_in_memory_is_each_machines_part() -> None:
    kept = PROFILE.model_copy(update={"kept_bytes": 2**30})
    one, two = made("a100x1", profile=kept), made("a100x1*2", profile=kept)
    assert (one.peak_bytes or 0) - (made("a100x1").peak_bytes or 0) == 2**30
    assert (two.peak_bytes or 0) - (made("a100x1*2").peak_bytes or 0) == 2**29


RATED = [row for row in load().accelerators if row.name in estimates.table()["chips"]]
KNOWN = {row.name for row in RATED if peak_flops(estimates.product(row), "float32")}
SOLD = [choice for choice in choices() if choice.accelerator in KNOWN]


@given(st.sampled_from(SOLD), st.sampled_from([1, 8, 64]), st.sampled_from(["auto", "fsdp", "replicated"]))
def test_every_choice_has_an_estimate_in_order(choice: object, times: int, sharding: str) -> None:
    text = str(choice)
    devices = parse(text).accelerators_per_replica
    step = made(text, batch_size=devices * times, sharding=sharding)
    assert 0 < step.step.low <= step.step.middle <= step.step.high < math.inf
    assert set(step.parts) == set(estimates.PARTS)
    assert step.based_on
    more = made(text, batch_size=2 * devices * times, sharding=sharding)
    assert more.step.middle >= step.step.middle
    assert (more.peak_bytes or 0) > (step.peak_bytes or 0)


def test_every_rate_has_its_sources() -> None:
    for name, row in estimates.table()["chips"].items():
        assert row["sources"] and all(row["sources"]), name
        assert ("bandwidth" in row) == (load().accelerator_index[name].chip is None), name
    reached = estimates.table()["reached"]
    assert set(reached) == {f"{platform} {program}" for platform, program in estimates.USABLE}
    assert all(row["low"] < 1 < row["high"] for row in reached.values())
    machines = {machine.name for machine in load().machines} | {machine.family for machine in load().machines}
    for name, row in estimates.table()["networks"].items():
        assert name in machines
        assert row["most"] > 0


def test_where_nothing_was_published_the_range_is_wider_and_says_so() -> None:
    published, unpublished = made("a100x1"), made("l4x1")
    assert "published results on NVIDIA A100" in published.based_on
    assert "no published result on NVIDIA L4" in unpublished.based_on
    widths = [step.step.high / step.step.low for step in (published, unpublished)]
    assert widths[1] == pytest.approx(estimates.UNPUBLISHED**2 * widths[0])
    of_tensorflow = made("a100x1", engine="tensorflow")
    assert "as JAX builds the network that tensorflow trains" in of_tensorflow.based_on


def test_of_a_network_that_is_not_known_nothing_is_estimated() -> None:
    training = Training(
        train=TrainSettings.model_validate({"engine": "jax", "batch_size": 256, "steps": 1}), manifest=manifest(),
        examples_per_core=None,
    )  # fmt: skip
    assert estimate(parse("gpu"), training, PROFILE, "compiled") is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-6, "2.0 µs"), (0.5, "500 ms"), (12.4, "12 s"), (59.99, "1.0 min"), (204, "3.4 min"), (1e6, "278 h")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_ranges() -> None:
    assert between(720, 1440) == "12 to 24 min"
    assert between(50, 120) == "50 s to 2.0 min"
