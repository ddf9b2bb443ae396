"""Tests of one engine per process, selected by SLIPWAY_TEST_ENGINE (make test-engines); skipped without it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core import manifest as manifests
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.distributed import cluster as clusters
from tests.trainer.conftest import NETWORKS, DataSets, Workers, job

ENGINE = os.environ.get("SLIPWAY_TEST_ENGINE", "")
HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Let all processes of the session share what XLA compiles for JAX, which is a third of the work of its tests."""
    if ENGINE == "jax" and not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="slipway-compiled-")
        config.add_cleanup(folder.cleanup)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder.name
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests of other engines."""
    for item in items:
        if HERE not in item.path.parents:
            continue
        only = item.get_closest_marker("engine")
        if not ENGINE:
            item.add_marker(pytest.mark.skip(reason="engines have a job of their own: make test-engines"))
        elif only and ENGINE not in only.args:
            item.add_marker(pytest.mark.skip(reason=f"for {' and '.join(only.args)}"))


class Bench:
    """A single-process engine and its training data."""

    def __init__(self, data: Path, name: str = ENGINE) -> None:
        self.data, self.manifest, self.name = data, manifests.read(data), name
        self.assignment = ShardAssignment(data, self.manifest, 0, 1)
        self._engine: Any = None

    def job(self, **settings: Any) -> JobConfig:
        return job(self.data, **{"steps": 100, "steps_per_epoch": 75, "engine": self.name, **settings})

    def engine(self, config: JobConfig) -> Any:
        """A new engine with the given network; of jax and pytorch, there is one per process."""
        from slipway.trainer.engines import base

        if self._engine is None or self.name == "tensorflow":
            self._engine = base.load(self.name)
            self._engine.open(clusters.read({}))
        self._engine.build(config, self.manifest)
        return self._engine

    def training(self, config: JobConfig, budget: int = 10**9) -> Any:
        from slipway.trainer.data import inputs

        plan = config.plan
        return inputs.training(
            self.assignment, plan.batch_per_replica, plan.steps_per_epoch, config.train.seed, budget=budget
        )

    def validation(self, batch: int) -> Any:
        from slipway.trainer.data import inputs

        return inputs.evaluation(self.assignment, "validation", batch)

    def probabilities(self, images: Any) -> Any:
        """The network's direct output for images float32 in [0, 1]: [n, classes]."""
        if ENGINE == "pytorch":
            import torch

            with torch.no_grad():
                logits = self._engine._network.eval()(torch.from_numpy(images)).numpy()
        else:
            self._engine._into_model()
            logits = np.asarray(self._engine._model(images, training=False))
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 training examples in 4 shards of different sizes, 50 validation examples in 2."""
    from slipway.trainer.engines.quick_import import import_tensorflow

    import_tensorflow(ENGINE)
    folder = tmp_path_factory.mktemp("data") / "tiny"
    DataSets().write(folder, train=[150, 149, 151, 150], validation=[26, 24])
    return folder


_benches: dict[Path, Bench] = {}


@pytest.fixture
def bench(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.syspath_prepend(str(NETWORKS))
    monkeypatch.syspath_prepend(str(HERE / "networks"))
    return _benches.setdefault(tiny, Bench(tiny))


@pytest.fixture
def workers() -> Any:
    workers = Workers()
    yield workers
    workers.stop()
