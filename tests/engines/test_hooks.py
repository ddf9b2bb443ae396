"""The project's own functions in training: loss, metrics, optimizer and augmentation, on each engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slipway.core.errors import UserError
from slipway.trainer.config import TrainSettings
from slipway.trainer.failures import check_finite, check_measured
from tests.engines.conftest import Bench


def rates(count: int, rate: float = 0.01) -> Any:
    return np.full(count, rate, np.float32)


def weights(engine: Any) -> list[Any]:
    return [array for name, array in engine.state().items() if name.startswith("model")]


def trained(bench: Bench, steps: int = 20, **settings: Any) -> list[Any]:
    config = bench.job(**settings)
    engine = bench.engine(config)
    engine.run(bench.training(config), 0, rates(steps))
    return weights(engine)


def is_close(ones: list[Any], others: list[Any]) -> bool:
    return all(np.allclose(one, other, rtol=1e-3, atol=1e-5) for one, other in zip(ones, others, strict=True))


def resumes_exactly(bench: Bench, **settings: Any) -> list[Any]:
    """Restore a state of step 12 in a new engine, which must continue as the undisturbed run; return its weights."""
    config = bench.job(**settings)
    engine = bench.engine(config)
    engine.run(bench.training(config), 0, rates(12))
    state = engine.state()
    engine.run(bench.training(config), 12, rates(8))
    whole = engine.weights_checksum()
    engine = bench.engine(config)
    engine.load_state(state)
    assert all((engine.state()[name] == array).all() for name, array in state.items())
    engine.run(bench.training(config), 12, rates(8))
    assert engine.weights_checksum() == whole
    return weights(engine)


def test_a_loss_equal_to_the_built_in_one_trains_alike_and_another_differs(bench: Bench) -> None:
    weighted = {"class_weights": {"left": 3.0}, "accumulation": 2}
    built_in = trained(bench, **weighted)
    assert is_close(built_in, trained(bench, loss="own_functions:cross_entropy", **weighted))
    assert not is_close(built_in, resumes_exactly(bench, loss="own_functions:hinge", **weighted))


def test_metrics_are_means_over_the_validation_split(bench: Bench) -> None:
    config = bench.job(metrics={"right": "own_functions:is_right", "entropy": "own_functions:cross_entropy"})
    engine = bench.engine(config)
    engine.run(bench.training(config), 0, rates(3))
    measured = engine.evaluate(bench.validation(7))
    assert measured.metrics["right"] == pytest.approx(measured.metric)
    assert measured.metrics["entropy"] == pytest.approx(measured.loss, rel=1e-5)
    assert 0 < measured.metric < 1


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"loss": "own_functions:mean"}, r"own_functions:mean returns values of shape \[\] instead of \[4\]"),
        ({"loss": "own_functions:fails"}, "own_functions:fails raised KeyError: 'no such label'"),
        ({"optimizer": "own_optimizers:nothing"}, "own_optimizers:nothing returns NoneType instead of a"),
        (
            {"optimizer": "own_optimizers:scheduled"},
            "own_optimizers:scheduled (has a schedule|raised)",
        ),
        (
            {"augment": {"function": "own_functions:smaller"}},
            r"smaller returns values of shape \[2, 7, 8",
        ),
        ({"metrics": {"some": "own_functions:means"}}, "The module own_functions has no function 'means'"),
    ],
)
def test_wrong_functions_are_told_before_the_training(bench: Bench, settings: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as error:
        bench.engine(bench.job(**settings))
    assert error.value.setting in TrainSettings(epochs=1, **settings).functions


def test_values_that_are_not_finite_name_the_function(bench: Bench) -> None:
    config = bench.job(loss="own_functions:infinite")
    metrics = bench.engine(config).run(bench.training(config), 0, rates(1))
    with pytest.raises(UserError, match="The loss is infinite") as error:
        check_finite(metrics, 0, config)
    assert "own_functions:infinite" in str(error.value.fix)
    config = bench.job(metrics={"depth": "own_functions:infinite"})
    with pytest.raises(UserError, match="own_functions:infinite returned -inf") as error:
        check_measured(bench.engine(config).evaluate(bench.validation(50)), config)
    assert error.value.setting == "train.metrics.depth"


def test_an_optimizer_equal_to_the_built_in_one_trains_alike_and_another_resumes_exactly(bench: Bench) -> None:
    clipped = {"clip_norm": 0.5}
    built_in = trained(bench, **clipped)
    assert is_close(built_in, trained(bench, optimizer="own_optimizers:adam", **clipped))
    assert not is_close(built_in, trained(bench, optimizer="own_optimizers:adam"))
    assert not is_close(built_in, resumes_exactly(bench, optimizer="own_optimizers:decaying", **clipped))


def test_an_augmentation_changes_images_differently_in_each_step(bench: Bench) -> None:
    """At a learning rate of 0, the loss of the same examples shows whether the images differ."""

    def losses(**augment: Any) -> list[float]:
        config = bench.job(augment=augment, xla=False)  # XLA draws other numbers
        data = bench.training(config)
        first = bench.engine(config).run(data, 0, rates(75, 0.0)).losses
        return [*first, bench.engine(config).run(data, 3, rates(1, 0.0)).losses[0]]

    shifted = losses(shift=1)
    np.testing.assert_allclose(losses(shift=1, function="own_functions:unchanged"), shifted, rtol=1e-5)
    noisy = losses(shift=1, function="own_functions:noisy")
    assert not np.isclose(noisy, shifted).any()
    assert noisy[3] == noisy[-1]  # again from the seed, the step and the device
    resumes_exactly(bench, augment={"function": "own_functions:noisy"})
