"""Run with `make test`."""

import unittest
from pathlib import Path

import yaml

from slipway.trainer.models.pretrained import build
from slipway.trainer.weights import WeightsSettings, load_keras

MODEL = yaml.safe_load((Path(__file__).parents[1] / "slipway.yaml").read_text())["model"]


class TestNetwork(unittest.TestCase):
    """The network that slipway.yaml describes."""

    def test_the_file_of_weights_fits_the_backbone(self) -> None:
        network = build((224, 224, 3), classes=5, **MODEL["arguments"])
        before = network.get_weights()
        load_keras(network, WeightsSettings(**MODEL["weights"]))
        self.assertFalse(all((old == new).all() for old, new in zip(before, network.get_weights(), strict=True)))
        self.assertEqual(network.output_shape, (None, 5))
