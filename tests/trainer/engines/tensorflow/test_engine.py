"""The tensorflow engine in this process, on one device."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core import manifest as manifests
from slipway.core.errors import UserError
from slipway.trainer.config import JobConfig
from slipway.trainer.data.assignment import ShardAssignment
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.engines import base

pytestmark = pytest.mark.usefixtures("tensorflow", "networks")


def engine_for(config: JobConfig) -> Any:
    engine = base.load("tensorflow")
    engine.open(clusters.read({}))
    engine.build(config, manifests.read(Path(config.data)))
    return engine


@pytest.fixture
def training(training_data: Any) -> Any:
    def training(config: JobConfig, budget: int = 10**9) -> Any:
        return training_data(config.plan.steps_per_epoch, config.train.seed, budget)

    return training


def rates(count: int, rate: float = 0.01) -> Any:
    return np.full(count, rate, np.float32)


def test_a_step_is_the_optimizers_step_on_the_mean_loss(tiny: Path, make_job: Any, training: Any) -> None:
    """Against a manually computed gradient, for a network without hidden layers and plain gradient descent."""
    config = make_job(
        tiny, steps=10, steps_per_epoch=75, builder="sample_networks:linear", optimizer="sgd", learning_rate=0.5
    )
    engine, data = engine_for(config), training(config)
    before = engine.state()
    kernel, bias = (before[name] for name in before if name.endswith(("kernel", "bias")))
    chosen = data.order(0, 1)[0]
    pixels = data.inputs[chosen].reshape(8, 64) / np.float32(255)
    logits = pixels @ kernel + bias
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    picked = probabilities[np.arange(8), data.labels[chosen]]
    difference = probabilities - np.eye(3)[data.labels[chosen]]

    metrics = engine.run(data, 0, rates(1, 0.5))

    after = engine.state()
    np.testing.assert_allclose(metrics.losses, [-np.log(picked).mean()], rtol=1e-5)
    np.testing.assert_allclose(metrics.values, [(logits.argmax(1) == data.labels[chosen]).mean()])
    name = next(name for name in after if name.endswith("kernel"))
    np.testing.assert_allclose(after[name], kernel - 0.5 * pixels.T @ difference / 8, rtol=1e-4, atol=1e-6)
    name = next(name for name in after if name.endswith("bias"))
    np.testing.assert_allclose(after[name], bias - 0.5 * difference.mean(axis=0), rtol=1e-4, atol=1e-6)


def test_a_network_without_trainable_weights_is_trained_unchanged_with_a_warning(
    tiny: Path, make_job: Any, training: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from slipway.trainer.__main__ import _warn_untrainable

    config = make_job(tiny, steps=10, steps_per_epoch=75, builder="sample_networks:frozen")
    engine, data = engine_for(config), training(config)
    before = engine.weights_checksum()
    assert np.isfinite(engine.run(data, 0, rates(3)).losses).all()
    assert engine.weights_checksum() == before
    assert engine.work().devices == 1
    _warn_untrainable(engine, config)
    assert "sample_networks:frozen has no trainable weights" in caplog.text


def test_one_call_of_many_steps_is_many_calls_of_one(tiny: Path, make_job: Any, training: Any) -> None:
    config = make_job(tiny, steps=100, steps_per_epoch=75, builder="sample_networks:dropout")
    data = training(config)
    many, single = engine_for(config), None
    metrics = many.run(data, 0, rates(80))
    checksum = many.weights_checksum()
    single = engine_for(config)
    losses = [single.run(data, step, rates(1)).losses[0] for step in range(80)]
    assert metrics.losses.tolist() == losses
    assert single.weights_checksum() == checksum
    assert len(metrics.losses) == 80
    assert engine_for(make_job(tiny, steps=100, steps_per_epoch=75, seed=1)).weights_checksum() != checksum


@pytest.mark.parametrize(
    ("budget", "augment"),
    [
        (0, {"flip": True, "shift": 2, "brightness": 0.1, "contrast": 0.2, "crop": 0.2, "rotation": 10, "erase": 0.3}),
        (10**9, {"mixup": 0.4}),
    ],
)
def test_restored_it_goes_on_bit_by_bit(
    tiny: Path, make_job: Any, training: Any, budget: int, augment: dict[str, Any]
) -> None:
    config = make_job(tiny, steps=100, steps_per_epoch=75, builder="sample_networks:dropout", augment=augment)
    whole = engine_for(config)
    whole.run(training(config, budget), 0, rates(40))
    state = whole.state()
    whole.run(training(config, budget), 40, rates(3))  # must not change the result of `state`
    assert any("seed_generator" in name for name in state)
    resumed = engine_for(config)
    resumed.load_state(state)
    resumed.run(training(config, budget), 40, rates(30))
    whole.run(training(config, budget), 43, rates(27))  # after another sequence of draws and steps
    assert resumed.weights_checksum() == whole.weights_checksum()


def test_another_networks_state_is_refused(tiny: Path, make_job: Any) -> None:
    wide = engine_for(make_job(tiny, steps=1, steps_per_epoch=75, arguments={"units": 20})).state()
    engine = engine_for(make_job(tiny, steps=1, steps_per_epoch=75))
    with pytest.raises(UserError, match=r"float32 \[64, 20\], the network float32 \[64, 16\]"):
        engine.load_state(wide)
    momentum = engine_for(make_job(tiny, steps=1, steps_per_epoch=75, optimizer="sgd")).state()
    with pytest.raises(UserError, match="a different network"):
        engine.load_state(momentum)


@pytest.mark.parametrize(
    "batch", [pytest.param(1, marks=pytest.mark.long), 7, pytest.param(50, marks=pytest.mark.long), 64]
)
def test_evaluation_is_the_mean_over_all_examples_whatever_the_batch(
    tiny: Path, make_job: Any, training: Any, batch: int
) -> None:
    from slipway.trainer.data import inputs

    config = make_job(tiny, steps=3, steps_per_epoch=75)
    engine = engine_for(config)
    engine.run(training(config), 0, rates(3))
    assignment = ShardAssignment(tiny, manifests.read(tiny), 0, 1)
    measured = engine.evaluate(inputs.evaluation(assignment, "validation", batch))
    images, labels = inputs.evaluation(assignment, "validation", 50).decoded
    logits = engine._model(images / np.float32(255)).numpy()
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(50), labels]
    assert measured.examples == 50
    assert measured.metric == pytest.approx((logits.argmax(1) == labels).mean())
    assert measured.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert 0 < measured.metric < 1
    assert engine.evaluate(inputs.evaluation(assignment, "validation", batch)) == measured


def test_the_network_is_built_and_traced_once_for_tensorboard_validation_and_export(
    tiny: Path, tmp_path: Path, make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    from slipway.trainer.data import inputs
    from slipway.trainer.engines import builder

    stages = [{"steps": 2}, {"steps": 2, "trainable": ["head"]}]
    config = make_job(tiny, steps=4, steps_per_epoch=75, builder="sample_networks:fine_tuned", stages=stages)
    engine, manifest = engine_for(config), manifests.read(tiny)
    engine.begin(2)
    monkeypatch.delattr(builder, "build")
    assert b"MatMul" in engine.graph()
    evaluation = inputs.evaluation(ShardAssignment(tiny, manifest, 0, 1), "validation", 8)
    assert engine.evaluate(evaluation) == engine.evaluate(evaluation)
    engine.export(tmp_path, config, manifest)
    assert engine._predict.experimental_get_tracing_count() == 1
    exported = keras.saving.load_model(tmp_path / "model.keras")
    layers = {weight.path.split("/")[-2] for weight in exported.trainable_weights}
    assert layers == {"conv", "normalization", "head"}  # as the builder made them, not as in the last stage


def test_regularization_is_part_of_the_loss(tiny: Path, make_job: Any, training: Any) -> None:
    config = make_job(tiny, steps=1, steps_per_epoch=75, builder="sample_networks:linear")
    plain = engine_for(config).run(training(config), 0, rates(1)).losses[0]
    config = make_job(
        tiny, steps=1, steps_per_epoch=75, builder="sample_networks:linear", arguments={"regularization": 0.1}
    )
    engine = engine_for(config)
    kernel = next(array for name, array in engine.state().items() if name.endswith("kernel"))
    regularized = engine.run(training(config), 0, rates(1)).losses[0]
    assert regularized == pytest.approx(plain + 0.1 * (kernel**2).sum(), rel=1e-5)


def test_augmentation_changes_what_is_trained_on_and_nothing_that_is_measured(
    tiny: Path, make_job: Any, training: Any
) -> None:
    from slipway.trainer.data import inputs
    from slipway.trainer.engines.tensorflow.step import augmented

    config = make_job(
        tiny, steps=2, steps_per_epoch=75, builder="sample_networks:linear", seed=3, augment={"shift": 3}, xla=False
    )
    engine, read = engine_for(config), training(config)
    engine.run(read, 0, rates(1))
    kernel, bias = (
        array.copy()
        for name, array in engine.state().items()
        if name.endswith(("kernel", "bias")) and name.startswith("model")
    )
    assignment = ShardAssignment(tiny, manifests.read(tiny), 0, 1)
    measured = engine.evaluate(inputs.evaluation(assignment, "validation", 50))
    images, labels = inputs.evaluation(assignment, "validation", 50).decoded
    assert measured.loss == pytest.approx(cross_entropy(images / np.float32(255), labels, kernel, bias), rel=1e-5)

    chosen = read.order(1, 1)[0]
    images, labels = read.inputs[chosen] / np.float32(255), read.labels[chosen]
    moved = augmented(images, labels, config.train, 1, 0)[0].numpy()
    loss = engine.run(read, 1, rates(1)).losses[0]
    assert loss == pytest.approx(cross_entropy(moved, labels, kernel, bias), rel=1e-5)
    assert loss != pytest.approx(cross_entropy(images, labels, kernel, bias), rel=1e-3)


@pytest.mark.parametrize(
    ("accumulation", "xla"),
    [
        pytest.param(1, False, marks=pytest.mark.long),
        (4, False),
        pytest.param(1, True, marks=pytest.mark.long),
        pytest.param(4, True, marks=pytest.mark.long),
    ],
)
def test_a_step_with_mixup_is_one_on_the_blended_losses(
    tiny: Path, make_job: Any, training: Any, accumulation: int, xla: bool
) -> None:
    """Against a manually computed gradient, with class weights of both labels."""
    import tensorflow as tf

    from slipway.trainer.engines.tensorflow.step import augmented

    config = make_job(
        tiny, steps=2, steps_per_epoch=75, builder="sample_networks:linear", seed=6, optimizer="sgd", xla=xla,
        augment={"flip": True, "mixup": 1.0}, accumulation=accumulation, class_weights={"left": 3.0, "both": 0.5},
    )  # fmt: skip
    engine, read = engine_for(config), training(config)
    engine.run(read, 0, rates(1))
    before = {name: array.copy() for name, array in engine.state().items() if name.startswith("model")}
    kernel, bias = (before[name] for name in before if name.endswith(("kernel", "bias")))
    chosen = read.order(1, 1)[0]

    @tf.function(jit_compile=xla)  # XLA has its own generator
    def drawn(images: Any, labels: Any) -> Any:
        return augmented(images, labels, config.train, 1, 0)

    images, labels = drawn(read.inputs[chosen] / np.float32(255), read.labels[chosen])
    factor, weights = np.asarray(labels["factor"]), np.array([3.0, 1.0, 0.5])
    assert 0.5 <= factor.min() < factor.max() < 1
    pixels = np.asarray(images).reshape(8, -1)
    exponentials = np.exp(pixels @ kernel + bias)
    probabilities = exponentials / exponentials.sum(axis=1, keepdims=True)
    loss, difference = 0.0, np.zeros((8, 3))
    for each, part in ((np.asarray(labels["own"]), factor), (np.asarray(labels["partner"]), 1 - factor)):
        factor = part * weights[each] / 8
        loss -= (factor * np.log(probabilities[np.arange(8), each])).sum()
        difference += factor[:, None] * (probabilities - np.eye(3)[each])
    metrics = engine.run(read, 1, rates(1, 0.5))
    assert metrics.losses[0] == pytest.approx(loss, rel=1e-5)
    right = {name: (probabilities.argmax(axis=1) == np.asarray(labels[name])).mean() for name in ("own", "partner")}
    assert metrics.values[0] == right["own"] != right["partner"]
    after = engine.state()
    for name, gradient in (("kernel", pixels.T @ difference), ("bias", difference.sum(axis=0))):
        (name,) = (each for each in before if each.endswith(name))
        np.testing.assert_allclose(after[name], before[name] - 0.5 * gradient, rtol=1e-4, atol=1e-6)


def cross_entropy(images: Any, labels: Any, kernel: Any, bias: Any) -> float:
    """The mean loss of a network without hidden layers."""
    logits = images.reshape(len(labels), -1) @ kernel + bias
    return float((np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), labels]).mean())


def test_agreeing_alone_changes_nothing(tiny: Path, make_job: Any) -> None:
    engine = engine_for(make_job(tiny, steps=1, steps_per_epoch=75))
    assert engine.agree([0.0, -math.inf, 123456789.0]) == [0.0, -math.inf, 123456789.0]


def test_an_exploding_loss_is_found_at_its_very_step(tiny: Path, make_job: Any, training: Any) -> None:
    from slipway.trainer import failures

    config = make_job(tiny, steps=50, steps_per_epoch=75, optimizer="sgd", learning_rate=1e30)
    one_call = engine_for(config).run(training(config), 0, rates(50, 1e30))
    engine, data = engine_for(config), training(config)
    first_bad = next(step for step in range(50) if not np.isfinite(engine.run(data, step, rates(1, 1e30)).losses[0]))
    assert first_bad > 0
    with pytest.raises(UserError, match=f"at step {first_bad + 1} of 50"):
        failures.check_finite(one_call, 0, config)


@pytest.mark.parametrize("name", ["UnavailableError", "AbortedError", "CancelledError", "DeadlineExceededError"])
def test_an_error_of_a_connection_is_a_lost_replica(name: str) -> None:
    import tensorflow as tf

    from slipway.trainer.engines.tensorflow import engine

    with pytest.raises(base.PeerLost, match=r"^no answer$"), engine._peers():
        raise getattr(tf.errors, name)(None, None, "no answer")


def test_a_replica_lost_while_the_builder_creates_variables_is_no_error_of_the_builder() -> None:
    import tensorflow as tf

    from slipway.trainer.engines.tensorflow import engine

    lost = tf.errors.UnavailableError(None, None, "Collective ops is aborted by: failed to connect")
    with pytest.raises(base.PeerLost, match=r"^failed to connect$"), engine._peers():
        raise UserError("The builder raised UnavailableError.") from lost
    with pytest.raises(UserError, match="ValueError"), engine._peers():
        raise UserError("The builder raised ValueError.") from ValueError("x")


@pytest.mark.parametrize(("builder", "accumulation", "xla"), [("nested", 2, False), ("normalized", 1, True)])
def test_activations_that_are_computed_again_are_the_same(
    tiny: Path, make_job: Any, training: Any, builder: str, accumulation: int, xla: bool
) -> None:
    """Also random ones, and statistics are updated once.

    Arrays are compared by their norms: Adam divides by gradients that may be all rounding, which differs here.
    """
    losses, states = {}, {}
    for remat in (False, True):
        config = make_job(
            tiny, steps=8, steps_per_epoch=75, builder=f"sample_networks:{builder}", accumulation=accumulation,
            xla=xla, remat=remat, clip_norm=0.05,
        )  # fmt: skip
        engine = engine_for(config)
        losses[remat] = engine.run(training(config), 0, rates(8)).losses
        states[remat] = engine.state()
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-4)
    for name, array in states[False].items():
        difference = states[True][name].astype(float) - array
        assert np.linalg.norm(difference) <= 1e-3 * np.linalg.norm(array) + 1e-5, name


def test_a_network_without_segments_is_refused(tiny: Path, make_job: Any) -> None:
    config = make_job(tiny, steps=8, steps_per_epoch=75, builder="sample_networks:called", remat=True)
    with pytest.raises(UserError, match="has a call of its own, which cannot be divided into segments") as caught:
        engine_for(config)
    assert caught.value.setting == "train.remat"
