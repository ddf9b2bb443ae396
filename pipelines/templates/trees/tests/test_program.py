"""Run with `make test`."""

import types
import unittest

import numpy as np
from program import fitted


class TestProgram(unittest.TestCase):
    """The estimator in program.py."""

    def test_it_learns_a_step(self) -> None:
        x = np.linspace(0, 1, 400, dtype="float32")[:, None]
        y = (x[:, 0] > 0.5).astype("float32")
        data = types.SimpleNamespace(table=lambda _split: (x, y), manifest=types.SimpleNamespace(target=True))
        model, loss = fitted(data, 200)
        self.assertLess(loss, 0.01)
        self.assertGreater(model.predict([[0.9]])[0], 0.9)
