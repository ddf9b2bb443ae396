"""The training step, compiled by Google's compiler for TPUs that are not there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError
from slipway.pipelines.hardware import compiled
from slipway.pipelines.hardware.choice import choices
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.config import JobConfig, ModelSettings, TrainSettings
from slipway.trainer.engines.jax.ahead import ENVIRONMENT, Request

pytestmark = pytest.mark.engine("jax")
HARDWARE = "tpu-v5e-2x4"
# Of the digits' step on eight chips of v5e, as first compiled with libtpu 0.0.42.1.
PEAK_BYTES = 3_659_776
OPEN_ALL = """
import json, sys
from jax.experimental import topologies
for name, options in json.load(sys.stdin):
    found = topologies.get_topology_desc(topology_name=name, platform="tpu", **options)
    print(len(found.devices), len({device.process_index for device in found.devices}))
"""


@pytest.fixture
def job(tmp_path: Path) -> JobConfig:
    data = prepare(DataSettings(source="digits", store=str(tmp_path)), 1).folder
    train = TrainSettings.model_validate({"engine": "jax", "batch_size": 128, "steps": 100})
    return compiled.job_of(ModelSettings(builder="slipway.trainer.models.digits:build"), train, data)


def with_batch(job: JobConfig, batch: int) -> JobConfig:
    return job.model_copy(update={"train": job.train.model_copy(update={"batch_size": batch})})


def test_every_tpu_of_the_catalogue_has_a_topology_of_its_size() -> None:
    tpus = [choice for choice in choices() if choice.is_tpu and compiled.missing(choice, "jax") is None]
    asked = [compiled.topology(choice).model_dump(include={"name", "options"}) for choice in tpus]
    told = json.dumps([list(one.values()) for one in asked])
    ended = subprocess.run(
        [sys.executable, "-c", OPEN_ALL], input=told, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    expected = [f"{choice.accelerators_per_replica} {choice.machines_per_replica}" for choice in tpus]
    assert ended.stdout.splitlines() == expected
    assert len(expected) > 50


def test_the_step_is_compiled_and_a_batch_that_does_not_fit_is_refused(job: JobConfig) -> None:
    """Both at once: libtpu would let only one process of a machine use it."""
    with ThreadPoolExecutor(2) as pool:
        fits = pool.submit(compiled.compiled, parse(HARDWARE), job)
        too_large = pool.submit(compiled.compiled, parse(HARDWARE), with_batch(job, 2**24))
        answer = fits.result()
        with pytest.raises(UserError, match="Ran out of memory on HBM") as caught:
            too_large.result()
    assert (answer.devices, answer.kind, answer.fits) == (8, "TPU v5 lite", True)
    assert answer.peak_bytes == pytest.approx(PEAK_BYTES, rel=0.1)
    assert answer.collectives["all-reduce"] >= 1
    assert answer.seconds
    most = int(str(caught.value.nearest))
    assert 2**20 < most < 2**24
    assert most % 8 == 0


def test_the_step_is_compiled_for_gpus_that_are_not_there(job: JobConfig) -> None:
    answer = compiled.compiled(parse("t4x2"), job)
    assert (answer.devices, answer.kind, answer.fits) == (2, "Tesla T4", True)
    assert answer.peak_bytes
    assert answer.collectives["all-reduce"] >= 1
    assert answer.flops and answer.seconds == pytest.approx(answer.flops / 65e12)  # float16, as the engine chooses
    too_large = compiled.compiled(parse("t4x2"), with_batch(job, 2**24))
    assert not too_large.fits
    assert too_large.largest_batch and 2**18 < too_large.largest_batch < 2**24


def test_the_compiler_ends_with_the_process_that_waits_for_it(job: JobConfig) -> None:
    request = Request(job=job, topology=compiled.topology(parse(HARDWARE)), memory=2**34).model_dump_json()
    program = "import sys\nfrom slipway.pipelines.hardware import compiled\n" + (
        "from slipway.pipelines.hardware.rules import parse\nfrom slipway.trainer.engines.jax.ahead import Request\n"
        "compiled.compiled(parse(sys.argv[1]), Request.model_validate_json(sys.argv[2]).job)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program, HARDWARE, request])
    children: list[psutil.Process] = []
    while not children:
        assert parent.poll() is None
        time.sleep(0.05)
        children = psutil.Process(parent.pid).children(recursive=True)
    parent.send_signal(signal.SIGTERM)
    parent.wait()
    _, left = psutil.wait_procs(children, timeout=30)
    assert not left
