"""Run with `make test`."""

import unittest

from program import network


class TestProgram(unittest.TestCase):
    """The network in program.py."""

    def test_it_outputs_one_logit_per_class(self) -> None:
        self.assertEqual(network((8, 8, 1), classes=10).output_shape, (None, 10))
