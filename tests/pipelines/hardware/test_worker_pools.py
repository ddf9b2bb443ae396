"""Vertex AI's message types accept the worker pools of every choice; no text crashes the parser."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway.core.errors import UserError
from slipway.pipelines.hardware import Hardware, parse
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.choice import choices
from slipway.pipelines.hardware.grammar import KEYS

NAMES = sorted({name for row in load().accelerators for name in row.names})
MACHINES = sorted(load().machine_index)


@pytest.fixture(scope="module")
def build():
    """Build a CustomJob from a choice and check that it can be serialized and parsed."""
    from google.cloud.aiplatform_v1 import types

    def build(hardware: Hardware):
        container = {"image_uri": "us-docker.pkg.dev/project/repository/trainer@sha256:0"}
        pools = [{**pool, "container_spec": container} for pool in hardware.worker_pools()]
        told = {"worker_pool_specs": json.loads(json.dumps(pools)), "scheduling": hardware.scheduling()}
        job = types.CustomJob({"display_name": "job", "job_spec": told})
        assert types.CustomJob.deserialize(types.CustomJob.serialize(job)) == job
        return job.job_spec

    return build


def test_every_choice_in_the_catalogue_builds_a_job(build):
    built = 0
    for choice in choices():
        for mode in choice.provisioning_modes:
            for replicas in [""] if choice.is_tpu else ["", "*3"]:
                reservation = "" if mode == "flex" else "+reservation=any"
                hardware = parse(f"{choice}{replicas}+{mode}+timeout=1d+restart+disk=pd-ssd:200{reservation}")
                specification = build(hardware)
                check(hardware, specification)
                built += 1
    assert built > 700


def check(hardware: Hardware, specification) -> None:
    """Check that the job's fields equal the choice."""
    chief, *others = specification.worker_pool_specs
    assert chief.replica_count == 1
    assert [pool.replica_count for pool in others] == [hardware.replicas - 1] * (hardware.replicas > 1)
    for pool in specification.worker_pool_specs:
        spec = pool.machine_spec
        assert spec.machine_type == hardware.machine
        assert spec.tpu_topology == (hardware.topology or "")
        attached = hardware.accelerator is not None and hardware.topology is None
        assert spec.accelerator_count == (hardware.count if attached else 0)
        assert bool(spec.accelerator_type) == (attached and hardware.accelerator != "gpu")
        assert pool.disk_spec.boot_disk_size_gb == (hardware.disk_gb or 0)
        words = {(): 0, ("none",): 1, ("any",): 2}
        affinity = spec.reservation_affinity
        assert affinity.reservation_affinity_type == words.get(hardware.reservation, 3)
        assert list(affinity.values) == [name for name in hardware.reservation if (name,) not in words]
    strategy = {"standard": 0, "spot": 4, "flex": 6}[hardware.provisioning]
    assert specification.scheduling.strategy == strategy
    assert specification.scheduling.timeout.total_seconds() == (hardware.timeout or 0)


def check_answer(choice, build) -> None:
    """Check that the text is a valid choice, or refused with a valid closest choice."""
    try:
        hardware = parse(choice)
    except UserError as error:
        assert error.allowed
        assert error.fix
        if error.setting == "hardware" and error.nearest:
            assert str(parse(error.nearest)) == error.nearest
        return
    text = str(hardware)
    assert parse(text) == hardware
    assert str(parse(text)) == text
    check(hardware, build(hardware))


words = st.sampled_from([*NAMES, "cpu", *MACHINES, "spot", "flex", "restart", "2x4", "2x2x1", "8", "0", "timeout=1d"])
bases = st.one_of(
    st.just("cpu"),
    st.builds("{}x{}".format, st.sampled_from(NAMES), st.integers(0, 17)),
    st.builds("{}-{}".format, st.sampled_from(NAMES), st.integers(0, 4096)),
    st.builds(
        "{}-{}x{}".format, st.sampled_from(NAMES), st.integers(0, 16), st.sampled_from(["1", "2", "4", "8", "2x2"])
    ),
)
options = st.one_of(
    st.builds("*{}".format, st.integers(0, 1200)),
    st.builds("@{}".format, st.sampled_from(MACHINES)),
    st.sampled_from(["+spot", "+flex", "+standard", "+restart", "+reservation=any", "+disk=pd-standard"]),
    st.builds("+disk=pd-ssd:{}".format, st.integers(0, 70_000)),
    st.builds("+timeout={}{}".format, st.integers(0, 200), st.sampled_from(["", "s", "m", "h", "d"])),
    st.builds("+wait={}{}".format, st.integers(0, 999_999_999), st.sampled_from(["", "s", "m", "h", "d"])),
)
near_choices = st.builds(lambda base, rest: base + "".join(rest), bases, st.lists(options, max_size=4))
pieces = st.lists(st.one_of(words, st.sampled_from(list("x-*@+=:,."))), max_size=8).map("".join)


@given(choice=near_choices)
def test_near_choices(build, choice):
    check_answer(choice, build)


suffixes = st.tuples(
    st.sampled_from(["", "*3"]),
    st.sampled_from(["", "+standard", "+spot", "+flex"]),
    st.sampled_from(["", "+reservation=any", "+reservation=none", "+reservation=projects/p/zones/z-a/reservations/r"]),
    st.sampled_from(["", "+disk=pd-ssd", "+disk=200", "+disk=pd-standard:300"]),
    st.sampled_from(["", "+restart"]),
    st.sampled_from(["", "+timeout=1d"]),
    st.sampled_from(["", "+wait=2h"]),
).map("".join)


@given(base=st.sampled_from(["cpu", "l4x1", "h100x8", "tpu-v5e-2x4"]), suffix=suffixes)
@example(base="cpu", suffix="+reservation=none")
def test_every_combination_of_options_builds_a_job_or_is_refused(build, base, suffix):
    check_answer(base + suffix, build)


@given(choice=st.one_of(st.text(), st.text(string.printable, max_size=40), pieces))
@example(choice="tpu-v5e-" + "9" * 5000 + "x2")
@example(choice="cpu*" + "9" * 900)
@example(choice="t4x٣")
@example(choice="t4x2" + "+spot" * 10_000)
@example(choice="cpu+disk=:")
@example(choice="cpu+reservation=,")
@example(choice="tpu-v5e-0x0")
def test_no_text_crashes_the_parser(build, choice):
    check_answer(choice, build)


values = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), words, near_choices, st.lists(words)
)


@given(mapping=st.dictionaries(st.one_of(st.sampled_from([*KEYS, "choice"]), st.text(max_size=5)), values, max_size=5))
def test_no_mapping_crashes_the_parser(build, mapping):
    check_answer(mapping, build)
