"""Run with `make test`."""

import unittest

from model import build


class TestModel(unittest.TestCase):
    """The network in model.py."""

    def test_it_outputs_one_logit_per_class(self) -> None:
        self.assertEqual(build((8, 8, 1), classes=10).output_shape, (None, 10))
