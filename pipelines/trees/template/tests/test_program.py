"""Run with `make test`."""

import tempfile
import unittest
from pathlib import Path

import numpy as np
from program import SETTINGS

from slipway.trainer.trees.bagging import Bagging
from slipway.trainer.trees.table import Table


class TestProgram(unittest.TestCase):
    """The settings in program.py."""

    def test_they_learn_a_step(self) -> None:
        x = np.linspace(0, 1, 400, dtype="float32")[:, None]
        y = (x[:, 0] > 0.5).astype("float32")
        rows = Table(x, y, categories=[], groups=None, classes=0)
        with tempfile.TemporaryDirectory() as folder:
            boosters = Bagging(SETTINGS, folds=2, rounds=200).train(rows, Path(folder), lambda *_, **__: None)
        self.assertGreater(boosters[0].predict([[0.9]])[0], 0.9)
        self.assertLess(boosters[1].predict([[0.1]])[0], 0.1)
