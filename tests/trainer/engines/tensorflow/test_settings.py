"""The effect of each setting on a step of the tensorflow engine, against a manual computation; on one device."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core import manifest as manifests
from slipway.trainer.config import JobConfig
from slipway.trainer.distributed import cluster as clusters
from slipway.trainer.engines import base

pytestmark = pytest.mark.usefixtures("tensorflow", "networks")


@pytest.fixture
def start(tiny: Path, make_job: Any, training_data: Any) -> Any:
    """An engine and its data for given settings; plain gradient descent on a network without hidden layers."""

    def start(budget: int = 10**9, builder: str = "sample_networks:linear", **settings: Any) -> tuple[Any, Any]:
        settings = {"optimizer": "sgd", "learning_rate": 0.5} | settings
        arguments = settings.pop("arguments", None)
        config: JobConfig = make_job(
            tiny, steps=100, steps_per_epoch=75, builder=builder, arguments=arguments, **settings
        )
        engine = base.load("tensorflow")
        engine.open(clusters.read({}))
        engine.build(config, manifests.read(tiny))
        return engine, training_data(75, config.train.seed, budget)

    return start


def rates(*each: float) -> Any:
    return np.array(each, np.float32)


def weights(engine: Any) -> tuple[Any, Any]:
    """The kernel and the bias of the network without hidden layers."""
    state = engine.state()
    return tuple(
        next(state[name] for name in state if name.startswith("model/") and name.endswith(end))
        for end in ("kernel", "bias")
    )


def by_hand(data: Any, step: int, kernel: Any, bias: Any, factors: Any = (1.0, 1.0, 1.0)) -> tuple[float, Any, Any]:
    """A step's loss and its gradients for kernel and bias, each example weighted by its class's factor."""
    chosen = data.order(step, 1)[0]
    pixels, labels = data.inputs[chosen].reshape(8, 64) / np.float32(255), data.labels[chosen]
    logits = pixels @ kernel + bias
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    factor = np.array(factors)[labels][:, None]
    difference = (probabilities - np.eye(3)[labels]) * factor / 8
    loss = -(np.log(probabilities[np.arange(8), labels]) * factor[:, 0]).mean()
    return loss, pixels.T @ difference, difference.sum(axis=0)


def test_each_step_has_the_rate_that_it_is_told(start: Any) -> None:
    engine, data = start()
    kernel, bias = weights(engine)
    engine.run(data, 0, rates(0.0, 0.25))
    _, of_kernel, of_bias = by_hand(data, 1, kernel, bias)
    after = weights(engine)
    np.testing.assert_allclose(after[0], kernel - 0.25 * of_kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after[1], bias - 0.25 * of_bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("clip", [0.05, 100.0])
def test_gradients_are_clipped_by_their_norm_over_all_variables(start: Any, clip: float) -> None:
    engine, data = start(clip_norm=clip)
    kernel, bias = weights(engine)
    _, of_kernel, of_bias = by_hand(data, 0, kernel, bias)
    norm = np.sqrt((of_kernel**2).sum() + (of_bias**2).sum())
    factor = min(1.0, clip / norm)
    assert (factor < 1) == (clip < 1)
    engine.run(data, 0, rates(0.5))
    after = weights(engine)
    np.testing.assert_allclose(after[0], kernel - 0.5 * factor * of_kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after[1], bias - 0.5 * factor * of_bias, rtol=1e-4, atol=1e-6)


def test_weight_decay_takes_from_weights_and_not_from_biases(start: Any) -> None:
    engine, data = start(weight_decay=0.3)
    engine.run(data, 0, rates(0.5))  # so that the bias is not 0
    kernel, bias = weights(engine)
    _, of_kernel, of_bias = by_hand(data, 1, kernel, bias)
    engine.run(data, 1, rates(0.5))
    after = weights(engine)
    np.testing.assert_allclose(after[0], kernel * (1 - 0.5 * 0.3) - 0.5 * of_kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after[1], bias - 0.5 * of_bias, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_carries_over_steps(start: Any, nesterov: bool) -> None:
    engine, data = start(momentum=0.9, nesterov=nesterov)
    kernel, bias = weights(engine)
    velocity = np.zeros_like(kernel), np.zeros_like(bias)
    for step in range(3):
        _, *gradients = by_hand(data, step, kernel, bias)
        velocity = tuple(0.9 * old - 0.1 * new for old, new in zip(velocity, gradients, strict=True))
        moved = [0.9 * v - 0.1 * g if nesterov else v for v, g in zip(velocity, gradients, strict=True)]
        kernel, bias = kernel + moved[0], bias + moved[1]
    engine.run(data, 0, rates(0.1, 0.1, 0.1))
    np.testing.assert_allclose(weights(engine)[0], kernel, rtol=1e-3, atol=1e-5)


def test_class_weights_weigh_the_loss_and_its_gradients(start: Any) -> None:
    engine, data = start(class_weights={"left": 3.0, "both": 0.5})  # the classes are left, right, both
    kernel, bias = weights(engine)
    loss, of_kernel, _ = by_hand(data, 0, kernel, bias, factors=(3.0, 1.0, 0.5))
    metrics = engine.run(data, 0, rates(0.5))
    assert metrics.losses[0] == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(weights(engine)[0], kernel - 0.5 * of_kernel, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("xla", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_batch_in_parts_is_the_same_step(start: Any, xla: bool) -> None:
    settings = {
        "builder": "sample_networks:dense", "optimizer": "adamw", "clip_norm": 0.3, "class_weights": "balanced",
        "augment": {"flip": True, "shift": 2}, "xla": xla,
    }  # fmt: skip
    whole, data = start(**settings)
    expected = whole.run(data, 0, rates(*[0.01] * 20))
    expected_state = whole.state()
    parts, data = start(accumulation=4, **settings)
    metrics = parts.run(data, 0, rates(*[0.01] * 20))
    np.testing.assert_allclose(metrics.losses, expected.losses, rtol=1e-4)
    np.testing.assert_allclose(metrics.values, expected.values)
    for name, array in parts.state().items():
        np.testing.assert_allclose(array, expected_state[name], rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.parametrize("budget", [pytest.param(0, marks=pytest.mark.long), 10**9])
def test_compiled_or_not_it_is_the_same_training(start: Any, budget: int) -> None:
    settings = {"builder": "sample_networks:dense", "optimizer": "adam", "steps_per_call": 7, "budget": budget}
    plain, data = start(xla=False, **settings)
    expected = plain.run(data, 0, rates(*[0.01] * 30))
    compiled, data = start(xla=True, **settings)
    metrics = compiled.run(data, 0, rates(*[0.01] * 30))
    assert metrics.losses.shape == (30,)
    np.testing.assert_allclose(metrics.losses, expected.losses, rtol=2e-3)
    again, data = start(xla=True, **settings)
    singly = [again.run(data, step, rates(0.01)).losses[0] for step in range(30)]
    assert singly == metrics.losses.tolist()
    assert again.weights_checksum() == compiled.weights_checksum()


@pytest.mark.parametrize("xla", [False, True])
def test_a_step_whose_scaled_gradients_overflow_is_skipped_and_the_scale_halved(start: Any, xla: bool) -> None:
    augment = {"flip": True, "mixup": 0.2}
    engine, data = start(precision="mixed_float16", xla=xla, optimizer="adam", augment=augment)
    engine.run(data, 0, rates(0.1))
    state = engine.state()
    scale = next(name for name in state if name.startswith("loss/") and name.endswith("scale"))
    steps = next(name for name in state if name.endswith("finite_steps"))
    assert (state[scale], state[steps]) == (2.0**15, 1)
    state[scale] = np.float32(2.0**24)
    engine.load_state(state)
    engine.run(data, 1, rates(0.1))
    after = engine.state()
    assert (after[scale], after[steps]) == (2.0**23, 0)
    for name in state:
        if name.startswith("model/") or name.endswith("iteration"):
            assert np.array_equal(after[name], state[name]), name
    state[scale] = np.float32(2.0**10)
    state[steps] = np.int64(1999)
    engine.load_state(state)
    engine.run(data, 2, rates(0.1))
    after = engine.state()
    assert (after[scale], after[steps]) == (2.0**11, 0)  # after 2000 finite steps
    kernel = next(name for name in state if name.startswith("model/") and name.endswith("kernel"))
    assert not np.array_equal(after[kernel], state[kernel])


@pytest.mark.parametrize("precision", [pytest.param("mixed_bfloat16", marks=pytest.mark.long), "mixed_float16"])
def test_mixed_precision_learns_the_same_resumes_exactly_and_exports_float32(
    start: Any, tiny: Path, tmp_path: Path, make_job: Any, precision: str
) -> None:
    import keras

    settings = {"builder": "sample_networks:dense", "optimizer": "adam", "learning_rate": 0.01}
    full, data = start(precision="float32", **settings)
    expected = full.run(data, 0, rates(*[0.01] * 60)).losses
    mixed, data = start(precision=precision, **settings)
    first = mixed.run(data, 0, rates(*[0.01] * 40)).losses
    state = mixed.state()
    later = mixed.run(data, 40, rates(*[0.01] * 20)).losses
    losses = np.concatenate([first, later])
    assert losses.tolist() != expected.tolist()
    np.testing.assert_allclose(losses, expected, rtol=0.05, atol=0.02)

    resumed, data = start(precision=precision, **settings)
    resumed.load_state(state)
    assert resumed.run(data, 40, rates(*[0.01] * 20)).losses.tolist() == later.tolist()
    assert resumed.weights_checksum() == mixed.weights_checksum()
    assert all(array.dtype != np.float16 for array in state.values())
    assert mixed.work().precision == precision

    mixed.export(tmp_path, make_job(tiny, steps=1, steps_per_epoch=75, **{**settings}), manifests.read(tiny))
    exported = keras.models.load_model(tmp_path / "model.keras")
    assert {layer.compute_dtype for layer in exported.layers} == {"float32"}


def test_too_little_memory_is_told_with_what_fits(start: Any) -> None:
    engine, data = start(builder="sample_networks:greedy", arguments={"examples": 3})
    with pytest.raises(base.OutOfMemory) as caught:
        engine.run(data, 0, rates(0.1))
    assert caught.value.fits == 3
    assert "OOM" in str(caught.value)
    engine, data = start(builder="sample_networks:greedy", arguments={"examples": 2}, accumulation=4)
    assert len(engine.run(data, 0, rates(0.1)).losses) == 1
    engine, data = start(builder="sample_networks:greedy", arguments={"examples": 0})
    with pytest.raises(base.OutOfMemory) as caught:
        engine.run(data, 0, rates(0.1))
    assert caught.value.fits == 0


def test_the_work_of_a_step_is_counted_from_the_network(start: Any) -> None:
    engine, _ = start()
    work = engine.work()
    assert (work.device, work.devices, work.precision) == ("CPU", 1, "float32")
    # The forward pass and the kernel's gradient are a product of 64 x 3 each; the rest is element-wise.
    products = 8 * 2 * (2 * 64 * 3)
    assert products <= work.step_flops < 1.2 * products


def test_the_graph_and_a_profile_are_for_tensorboard(start: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    engine, data = start()
    graph = tf.compat.v1.GraphDef.FromString(engine.graph())
    assert "MatMul" in {node.op for node in graph.node}
    with engine.profile(tmp_path):
        engine.run(data, 0, rates(0.1))
    assert list(tmp_path.glob("plugins/profile/*/*.xplane.pb"))


def test_waiting_for_input_is_measured(start: Any) -> None:
    engine, data = start(budget=0, builder="sample_networks:dropout")
    assert engine.run(data, 0, rates(0.1, 0.1)).waited > 0


def test_a_stream_decodes_several_batches_at_once(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine asks TensorFlow for deterministic operations, for which it once ran such a pipeline in one thread."""
    import tensorflow as tf

    from slipway.trainer.data import inputs

    both = threading.Barrier(2, timeout=180)
    decode = inputs.decode_stream

    def waiting(encoded: Any) -> Any:
        both.wait()
        return encoded

    def together(encoded: Any, manifest: Any) -> Any:
        waited = tf.numpy_function(waiting, [encoded], tf.string, stateful=False)
        return decode(tf.ensure_shape(waited, encoded.shape), manifest)

    monkeypatch.setattr(inputs, "decode_stream", together)
    engine, data = start(budget=0)
    assert np.isfinite(engine.run(data, 0, rates(0.1, 0.1)).losses).all()
    both.abort()
