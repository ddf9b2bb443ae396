"""Transfer learning on the tensorflow engine: a backbone with BatchNormalization, from a file, on two replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.trainer.checkpoint.store import Checkpoints
from slipway.trainer.weights import WeightsSettings
from tests.trainer.conftest import DataSets

pytestmark = pytest.mark.usefixtures("networks")
SAVING = {"checkpoint": {"every_steps": 4, "every_seconds": None}}


@pytest.fixture(scope="module")
def images(data_sets: DataSets, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """48 training examples in 4 shards and 8 validation examples, 32 x 32 pixels."""
    folder = tmp_path_factory.mktemp("data") / "images"
    data_sets.write(folder, train=[12, 12, 12, 12], validation=[4, 4], size=(32, 32))
    return folder


@pytest.mark.long
def test_a_backbone_with_batch_normalization_ends_with_the_same_weights_when_a_replica_is_killed(
    images: Path, tmp_path: Path, workers: Any, make_job: Any
) -> None:
    import sample_networks

    random = np.random.default_rng(5)
    saved = sample_networks.backbone((32, 32, 1), 3).get_layer("mobilenet")
    for variable in saved.variables:
        variable.assign(random.uniform(0.1, 0.2, variable.shape).astype(np.float32))
    saved.save_weights(tmp_path / "backbone.weights.h5")
    config = make_job(
        images, steps=18, steps_per_epoch=6, replicas=2, builder="sample_networks:backbone", steps_per_call=1,
        stages=[{"steps": 7, "trainable": ["head"]}, {"steps": 11}], **SAVING,
    )  # fmt: skip
    weights = WeightsSettings(file=str(tmp_path / "backbone.weights.h5"))
    config = config.model_copy(update={"model": config.model.model_copy(update={"weights": weights})})
    whole = [worker.wait() for worker in workers.start_two(config, tmp_path / "whole")]
    assert [end.status for end in whole] == [0, 0], whole
    assert whole[0].checksum == whole[1].checksum

    chief, other = workers.start_two(config, tmp_path / "killed")
    chief.wait_for_checkpoint(4)
    other.process.kill()
    assert chief.wait().status == 138
    resumed = [worker.wait() for worker in workers.start_two(config, tmp_path / "killed")]
    assert [end.checksum for end in resumed] == [whole[0].checksum] * 2, resumed
    assert "resuming from the checkpoint at step" in resumed[0].output

    last = Checkpoints(tmp_path / "whole" / "checkpoints", keep=3).newest()
    assert last is not None
    statistics = [array for name, array in last.state.items() if name.startswith("model/") and "moving" in name]
    initial = [variable.numpy() for variable in saved.variables if "moving" in variable.path]
    as_in_the_file = [np.array_equal(own, other) for own, other in zip(statistics, initial, strict=True)]
    assert as_in_the_file == [True] * 2 * 3 + [False] * 2 * 4
