"""Who is notified of a run on this machine: not of a run that is a part of something larger."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from slipway.components.notify import channels
from slipway.pipelines.config.config import validate
from slipway.pipelines.notification.notification import notify
from slipway.pipelines.runs.record import Part, RunRecord, StepRecord

STEPS = ("prepare_data", "train", "evaluate", "register_model")


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (None, 1),
        (Part(first="evaluate", last="register_model"), 1),
        (Part(first="plan_training", last="train"), 0),
        (Part(first="plan_training", last="evaluate"), 0),
    ],
)
def test_trials_and_repeats_notify_nobody(monkeypatch: pytest.MonkeyPatch, part: Part | None, sent: int) -> None:
    notices: list[object] = []
    monkeypatch.setattr(channels, "send", lambda _settings, notice, _endpoints: notices.append(notice) or [])
    config = validate(
        {
            "name": "digits",
            "data": {"source": "digits"},
            "model": {"builder": "slipway.trainer.models.digits:build"},
            "train": {"epochs": 1},
            "notify": {"topic": "projects/p/topics/outcomes"},
        },
        "test.yaml",
    )
    record = RunRecord(
        run_id="digits-1", name="digits", platform="local", hardware="cpu", status="succeeded", part=part,
        created=datetime.now(UTC), steps=[StepRecord(name=name) for name in STEPS],
    )  # fmt: skip
    assert notify(config, record) == []
    assert len(notices) == sent
