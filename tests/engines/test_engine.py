"""The engine in this process: training step, exact resume, evaluation, settings, exported model."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.trainer.data.assignment import ShardAssignment
from tests.engines.conftest import ENGINE, Bench

ALL_CHANGES = {"flip": True, "shift": 2, "brightness": 0.1, "contrast": 0.2, "crop": 0.05, "rotation": 3, "erase": 0.1}


def rates(count: int, rate: float = 0.01) -> Any:
    return np.full(count, rate, np.float32)


def kernel_and_bias(state: Any) -> tuple[Any, Any]:
    kernel, bias = (state[name] for name in state if name.startswith("model") and name.endswith(("kernel", "bias")))
    return kernel, bias


def by_hand(
    images: Any, labels: Any, kernel: Any, bias: Any, weights: Any, shares: Any = 1.0
) -> tuple[float, Any, Any]:
    """The mean loss, times `shares`, of a network without hidden layers, and its gradients."""
    pixels = images.reshape(len(labels), -1)
    logits = pixels @ kernel + bias
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    factors = weights[labels] * shares
    loss = -(factors * np.log(probabilities[np.arange(len(labels)), labels])).mean()
    difference = (probabilities - np.eye(3)[labels]) * factors[:, None] / len(labels)
    return float(loss), pixels.T @ difference, difference.sum(axis=0)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_step_is_the_optimizers_step_on_the_mean_loss(bench: Bench, accumulation: int) -> None:
    """Against a manually computed gradient, with a learning rate per step, class weights and weight decay."""
    config = bench.job(
        builder="sample_networks:linear",
        optimizer="sgd",
        weight_decay=0.1,
        class_weights={"left": 3.0, "both": 0.5},
        accumulation=accumulation,
    )
    engine, data = bench.engine(config), bench.training(config)
    kernel, bias = kernel_and_bias(engine.state())
    losses = []
    for step, rate in enumerate((0.5, 0.125)):
        chosen = data.order(step, 1)[0]
        images, labels = data.inputs[chosen] / np.float32(255), data.labels[chosen]
        loss, of_kernel, of_bias = by_hand(images, labels, kernel, bias, np.array([3.0, 1.0, 0.5]))
        losses.append(loss)
        kernel = kernel * (1 - rate * 0.1) - rate * of_kernel  # the bias does not decay
        bias = bias - rate * of_bias
    metrics = engine.run(data, 0, np.array([0.5, 0.125], np.float32))
    np.testing.assert_allclose(metrics.losses, losses, rtol=1e-5)
    found_kernel, found_bias = kernel_and_bias(engine.state())
    np.testing.assert_allclose(found_kernel, kernel, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found_bias, bias, rtol=1e-4, atol=1e-6)


def test_a_network_without_trainable_weights_is_trained_unchanged_with_a_warning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    from slipway.trainer.__main__ import _warn_untrainable

    config = bench.job(builder="sample_networks:frozen")
    engine, data = bench.engine(config), bench.training(config)
    before = engine.weights_checksum()
    assert np.isfinite(engine.run(data, 0, rates(3)).losses).all()
    assert engine.weights_checksum() == before
    assert engine.work().devices == 1
    _warn_untrainable(engine, config)
    assert "sample_networks:frozen has no trainable weights" in caplog.text


def test_gradients_are_clipped_to_the_global_norm(bench: Bench) -> None:
    config = bench.job(builder="sample_networks:linear", optimizer="sgd", clip_norm=0.25)
    engine, data = bench.engine(config), bench.training(config)
    before = kernel_and_bias(engine.state())
    engine.run(data, 0, rates(1, 1.0))
    after = kernel_and_bias(engine.state())
    norm = np.sqrt(sum(((new - old) ** 2).sum() for new, old in zip(after, before, strict=True)))
    assert norm == pytest.approx(0.25, rel=1e-4)


def test_momentum_goes_on_from_step_to_step(bench: Bench) -> None:
    """With the rates r1 and r2 the second step is -(m r1 g1 + r2 g2), as in Keras, on every engine."""
    plain = bench.job(builder="sample_networks:linear", optimizer="sgd", momentum=0.5)
    engine, data = bench.engine(plain), bench.training(plain)
    kernel, bias = kernel_and_bias(engine.state())
    moved, moved_bias = np.zeros_like(kernel), np.zeros_like(bias)
    changing = np.array([0.5, 0.125, 0.25], np.float32)
    for step, rate in enumerate(changing):
        chosen = data.order(step, 1)[0]
        images, labels = data.inputs[chosen] / np.float32(255), data.labels[chosen]
        _, of_kernel, of_bias = by_hand(images, labels, kernel, bias, np.ones(3))
        moved, moved_bias = 0.5 * moved + rate * of_kernel, 0.5 * moved_bias + rate * of_bias
        kernel, bias = kernel - moved, bias - moved_bias
    engine.run(data, 0, changing)
    np.testing.assert_allclose(kernel_and_bias(engine.state())[0], kernel, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("builder", ["sample_networks:dropout", "sample_networks:dense"])
def test_one_call_of_many_steps_is_many_calls_of_one(bench: Bench, builder: str) -> None:
    config = bench.job(builder=builder)
    data = bench.training(config)
    engine = bench.engine(config)
    metrics = engine.run(data, 0, rates(80))  # across an epoch's end, and more than steps_per_call
    checksum = engine.weights_checksum()
    engine = bench.engine(config)
    losses = [engine.run(data, step, rates(1)).losses[0] for step in range(80)]
    assert metrics.losses.tolist() == losses
    assert engine.weights_checksum() == checksum
    assert (
        bench.engine(bench.job(builder=builder, seed=1)).weights_checksum() != bench.engine(config).weights_checksum()
    )


MODULES = ["torch_networks:fine_tuned", "torch_networks:Blocks", "torch_networks:Deep"]


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    "builder", ["sample_networks:wide", "sample_networks:nested", *(MODULES if ENGINE == "pytorch" else [])]
)
def test_activations_that_are_computed_again_are_the_same(bench: Bench, builder: str, accumulation: int) -> None:
    """Also random ones, and statistics are updated once.

    Arrays are compared by their norms: Adam divides by gradients that may be all rounding, which differs here.
    """
    settings: dict[str, Any] = {"builder": builder, "accumulation": accumulation, "clip_norm": 0.05}
    losses, states = {}, {}
    for remat in (False, True):
        config = bench.job(**settings, remat=remat)
        engine = bench.engine(config)
        losses[remat] = engine.run(bench.training(config), 0, rates(8)).losses
        states[remat] = engine.state()
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-4)
    for name, array in states[False].items():
        difference = states[True][name].astype(float) - array
        assert np.linalg.norm(difference) <= 1e-3 * np.linalg.norm(array) + 1e-5, name


@pytest.mark.engine("tensorflow", "pytorch")
@pytest.mark.parametrize(
    "builder", ["sample_networks:called", *(["torch_networks:Half"] if ENGINE == "pytorch" else [])]
)
def test_a_network_without_segments_is_refused(bench: Bench, builder: str) -> None:
    with pytest.raises(UserError, match="has a call of its own, which cannot be divided into segments") as caught:
        bench.engine(bench.job(builder=builder, remat=True))
    assert caught.value.setting == "train.remat"


BUILDERS = ["sample_networks:dropout", *(["torch_networks:dropout"] if ENGINE == "pytorch" else [])]


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize(
    ("budget", "augment"), [(10**9, {}), (10**9, ALL_CHANGES), (0, ALL_CHANGES), (10**9, {"mixup": 0.4})]
)
def test_restored_it_goes_on_bit_by_bit(bench: Bench, builder: str, budget: int, augment: Any) -> None:
    config = bench.job(builder=builder, augment=augment)
    engine = bench.engine(config)
    engine.run(bench.training(config, budget), 0, rates(40))
    state = engine.state()
    engine.run(bench.training(config, budget), 40, rates(3))  # must not change the result of `state`
    engine = bench.engine(config)
    engine.run(bench.training(config, budget), 0, rates(3))  # other draws and steps must not matter
    engine = bench.engine(config)
    engine.load_state(state)
    engine.run(bench.training(config, budget), 40, rates(30))
    resumed = engine.weights_checksum()
    engine = bench.engine(config)
    losses = engine.run(bench.training(config, budget), 0, rates(70)).losses
    assert engine.weights_checksum() == resumed
    assert losses[-10:].mean() < losses[:10].mean()


def test_another_networks_state_is_refused(bench: Bench) -> None:
    wide = dict(bench.engine(bench.job(arguments={"units": 20})).state())
    engine = bench.engine(bench.job())
    with pytest.raises(UserError, match=r"float32 \[64, 20\], the network float32 \[64, 16\]"):
        engine.load_state(wide)
    plain = dict(bench.engine(bench.job(optimizer="sgd")).state())
    engine = bench.engine(bench.job())
    with pytest.raises(UserError, match="a different network"):
        engine.load_state(plain)


@pytest.mark.parametrize("batch", [7, 50, 64])
def test_evaluation_is_the_mean_over_all_examples_whatever_the_batch(bench: Bench, batch: int) -> None:
    config = bench.job()
    engine = bench.engine(config)
    engine.run(bench.training(config), 0, rates(3))
    validation = bench.validation(batch)
    measured = engine.evaluate(validation)
    images, labels = validation.decoded
    probabilities = bench.probabilities(images / np.float32(255))
    assert measured.examples == 50
    assert measured.metric == pytest.approx((probabilities.argmax(1) == labels).mean())
    assert measured.loss == pytest.approx(-np.log(probabilities[np.arange(50), labels]).mean(), rel=1e-5)
    assert 0 < measured.metric < 1


def test_regularization_is_part_of_the_loss(bench: Bench) -> None:
    config = bench.job(builder="sample_networks:linear")
    plain = bench.engine(config).run(bench.training(config), 0, rates(1)).losses[0]
    config = bench.job(builder="sample_networks:linear", arguments={"regularization": 0.1}, accumulation=2)
    engine = bench.engine(config)
    kernel, _ = kernel_and_bias(engine.state())
    regularized = engine.run(bench.training(config), 0, rates(1)).losses[0]
    assert regularized == pytest.approx(plain + 0.1 * (kernel**2).sum(), rel=1e-5)


def test_augmentation_is_of_the_training_only(bench: Bench) -> None:
    """A network that uses a single pixel reveals by how many pixels the images were shifted."""
    plain, moved = (bench.job(builder="sample_networks:linear", augment={"shift": shift}) for shift in (0, 3))
    images_of = bench.training(plain)
    plain_losses = bench.engine(plain).run(images_of, 0, rates(5, 0.0)).losses
    measured = bench.engine(plain).evaluate(bench.validation(50))
    moved_losses = bench.engine(moved).run(images_of, 0, rates(5, 0.0)).losses
    assert bench.engine(moved).evaluate(bench.validation(50)) == measured
    assert not np.isclose(plain_losses, moved_losses).any()
    again = bench.engine(moved).run(images_of, 0, rates(5, 0.0)).losses
    assert again.tolist() == moved_losses.tolist()


def mixed(engine: Any, config: Any, decoded: Any, labels: Any, step: int) -> tuple[Any, dict[str, Any]]:
    """The engine's images and labels of a step with mixup, as NumPy arrays."""
    if ENGINE == "jax":
        import jax

        prepared = engine._step._on_devices(engine._step._prepared, 2)(decoded, labels, step)
        images, found = jax.tree.map(lambda one: np.asarray(one).reshape(-1, *one.shape[2:]), prepared)
        return images, found
    import torch

    from slipway.trainer.engines.keras import augment

    pixels = torch.from_numpy(decoded / np.float32(255))
    alpha, drawing = config.train.augment.mixup, engine._step._drawing(step)
    blended, parts = augment.mix(pixels, torch.from_numpy(labels).long(), alpha, *drawing)
    return blended.numpy(), {name: part.numpy() for name, part in parts.items()}


