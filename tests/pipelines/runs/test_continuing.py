"""What may change when a run is resumed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipway.core.errors import UserError
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.continuing import CHANGEABLE, resumed_configuration
from slipway.pipelines.runs.record import RunFolder, RunRecord, StepRecord
from tests.pipelines.tuning.test_study import RATE, configuration


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return runs.create(configuration(RATE), tmp_path / "my runs")


def record_of(folder: RunFolder) -> RunRecord:
    return RunRecord(
        run_id=folder.run_id, name="digits", platform="vertex", hardware="cpu", created=datetime.now(UTC),
        steps=[StepRecord(name="train")],
    )  # fmt: skip


def test_what_the_weights_do_not_depend_on_may_change(folder: RunFolder) -> None:
    changes = ["budget=5", "notify.email=[a@b.org]", "track.mlflow=http://host:5000"]
    changed = resumed_configuration(folder, record_of(folder), changes, None)
    assert changed.notify is not None
    assert changed.track is not None
    assert (changed.budget, changed.notify.email, changed.track.mlflow) == (5, ["a@b.org"], "http://host:5000")


def test_a_refusal_names_all_that_may_change(folder: RunFolder) -> None:
    with pytest.raises(UserError) as caught:
        resumed_configuration(folder, record_of(folder), ["train.epochs=9"], None)
    assert all(name in str(caught.value.allowed) for name in CHANGEABLE)
