"""The cells of CSV files of predictions."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from slipway.pipelines.prediction import output
from slipway.pipelines.prediction.output import Format
from slipway.pipelines.prediction.prediction import Answer
from slipway.serving.model import Model
from slipway.trainer.tasks import TaskName


def model(task: TaskName) -> Model:
    return Model(Path(), task, {}, (), {}, lambda _: (None, {}), names=["sea", "sun"])


@pytest.mark.parametrize(
    ("key", "cell"),
    [
        ("=1+1", "'=1+1"), ("@a", "'@a"), ("+cmd|x", "'+cmd|x"), ("-x.png", "'-x.png"), ("\t=1", "'\t=1"),
        ("-5.5", "-5.5"), ("+1e3", "+1e3"), ("a=1", "a=1"),
    ],
)  # fmt: skip
def test_text_of_a_csv_file_is_no_formula_and_numbers_stay_numbers(key: str, cell: str) -> None:
    answer = Answer(key, prediction={"prediction": -2.5})
    assert output.lines([answer], Format.csv, model("regression"), errors=False).rstrip("\n") == f"{cell},-2.5"


def test_labels_are_separated_as_in_a_table_to_train_on() -> None:
    answer = Answer("a.png", prediction={"probabilities": [0.9, 0.5]})
    assert output.lines([answer], Format.csv, model("multilabel"), errors=False) == "a.png,sea|sun,0.9,0.5\n"


def test_the_first_error_is_reported_when_the_unfinished_file_cannot_be_removed_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path, **_named: bool) -> None:
        raise OSError(errno.EIO, "removing failed")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(OSError, match="No space left"), output.opened(tmp_path / "out.jsonl"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
