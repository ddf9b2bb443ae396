"""Stages of the training with the engine: Keras layers and, on pytorch, modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.core.errors import UserError
from tests.engines.conftest import ENGINE, Bench
from tests.trainer.staged_runs import STAGES, check

BUILDERS = ["sample_networks:fine_tuned", *(["torch_networks:fine_tuned"] if ENGINE == "pytorch" else [])]


@pytest.mark.parametrize("builder", BUILDERS)
def test_each_stage_trains_its_layers_and_resumes_exactly(bench: Bench, tmp_path: Path, builder: str) -> None:
    config = bench.job(builder=builder, **STAGES)
    check(bench.engine(config), config, tmp_path)


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_pattern_that_matches_no_layer_is_refused(bench: Bench, builder: str) -> None:
    stages = [{"steps": 11, "trainable": ["backbones"]}]
    with pytest.raises(UserError) as caught:
        bench.engine(bench.job(builder=builder, **{**STAGES, "stages": stages}))
    assert (caught.value.setting, caught.value.nearest) == ("train.stages.0.trainable", "backbone")


@pytest.mark.engine("pytorch")
def test_modules_match_by_their_names_with_dots(bench: Bench) -> None:
    stages = [{"steps": 11, "trainable": ["backbone.1", "head"]}]
    engine = bench.engine(bench.job(builder="torch_networks:fine_tuned", **{**STAGES, "stages": stages}))
    trained = [name for name, each in engine._network.inner.named_parameters() if each.requires_grad]
    assert trained == ["backbone.1.weight", "backbone.1.bias", "head.weight", "head.bias"]
