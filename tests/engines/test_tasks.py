"""Named inputs and all tasks on the engines jax and pytorch: the same results as a served model's, from raw values."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slipway.components.evaluate import contract
from slipway.components.evaluate.evaluate import batches
from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.core.manifest import Input
from slipway.serving import instances
from slipway.serving import model as serving
from slipway.trainer.export import examples
from tests.engines.conftest import ENGINE, HERE, Bench
from tests.trainer import feature_sets
from tests.trainer.conftest import NETWORKS

TASKS = ["classification", "multilabel", "regression"]


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from slipway.trainer.engines.quick_import import import_tensorflow

    import_tensorflow(ENGINE)
    folder = tmp_path_factory.mktemp("sets")
    found: dict[str, Bench] = {}

    def bench(task: str) -> Bench:
        if task not in found:
            feature_sets.every_kind(folder / task, task)
            found[task] = Bench(folder / task)
        return found[task]

    return bench


@pytest.fixture(autouse=True)
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(NETWORKS))
    monkeypatch.syspath_prepend(str(HERE / "networks"))


def job_of(bench: Bench, **settings: Any) -> Any:
    return bench.job(**{"steps": 60, "steps_per_epoch": 15, "builder": "named_networks:in_order", **settings})


def predictions(folder: Path, bench: Bench) -> Any:
    """Return the exported model's predictions or probabilities for the raw values of the validation split."""
    import tensorflow as tf

    from slipway.components.evaluate import served_model
    from slipway.trainer.data.features import Features

    features = Features(bench.manifest)
    paths = [str(bench.data / shard.file) for shard in bench.manifest.splits["validation"].shards]
    described = {name: tf.io.FixedLenFeature(spec.shape[1:], spec.dtype) for name, spec in features.requests().items()}
    stored = {served: name for name, served in bench.manifest.signature.items()}
    raw = list(tf.data.TFRecordDataset(paths).as_numpy_iterator())
    found = tf.io.parse_example(raw, {stored[name]: spec for name, spec in described.items()})
    requests = {name: found[stored[name]] for name in described}
    manifest = bench.manifest
    record = {"task": manifest.task, "classes": manifest.classes, "image_size": manifest.image_size}
    record |= {
        "channels": manifest.channels,
        "inputs": {name: one.model_dump() for name, one in manifest.inputs.items()},
    }
    (folder / "model.json").write_text(json.dumps(record))
    model = served_model.load(folder, manifest)
    values = model.predict(requests)[model.values]
    assert model.names == manifest.classes
    return values


@pytest.mark.parametrize("task", TASKS)
def test_the_exported_model_predicts_from_raw_values_what_was_validated(
    benches: Any, tmp_path: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examples, "SPLIT", "validation")  # these sets have no test split
    bench = benches(task)
    config = job_of(bench)
    engine = bench.engine(config)
    losses = engine.run(bench.training(config), 0, np.full(60, 0.01, np.float32)).losses
    assert losses[-10:].mean() < losses[:10].mean()
    measured = engine.evaluate(bench.validation(16))
    engine.export(tmp_path, config, bench.manifest)
    found = predictions(tmp_path, bench)
    stored = json.loads((tmp_path / examples.FILE_NAME).read_text())
    np.testing.assert_allclose(stored["values"], found[: examples.EXAMPLES], rtol=1e-4, atol=1e-5)
    (sample,) = batches(
        [bench.data / shard.file for shard in bench.manifest.splits["validation"].shards], bench.manifest, 40
    )
    model = serving.load(tmp_path)
    assert contract.fault(model, sample.part(0, examples.EXAMPLES)) is None
    answers = model.predict_padded(instances.arrays(model, stored["instances"]))
    np.testing.assert_allclose(answers[model.values], stored["values"], rtol=1e-4, atol=1e-4)
    stored["values"][1] = (np.array(stored["values"][1]) * 1.01 + 0.01).tolist()
    (tmp_path / examples.FILE_NAME).write_text(json.dumps(stored))
    assert "differs by" in str(contract.fault(model, sample.part(0, examples.EXAMPLES)))
    decoded = bench.validation(40).batches()
    _, labels, _ = next(decoded)
    target = bench.manifest.target
    if target is not None:
        outputs = (found - target.mean[0]) / target.deviation[0]
        assert measured.loss == pytest.approx(np.square(outputs - labels).mean(), rel=1e-3)
        assert measured.metric == pytest.approx(np.abs(outputs - labels).mean() * target.deviation[0], rel=1e-3)
    elif task == "multilabel":
        assert measured.metric == pytest.approx(((found > 0.5) == labels).mean())
        chances = np.where(labels > 0, found, 1 - found)
        assert measured.loss == pytest.approx(-np.log(chances).mean(), rel=1e-3)
    else:
        assert measured.metric == pytest.approx((found.argmax(1) == labels).mean())
        assert measured.loss == pytest.approx(-np.log(found[np.arange(40), labels]).mean(), rel=1e-3)


def test_streamed_and_accumulated_it_is_the_same_training(benches: Any) -> None:
    bench, rates = benches("multilabel"), np.full(4, 0.01, np.float32)
    found = []
    for settings in ({}, {"accumulation": 2}):
        config = job_of(bench, builder="named_networks:mixed", **settings)
        found.append(bench.engine(config).run(bench.training(config), 0, rates))
    np.testing.assert_allclose(found[0].losses, found[1].losses, rtol=1e-4)
    np.testing.assert_allclose(found[0].values, found[1].values, rtol=1e-4)
    config = job_of(bench, builder="named_networks:mixed")
    engine = bench.engine(config)
    streamed = engine.run(bench.training(config, budget=0), 0, rates)
    assert np.isfinite(streamed.losses).all()
    assert engine.work().step_flops


def test_a_head_of_the_wrong_size_is_refused(benches: Any) -> None:
    bench = benches("regression")
    with pytest.raises(UserError, match="the target is a number: regression needs one number"):
        bench.engine(job_of(bench, builder="named_networks:too_wide"))


@pytest.mark.engine("pytorch")
def test_a_module_receives_the_inputs_by_name_images_channels_first(benches: Any, tmp_path: Path) -> None:
    bench = benches("regression")
    config = job_of(bench, builder="torch_networks:named", learning_rate=0.01)
    engine = bench.engine(config)
    losses = engine.run(bench.training(config), 0, np.full(60, 0.01, np.float32)).losses
    assert losses[-10:].mean() < losses[:10].mean()
    measured = engine.evaluate(bench.validation(16))
    engine.export(tmp_path, config, bench.manifest)
    target = bench.manifest.target
    _, labels, _ = next(bench.validation(40).batches())
    errors = np.abs(predictions(tmp_path, bench) - (labels * target.deviation[0] + target.mean[0]))
    assert measured.metric == pytest.approx(errors.mean(), rel=1e-3)
    assert manifests.read(bench.data).task == "regression"


@pytest.mark.engine("pytorch")
def test_the_served_module_returns_a_logarithmic_target_in_its_unit() -> None:
    import torch

    from slipway.trainer.engines.pytorch.export import _Served

    target = Input(kind="number", mean=(8.0,), deviation=(1.5,), logarithmic=True)
    about: Any = SimpleNamespace(task="regression", inputs={}, all_inputs={}, target=target)
    predicted = _Served(torch.nn.Identity(), about)(torch.tensor([[0.0], [1.0]]))
    np.testing.assert_allclose(predicted, np.exp([8.0, 9.5]), rtol=1e-5)
