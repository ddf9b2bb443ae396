"""Coverage of the 95% confidence intervals, by simulation: `python -m tests.components.evaluate.coverage`.

A population's metrics are those of 200,000 examples. Samples of it are evaluated, and the intervals that contain the
population's metrics are counted.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from slipway.components.evaluate.measures.base import Measures
from slipway.components.evaluate.measures.classification import ClassificationMeasures, Predictions
from slipway.components.evaluate.measures.multilabel import LabelPredictions, MultilabelMeasures
from slipway.components.evaluate.measures.regression import RegressionMeasures, Values
from slipway.core.manifest import Input

POPULATION = 200_000
# Of the samples; a metric that fewer give an interval is not counted.
FEWEST_SHOWN = 0.1
EVEN, UNEVEN, RARE = (0.5, 0.5), (0.6, 0.3, 0.1), (0.94, 0.06)
ZIPF = tuple((1 / np.arange(1, 21) / (1 / np.arange(1, 21)).sum()).tolist())


class Population(NamedTuple):
    """A population from which samples are drawn; `mse` is its mean squared error where 200,000 examples do not tell."""

    draw: Callable[[np.random.Generator, int], Measures]
    mse: float | None = None

    def metrics(self, generator: np.random.Generator) -> dict[str, float]:
        """Return the metrics of the population."""
        found = self.draw(generator, POPULATION).metrics()
        if self.mse is None:
            return found
        return {**found, "mse": self.mse, "rmse": self.mse**0.5, "loss": self.mse / 4, "r2": 1 - self.mse / 4}


def classification(shares: tuple[float, ...], strength: float) -> Population:
    """Classes in these shares, whose logits are the higher by `strength` deviations."""

    def draw(generator: np.random.Generator, examples: int) -> Measures:
        labels = generator.choice(len(shares), examples, p=shares)
        logits = generator.normal(size=(examples, len(shares)))
        logits[np.arange(examples), labels] += strength
        logits *= max(1.0, strength)
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        found = powers / powers.sum(axis=1, keepdims=True)
        measures = ClassificationMeasures([str(index) for index in range(len(shares))], examples)
        measures.update(Predictions(labels, found, found.argmax(axis=1), found.max(axis=1)))
        return measures

    return Population(draw)


def multilabel(shares: tuple[float, ...], strength: float, common: float) -> Population:
    """Labels in these shares; `common` is the part of the variance that the labels of an example share."""

    def draw(generator: np.random.Generator, examples: int) -> Measures:
        size = (examples, len(shares))
        labels = generator.random(size) < shares
        noise = np.sqrt(common) * generator.normal(size=(examples, 1)) + np.sqrt(1 - common) * generator.normal(
            size=size
        )
        odds = noise + strength * (labels - 0.5)
        measures = MultilabelMeasures([str(index) for index in range(len(shares))], examples)
        measures.update(LabelPredictions(labels, 1 / (1 + np.exp(-max(1.0, strength) * odds))))
        return measures

    return Population(draw)


Numbers = Callable[[np.random.Generator, int], np.ndarray]


def normal(generator: np.random.Generator, examples: int) -> np.ndarray:
    """Targets with the variance 4."""
    return generator.normal(0, 2, examples)


def regression(errors: Numbers, mse: float | None = None, targets: Numbers = normal) -> Population:
    """Targets and errors of these distributions."""

    def draw(generator: np.random.Generator, examples: int) -> Measures:
        actual = targets(generator, examples)
        measures = RegressionMeasures(Input(kind="number", mean=(0.0,), deviation=(2.0,)), examples)
        measures.update(Values(actual, actual + errors(generator, examples)))
        return measures

    return Population(draw, mse)


POPULATIONS: Mapping[str, Population] = {
    "2 classes, AUC 0.76": classification(EVEN, 0.7),
    "2 classes, 1 in 17, AUC 0.92": classification(RARE, 1.4),
    "3 uneven classes, accuracy 0.6": classification(UNEVEN, 1.0),
    "3 uneven classes, accuracy 0.95": classification(UNEVEN, 2.8),
    "10 classes, accuracy 0.6": classification((0.1,) * 10, 1.8),
    "10 classes, accuracy 0.98": classification((0.1,) * 10, 4.0),
    "10 classes, accuracy 0.998": classification((0.1,) * 10, 5.2),
    "20 classes, accuracy 0.2": classification((0.05,) * 20, 1.0),
    "20 uneven classes, accuracy 0.5": classification(ZIPF, 1.8),
    "20 uneven classes, accuracy 0.8": classification(ZIPF, 2.8),
    "4 labels": multilabel((0.2, 0.3, 0.4, 0.5), 1.5, 0.0),
    "4 labels that go together": multilabel((0.2, 0.3, 0.4, 0.5), 3.0, 0.6),
    "4 labels, exact match 0.98": multilabel((0.2, 0.3, 0.4, 0.5), 5.5, 0.3),
    "normal errors": regression(lambda generator, n: generator.normal(size=n)),
    "Laplace errors": regression(lambda generator, n: generator.laplace(size=n)),
    "errors of t, 5 degrees": regression(lambda generator, n: generator.standard_t(5, n)),
    "errors of t, 3 degrees": regression(lambda generator, n: generator.standard_t(3, n), 3.0),
    "errors of t, 2.5 degrees": regression(lambda generator, n: generator.standard_t(2.5, n), 5.0),
    "lognormal errors": regression(lambda generator, n: generator.lognormal(size=n)),
    "lognormal targets": regression(
        lambda generator, n: generator.normal(size=n), targets=lambda generator, n: generator.lognormal(size=n)
    ),
    "9 of 10 errors are 0": regression(lambda generator, n: generator.normal(size=n) * (generator.random(n) < 0.1)),
    "9 of 10 errors are 0.3": regression(
        lambda generator, n: 0.3 + generator.normal(size=n) * (generator.random(n) < 0.1)
    ),
}


def coverage(
    population: Population, examples: int, samples: int, seed: int = 0
) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield each metric with an interval, its value, the fraction of the intervals that contain it, and their median
    width; and the fraction of samples with an interval."""
    generator = np.random.default_rng(seed)
    truth = population.metrics(generator)
    covered, widths = Counter[str](), defaultdict[str, list[float]](list)
    for _ in range(samples):
        for name, (low, high) in population.draw(generator, examples).intervals().items():
            covered[name] += low - 1e-9 <= truth[name] <= high + 1e-9
            widths[name].append(high - low)
    for name, found in widths.items():
        if len(found) >= FEWEST_SHOWN * samples:
            yield name, truth[name], covered[name] / len(found), float(np.median(found)), len(found) / samples


if __name__ == "__main__":
    samples, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2].split(",")]
    chosen = [name for name in POPULATIONS if all(word in name for word in sys.argv[3:])]
    for population in chosen:
        for size in sizes:
            for name, value, share, width, shown in coverage(POPULATIONS[population], size, samples):
                mark = "  <" if share < 0.93 else ""
                print(f"{population:34} {size:5} {name:26} {value:8.4f} {share:6.1%} {width:8.4f} {shown:5.0%}{mark}")
