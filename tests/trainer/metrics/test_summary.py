"""The summary table at the end of training."""

from __future__ import annotations

from typing import Any

from slipway.trainer.metrics.summary import ROWS, table


def history(epochs: int, validated: bool = True) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for epoch in range(1, epochs + 1):
        for half in (0.5, 0.0):
            done = epoch - half
            figures = {"loss": 9.0, "accuracy": 0.0, "steps_per_second": 123.45}  # of the last log window
            if not half:
                figures |= {"epoch_loss": 1 / done, "epoch_accuracy": 0.5}
            records.append({"kind": "train", "step": int(20 * done), "epoch": done, **figures})
        if validated:
            records.append(
                {"kind": "validation", "step": 20 * epoch, "epoch": float(epoch), "loss": 2.0, "accuracy": 0.25}
            )
    return records


def test_a_line_an_epoch_with_the_best_marked() -> None:
    lines = table(history(3), "accuracy", best_step=40)
    assert lines[0].split() == ["epoch", "step", "loss", "accuracy", "validation", "loss", "validation", "accuracy",
                                "steps/s"]  # fmt: skip
    assert lines[2].split() == ["2.00", "40", "0.5000", "0.5000", "2.0000", "0.2500", "123.5", "best"]
    assert len(lines) == 4
    assert [line.endswith("best") for line in lines[1:]] == [False, True, False]


def test_a_long_run_is_thinned_with_the_best_and_the_last_in_it() -> None:
    lines = table(history(100), "accuracy", best_step=20 * 77)
    assert len(lines) == ROWS + 1
    assert [line.split()[0] for line in lines[1:] if line.endswith("best")] == ["77.00"]
    assert lines[-1].split()[0] == "100.00"


def test_without_validation_its_columns_are_left_out() -> None:
    lines = table(history(2, validated=False), "accuracy")
    assert [line.split()[:3] for line in lines] == [["epoch", "step", "loss"], ["1.00", "20", "1.0000"],
                                                    ["2.00", "40", "0.5000"]]  # fmt: skip
    assert "validation" not in lines[0]