@pytest.mark.parametrize("accumulation", [1, 4])
def test_a_step_with_mixup_is_one_on_the_blended_losses(bench: Bench, accumulation: int) -> None:
    """Against a manually computed gradient, with class weights of both labels."""
    config = bench.job(
        builder="sample_networks:linear",
        optimizer="sgd",
        augment={"mixup": 1.0},
        class_weights={"left": 3.0, "both": 0.5},
        accumulation=accumulation,
    )
    engine, data = bench.engine(config), bench.training(config)
    kernel, bias = (array.copy() for array in kernel_and_bias(engine.state()))
    for step in range(2):
        chosen = data.order(step, 1)[0]
        images, labels = mixed(engine, config, data.inputs[chosen], data.labels[chosen], step)
        own, partner, factor = labels["own"], labels["partner"], labels["factor"]
        np.testing.assert_array_equal(own, data.labels[chosen])
        originals, each = data.inputs[chosen] / np.float32(255), factor[:, None, None, None]
        (distance,) = (
            distance
            for distance in range(1, 8)
            if np.allclose(images, each * originals + (1 - each) * np.roll(originals, -distance, axis=0), atol=1e-6)
        )
        np.testing.assert_array_equal(partner, np.roll(own, -distance))
        weights = np.array([3.0, 1.0, 0.5])
        first = by_hand(images, own, kernel, bias, weights, factor)
        second = by_hand(images, partner, kernel, bias, weights, 1 - factor)
        loss, of_kernel, of_bias = (one + other for one, other in zip(first, second, strict=True))
        correct = (images.reshape(8, -1) @ kernel + bias).argmax(axis=1) == own
        kernel, bias = kernel - 0.5 * of_kernel, bias - 0.5 * of_bias
        metrics = engine.run(data, step, rates(1, 0.5))
        assert metrics.losses[0] == pytest.approx(loss, rel=1e-5)
        assert metrics.values[0] == pytest.approx(correct.mean())
        found_kernel, found_bias = kernel_and_bias(engine.state())
        np.testing.assert_allclose(found_kernel, kernel, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(found_bias, bias, rtol=1e-4, atol=1e-6)


def test_the_factors_of_mixup_have_the_distribution_of_the_other_engines(bench: Bench) -> None:
    from scipy import stats

    config = bench.job(augment={"mixup": 0.4})
    engine = bench.engine(config)
    images, labels = np.zeros((20_000, 8, 8, 1), np.uint8), np.zeros(20_000, np.int32)
    factor = mixed(engine, config, images, labels, 0)[1]["factor"]
    assert 0.5 <= factor.min() < factor.max() <= 1
    for value in (0.55, 0.7, 0.9, 0.99, 0.999):
        expected = 2 * stats.beta.cdf(value, 0.4, 0.4) - 1
        assert (factor <= value).mean() == pytest.approx(expected, abs=0.016)  # over 4 standard deviations
    assert (factor != mixed(engine, config, images, labels, 1)[1]["factor"]).mean() > 0.9


def test_mixed_precision_learns(bench: Bench) -> None:
    config = bench.job(precision="mixed_bfloat16")
    engine = bench.engine(config)
    losses = engine.run(bench.training(config), 0, rates(75)).losses
    assert losses[-10:].mean() < 0.7 * losses[:10].mean()
    assert {array.dtype.name for name, array in engine.state().items() if "kernel" in name} == {"float32"}
    assert engine.work().precision == "mixed_bfloat16"
    single = bench.engine(bench.job()).run(bench.training(config), 0, rates(75)).losses
    assert losses.tolist() != single.tolist()


def test_agreeing_alone_changes_nothing(bench: Bench) -> None:
    assert bench.engine(bench.job()).agree([0.0, -math.inf, 123456789.0]) == [0.0, -math.inf, 123456789.0]


def test_a_steps_operations_are_counted(bench: Bench) -> None:
    """FLOPs of a dense layer's forward pass and of its kernel's gradient; there is no gradient for the images."""
    engine = bench.engine(bench.job(builder="sample_networks:linear"))
    work = engine.work()
    assert work.devices == 1
    assert work.step_flops == pytest.approx(2 * 2 * 8 * 64 * 3, rel=0.3)


def test_the_exported_model_is_the_network(bench: Bench, tmp_path: Path) -> None:
    """From encoded images to the same probabilities as the engine's network, to 1e-4; resized with data.resize_mode."""
    import tensorflow as tf

    from slipway.components.evaluate import served_model

    config = bench.job(builder=BUILDERS[-1])
    engine = bench.engine(config)
    engine.run(bench.training(config), 0, rates(100))
    engine.export(tmp_path, config, bench.manifest.model_copy(update={"resize_mode": "crop"}))
    description = {"classes": bench.manifest.classes, "image_size": [8, 8], "channels": 1, "resize_mode": "crop"}
    (tmp_path / "model.json").write_text(json.dumps(description))
    served = served_model.load(tmp_path, bench.manifest)
    check_agreement(bench, served, bench.assignment, "validation")
    square = np.random.default_rng(0).integers(0, 256, (8, 8, 1), np.uint8)
    wide = np.pad(square, ((0, 0), (4, 4), (0, 0)), constant_values=255)
    images = tf.stack([tf.io.encode_png(pixels) for pixels in (square, wide)])
    np.testing.assert_allclose(*served.predict({"image_bytes": images})["probabilities"], atol=1e-6)


def check_agreement(bench: Bench, model: Any, assignment: ShardAssignment, split: str) -> None:
    import tensorflow as tf

    from slipway.trainer.data import inputs

    features = {"image": tf.io.FixedLenFeature([], tf.string)}
    records = list(tf.data.TFRecordDataset(assignment.paths(split)))
    encoded = tf.stack([tf.io.parse_single_example(record, features)["image"] for record in records])
    served = model.predict({"image_bytes": encoded})["probabilities"]
    images, labels = inputs.evaluation(assignment, split, 50).decoded
    own = bench.probabilities(images / np.float32(255))
    assert list(model.names) == assignment.manifest.classes
    np.testing.assert_allclose(served, own, atol=1e-4)
    assert (own.argmax(axis=1) == labels).mean() > 0.8
    first = model.predict({"image_bytes": encoded[:1]})["probabilities"]
    np.testing.assert_allclose(first, own[:1], atol=1e-4)


def test_a_network_that_is_none_is_refused(bench: Bench) -> None:
    for builder, message in (("returns_nothing", "returned NoneType"), ("too_few_outputs", "has 3 classes")):
        with pytest.raises(UserError, match=message):
            bench.engine(bench.job(builder=f"sample_networks:{builder}"))
    with pytest.raises(UserError, match="softmax"):
        bench.engine(bench.job(builder="sample_networks:probabilities"))


def test_a_batch_that_does_not_divide_is_refused(bench: Bench) -> None:
    with pytest.raises(UserError, match="8 examples per device and step cannot be split into 3 equal") as caught:
        bench.engine(bench.job(accumulation=3))
    assert (caught.value.setting, caught.value.nearest) == ("train.accumulation", "2")
