"""Run with `make test`."""

import unittest

from model import build

from slipway.core.manifest import Input


class TestModel(unittest.TestCase):
    """The network in model.py."""

    def test_it_outputs_one_number(self) -> None:
        inputs = {"bmi": Input(kind="number"), "sex": Input(kind="category", vocabulary=("group 1", "group 2"))}
        self.assertEqual(build(inputs, outputs=1).output_shape, (None, 1))
