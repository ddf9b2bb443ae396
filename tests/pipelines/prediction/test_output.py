"""The cells of CSV files of predictions."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
from pathlib import Path

import numpy as np
import pytest

from slipway.pipelines.prediction import output
from slipway.pipelines.prediction.output import Format
from slipway.pipelines.prediction.prediction import Answers
from slipway.serving import instances
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
    answers = Answers([key], {"prediction": np.array([-2.5])}, {})
    assert output.lines(answers, Format.csv, model("regression"), errors=False).rstrip("\n") == f"{cell},-2.5"


def test_labels_are_separated_as_in_a_table_to_train_on() -> None:
    answers = Answers(["a.png"], {"probabilities": np.array([[0.9, 0.5]])}, {})
    assert output.lines(answers, Format.csv, model("multilabel"), errors=False) == "a.png,sea|sun,0.9,0.5\n"


PROBABILITIES = np.random.default_rng(0).random((5, 2)).astype(np.float32)
OUTPUTS = {
    "classification": {"probabilities": PROBABILITIES},
    "multilabel": {"probabilities": PROBABILITIES},
    "regression": {"prediction": np.array([[1e-7], [-2.5], [1e30], [0.1], [3]], np.float32)},
    "additional": {"prediction": np.ones(5, np.float32), "other": PROBABILITIES},
}
KEYS = ["line 2", 'a", "b', "back\\slash", "Zürich \udcff", "=1+1"]


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("failed", [{}, {1: "no number"}, dict.fromkeys(range(5), "none")])
def test_lines_are_the_json_and_the_cells_of_each_prediction(name: str, failed: dict[int, str]) -> None:
    task: TaskName = "regression" if name == "additional" else name  # type: ignore[assignment]
    one = model(task)
    sound = [index for index in range(5) if index not in failed]
    outputs = {key: values[sound] for key, values in OUTPUTS[name].items()} if sound else {}
    answers = Answers(KEYS, outputs, failed)
    words = dict(zip(sound, instances.in_words(one, outputs), strict=True))
    expected = [
        {"input": key, **({"error": failed[index]} if index in failed else {"prediction": words[index]})}
        for index, key in enumerate(KEYS)
    ]
    found = output.lines(answers, Format.jsonl, one)
    assert found == "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in expected)
    kept = output.lines(answers, Format.jsonl, one, errors=False)
    assert kept.splitlines() == [line for line in found.splitlines() if '"error"' not in line]
    rows = list(csv.reader(io.StringIO(output.header(Format.csv, one) + output.lines(answers, Format.csv, one))))
    assert [row[0] for row in rows] == ["input", *KEYS[:-1], "'=1+1"]
    assert len({len(row) for row in rows}) == 1
    assert [row[-1] for row in rows] == ["error", *(failed.get(index, "") for index in range(5))]
    for index in sound:
        numbers = words[index].get("probabilities") or [words[index]["prediction"]]
        assert rows[index + 1][-1 - len(numbers) : -1] == [repr(each) for each in numbers]


def test_the_first_error_is_reported_when_the_unfinished_file_cannot_be_removed_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_path: Path, **_named: bool) -> None:
        raise OSError(errno.EIO, "removing failed")

    monkeypatch.setattr(Path, "unlink", fail)
    with pytest.raises(OSError, match="No space left"), output.opened(tmp_path / "out.jsonl"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
