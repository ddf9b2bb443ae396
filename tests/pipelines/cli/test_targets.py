"""What a run costs at most, as `slipway config compile --json` prints it."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.pipelines.cli.targets import cost_of
from slipway.pipelines.config.config import load

ROOT = Path(__file__).parents[3]
VERTEX = "vertex={project: project-1, region: europe-west4, bucket: 'gs://bucket-1'}"
KUBEFLOW = "kubeflow={host: 'https://kubeflow.example', image: 'registry.example/steps:1', volume: data}"


@pytest.mark.extension("vertex", "kubeflow")
@pytest.mark.parametrize(
    ("target", "settings", "known", "unpriced"),
    [
        ("local", (), True, []),
        ("local", ("data.beam={runner: DataflowRunner}",), False, ["data.beam"]),
        ("vertex", (VERTEX,), True, []),
        ("vertex", (VERTEX, "deploy={endpoint: digits}"), False, ["deploy"]),
        ("kubeflow", (KUBEFLOW,), False, []),
    ],
)
def test_the_worst_case_is_known_only_if_all_that_costs_money_has_a_price(target, settings, known, unpriced):
    hardware = "cpu" if target == "local" else "l4x1+timeout=1h"
    config = load(ROOT / "configs/digits.yaml", settings, hardware)
    cost = cost_of(config, target)
    assert (cost["worst_case"] is not None, cost["unpriced"]) == (known, unpriced)
    if target == "vertex":
        (bill,) = cost["bills"]
        assert bill["worst_case"] == pytest.approx(4 * bill["per_hour"])
        assert cost["worst_case"] in (None, bill["worst_case"])
