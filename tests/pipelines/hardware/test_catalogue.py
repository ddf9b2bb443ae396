"""The catalogue is valid, and invalid rows are refused."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import TypeAdapter

from slipway.pipelines.hardware.catalogue import CATALOGUE_FILE, Catalogue, build, chips_of, load
from slipway.pipelines.hardware.command import listing


@pytest.fixture
def values():
    return json.loads(CATALOGUE_FILE.read_text())


def test_every_machine_and_accelerator_is_listed():
    offers = [offer for kind in listing() for offer in kind["offers"]]
    assert len(offers) == 183  # and v2's and v3's slices, K80 and TPU_V5_LITEPOD, which have no machine of their own
    assert sum(offer["accelerator"] is None for offer in offers) == 80
    gpus = [offer for offer in offers if not (offer["accelerator"] or "tpu").startswith("tpu")]
    assert len(gpus) == 92
    assert all(offer["counts"] for offer in gpus)


def test_memory_per_device():
    catalogue = load()
    memory = {row.name: row.device_memory_gb for row in catalogue.accelerators}
    assert memory["tpu-v2"] == 8  # a core's half of a chip
    assert memory["tpu-v3"] == 16
    assert memory["tpu-v5e"] == 16
    assert memory["l4"] == 24


def test_engines_that_run_there():
    engines = {row.name: set(row.engines) for row in load().accelerators if row.status == "offered"}
    without_tensorflow = {name for name, runs in engines.items() if "tensorflow" not in runs}
    assert without_tensorflow == {"tpu-v6e", "tpu7x"}
    assert all("jax" in runs for runs in engines.values())


def test_retired_hardware_has_an_offered_replacement():
    catalogue = load()
    ended = [row for row in catalogue.accelerators if row.status not in ("offered", "here")]
    assert {row.name for row in ended} == {"k80", "p100", "tpu-v4", "tpu-v5p", "tpu-v5-litepod"}
    for row in ended:
        assert row.replacements
        assert all(catalogue.accelerator_index[name].status == "offered" for name in row.replacements)


def test_regions_are_regions():
    for row in load().accelerators:
        for region in (*row.regions, *(row.slices.regions if row.slices else ()), *row.default_quota):
            assert region == "*" or re.fullmatch(r"[a-z]+-[a-z]+\d+", region), (row.name, region)


def test_images_have_an_end_date():
    ends = load().prebuilt_images
    assert len(ends) == 89
    assert ends["tf-gpu.2-17.py310"].isoformat() == "2026-07-11"


# The loader does not check types, because pydantic's import takes longer than everything else in `slipway hardware`.
TYPES = TypeAdapter(Catalogue)


def test_every_value_has_the_type_of_its_field(values):
    assert TYPES.validate_json(json.dumps(values), strict=True) == load()


@pytest.mark.parametrize(
    "break_it",
    [
        lambda v: v["machines"][0].update(vcpus="four"),
        lambda v: v["machines"][0].update(vcpus=True),
        lambda v: v["machines"][0].update(vcpus=4.5),
        lambda v: v["accelerators"][0].update(provisioning=["cheap"]),
        lambda v: v["accelerators"][0].update(regions="us-central1"),
    ],
)
def test_a_value_of_another_type_is_found(values, break_it):
    break_it(values)
    with pytest.raises(ValueError, match="validation error"):
        TYPES.validate_json(json.dumps(values), strict=True)


def test_sizes_are_positive():
    catalogue = load()
    sizes = [size for machine in catalogue.machines for size in (machine.vcpus, machine.memory_gb, machine.chips)]
    sizes += [count for machine in catalogue.machines for counts in machine.accelerators.values() for count in counts]
    sizes += [row.memory_gb for row in catalogue.accelerators if row.status != "here"]
    assert all(size > 0 for size in sizes if size is not None)
    assert all(quota >= 0 for row in catalogue.accelerators for quota in row.default_quota.values())


def check_names(catalogue: Catalogue) -> None:
    """Check that names are unique and that every name a row refers to exists."""
    names = [name for row in catalogue.accelerators for name in row.names]
    names += [machine.name for machine in catalogue.machines]
    assert {name for name in names if names.count(name) > 1} == set()
    assert catalogue.cpu_machine in catalogue.machine_index
    accelerators = {row.name for row in catalogue.accelerators}
    for machine in catalogue.machines:
        assert {*machine.accelerators, *([machine.tpu] if machine.tpu else [])} <= accelerators
        assert catalogue.family(machine) or machine.accelerators or machine.tpu
    for row in (*catalogue.families, *catalogue.accelerators):
        assert row.certainty in catalogue.certainties
        assert set(row.source) <= set(catalogue.sources)
        assert set(getattr(row, "replacements", ())) <= accelerators


def check_topologies(catalogue: Catalogue) -> None:
    """Check that topologies are on as many machines as their chips need."""
    for machine in catalogue.machines:
        for topology, machines in machine.topologies.items():
            assert chips_of(topology) == machine.chips * machines, machine.name


def test_rows_are_consistent():
    check_names(load())
    check_topologies(load())


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda v: v["machines"][0].update(vcpu=4), "unexpected keyword argument 'vcpu'"),
        (lambda v: v["machines"][0].pop("vcpus"), "missing 1 required keyword-only argument: 'vcpus'"),
    ],
)
def test_a_row_with_another_key_is_refused(values, break_it, message):
    break_it(values)
    with pytest.raises(TypeError, match=message):
        build(values)


@pytest.mark.parametrize(
    "break_it",
    [
        lambda v: v["accelerators"][0].update(certainty="quite"),
        lambda v: v["accelerators"][0].update(source=["hearsay"]),
        lambda v: v["accelerators"][0].update(replacements=["t5"]),
        lambda v: v["accelerators"][0].update(aliases=["l4"]),
        lambda v: v["machines"].append(v["machines"][0]),
        lambda v: v["machines"][0]["accelerators"].update(t5=[1]),
        lambda v: v["machines"][-3]["topologies"].update({"2x2x1": 2}),
        lambda v: v.update(cpu_machine="n1-standard-3"),
    ],
)
def test_a_wrong_row_is_found(values, break_it):
    break_it(values)
    catalogue = build(values)
    with pytest.raises(AssertionError):
        check_names(catalogue)
        check_topologies(catalogue)
