"""Run with `make test`."""

import unittest

import numpy as np
from model import build

from slipway.core.manifest import Input


class TestModel(unittest.TestCase):
    """The network in model.py."""

    def test_words_after_the_text_change_nothing(self) -> None:
        """A text of two words, in batches of texts of two and of five words."""
        words = np.array([[2, 3, 0, 0, 0]], "int32")
        outputs = []
        for length in (2, 5):
            inputs = {"text": Input(kind="text", shape=(length,), vocabulary=("a", "b"))}
            network = build(inputs, outputs=3)
            network.set_weights([np.ones(each.shape) / 7 for each in network.get_weights()])
            outputs.append(network.predict({"text": words[:, :length]}, verbose=0))
        np.testing.assert_allclose(*outputs, rtol=1e-4)
