"""The summary table at the end of training."""

from __future__ import annotations

from typing import Any

import pytest

from slipway.trainer.metrics.summary import ROWS, better_epoch, table


def history(epochs: int, validated: bool = True) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        for half in (0.5, 0.0):
            done = epoch - half
            metrics = {"loss": 9.0, "accuracy": 0.0, "steps_per_second": 123.45}  # of the last log window
            if not half:
                metrics |= {"epoch_loss": 1 / done, "epoch_accuracy": 0.5}
            records.append({"kind": "train", "step": int(20 * done), "epoch": done, **metrics})
        if validated:
            records.append(
                {"kind": "validation", "step": 20 * epoch, "epoch": float(epoch), "loss": 2.0, "accuracy": 0.25}
            )
    return records


def test_a_line_an_epoch() -> None:
    lines = table(history(3), "accuracy")
    assert lines[0].split() == ["epoch", "step", "loss", "accuracy", "validation", "loss", "validation", "accuracy",
                                "steps/s"]  # fmt: skip
    assert lines[2].split() == ["2.00", "40", "0.5000", "0.5000", "2.0000", "0.2500", "123.5"]
    assert len(lines) == 4


def test_the_best_and_the_exported_epoch_are_marked() -> None:
    lines = table(history(3), "accuracy", best_step=40, exported_step=60)
    assert [line.split()[-1] for line in lines[-3:]] == ["123.5", "best", "exported"]
    assert table(history(3), "accuracy", 40, 40)[-2].split()[-1] == "exported"


@pytest.mark.parametrize(
    ("monitor", "sentence"),
    [
        ("loss", "validation loss was lowest in epoch 2; --set train.export=best exports it"),
        ("accuracy", "validation accuracy was highest in epoch 1; --set train.export=best exports it"),
    ],
)
def test_a_better_epoch_than_the_exported_one_is_said(monitor: str, sentence: str) -> None:
    measured = zip((20, 40, 60), (0.3, 0.2, float("nan")), (0.9, 0.8, 0.8), strict=True)
    records = [
        {"kind": "validation", "step": step, "epoch": step / 20, "loss": loss, "accuracy": accuracy}
        for step, loss, accuracy in measured
    ]
    assert better_epoch(records, monitor, 60) == sentence
    assert better_epoch(records, monitor, 20 if monitor == "accuracy" else 40) is None
    assert better_epoch(history(3), monitor, 60) is None  # all are equal
    assert better_epoch(history(3, validated=False), monitor, 60) is None


def test_a_header_wider_than_the_terminal_has_a_line_for_each_word() -> None:
    records = [
        {name.replace("accuracy", "label_accuracy"): value for name, value in record.items()} for record in history(3)
    ]
    lines = table(records, "label_accuracy", best_step=40, exported_step=60)
    assert max(map(len, lines)) <= 78
    assert [line.split() for line in lines[:3]] == [
        ["validation"],
        ["label", "validation", "label"],
        ["epoch", "step", "loss", "accuracy", "loss", "accuracy", "steps/s"],
    ]


def test_a_long_run_is_thinned_with_the_best_and_the_last_in_it() -> None:
    lines = table(history(100), "accuracy", best_step=20 * 77)
    assert len(lines) == ROWS + 2
    assert [line.split()[0] for line in lines if line.endswith("best")] == ["77.00"]
    assert lines[-1].split()[0] == "100.00"


def test_without_validation_its_columns_are_omitted() -> None:
    lines = table(history(2, validated=False), "accuracy")
    assert [line.split()[:3] for line in lines] == [["epoch", "step", "loss"], ["1.00", "20", "1.0000"],
                                                    ["2.00", "40", "0.5000"]]  # fmt: skip
    assert "validation" not in lines[0]
