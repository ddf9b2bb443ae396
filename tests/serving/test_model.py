"""A loaded model."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from slipway.serving import model
from tests.components.evaluate.conftest import png


def test_threads_that_ask_a_new_model_at_once_all_learn_each_class_once(classifier_folder: Path) -> None:
    """The evaluation predicts in threads; the first answers have the classes."""
    interval = sys.getswitchinterval()
    images = np.array([png(np.zeros((8, 8)))] * 2, dtype=object)
    try:
        sys.setswitchinterval(1e-6)
        for _ in range(8):
            loaded = model.load(classifier_folder)
            together = threading.Barrier(8)

            def ask(loaded: model.Model = loaded, together: threading.Barrier = together) -> list[str] | None:
                together.wait(60)
                return loaded.function(dict.fromkeys(loaded.inputs, images))[0]

            with ThreadPoolExecutor(8) as pool:
                answers = [answer.result() for answer in [pool.submit(ask) for _ in range(8)]]
            assert [sorted(names or []) for names in answers] == [[str(digit) for digit in range(10)]] * 8
    finally:
        sys.setswitchinterval(interval)


def test_a_custom_function_has_to_return_a_prediction_for_each_instance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "all_but_one.py").write_text("def load(folder):\n    return lambda instances: instances[1:]\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    loaded = model.load(tmp_path / "model", "all_but_one:load")
    instances = np.array([{"a": 1}, {"a": 2}, {"a": 3}], object)
    with pytest.raises(model.NotServable, match="all_but_one:load returned 2 predictions for 3 instances"):
        loaded.predict({model.INSTANCES: instances})
