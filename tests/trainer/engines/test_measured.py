"""A step that is timed on this machine's CPUs, on its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.pipelines.hardware import compiled
from slipway.trainer.config import JobConfig, ModelSettings, TrainSettings
from slipway.trainer.data import inputs
from slipway.trainer.engines.measured import FEW_EXAMPLES, Rates, Request, rates


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    data = prepare(DataSettings(source="digits", store=str(tmp_path_factory.mktemp("digits"))), 1).folder
    train = TrainSettings.model_validate({"batch_size": 64, "steps": 100})
    return compiled.job_of(ModelSettings(builder="slipway.trainer.models.digits:build"), train, data)


def test_few_and_many_examples_are_timed(job: JobConfig) -> None:
    measured = rates(Request(job=job, seconds=0.02))
    few, *_ = measured.steps
    assert few == FEW_EXAMPLES
    assert all(seconds > 0 for seconds in measured.steps.values())
    assert max(measured.steps) <= 64
    assert measured.trainable == 4 * 71_754
    assert measured.examples is None  # the split is decoded once, into memory
    assert all(peak > 2**26 for peak in measured.peaks.values())


def test_a_split_that_is_streamed_is_read_and_decoded(job: JobConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MEMORY_BUDGET", 1000)
    measured = rates(Request(job=job, seconds=0.02))
    assert measured.examples is not None and measured.examples > 100


def test_a_step_between_and_beyond_what_was_timed() -> None:
    measured = Rates(cores=2, steps={8: 0.3, 64: 1.7})
    assert [measured.step(batch) for batch in (8, 64, 128)] == pytest.approx([0.3, 1.7, 3.3])
    assert Rates(cores=2, steps={8: 0.4}).step(16) == pytest.approx(0.8)


def test_rates_are_read_back(tmp_path: Path) -> None:
    measured = Rates(cores=2, steps={8: 0.3, 64: 1.7}, peaks={8: 5})
    assert Rates.model_validate_json(measured.model_dump_json()) == measured
