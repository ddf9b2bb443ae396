"""A loaded model."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

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
