"""Coverage of the 95% confidence intervals, by simulation: `python -m tests.components.evaluate.coverage`.

A population's metrics are those of 200,000 examples. Samples of it are evaluated, and the intervals that contain the
population's metrics are counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from slipway.components.evaluate.measures.base import Measures
from slipway.components.evaluate.measures.classification import ClassificationMeasures, Predictions
from slipway.components.evaluate.measures.multilabel import LabelPredictions, MultilabelMeasures
from slipway.components.evaluate.measures.regression import RegressionMeasures, Values
from slipway.core.manifest import Input

POPULATION = 200_000
Draw = Callable[[np.random.Generator, int], Measures]
EVEN, UNEVEN, RARE = (0.5, 0.5), (0.6, 0.3, 0.1), (0.94, 0.06)


def classification(shares: tuple[float, ...], strength: float) -> Draw:
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

    return draw


def multilabel(shares: tuple[float, ...], strength: float, common: float) -> Draw:
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

    return draw


def regression(errors: Callable[[np.random.Generator, int], np.ndarray]) -> Draw:
    """Normal targets, and errors of this distribution."""

    def draw(generator: np.random.Generator, examples: int) -> Measures:
        actual = generator.normal(0, 2, examples)
        measures = RegressionMeasures(Input(kind="number", mean=(0.0,), deviation=(2.0,)), examples)
        measures.update(Values(actual, actual + errors(generator, examples)))
        return measures

    return draw


POPULATIONS: Mapping[str, Draw] = {
    "2 classes, AUC 0.76": classification(EVEN, 0.7),
    "2 classes, 1 in 17, AUC 0.92": classification(RARE, 1.4),
    "3 uneven classes, accuracy 0.6": classification(UNEVEN, 1.0),
    "3 uneven classes, accuracy 0.95": classification(UNEVEN, 2.8),
    "10 classes, accuracy 0.6": classification((0.1,) * 10, 1.8),
    "10 classes, accuracy 0.98": classification((0.1,) * 10, 4.0),
    "10 classes, accuracy 0.998": classification((0.1,) * 10, 5.2),
    "4 labels": multilabel((0.2, 0.3, 0.4, 0.5), 1.5, 0.0),
    "4 labels that go together": multilabel((0.2, 0.3, 0.4, 0.5), 3.0, 0.6),
    "4 labels, exact match 0.98": multilabel((0.2, 0.3, 0.4, 0.5), 5.5, 0.3),
    "normal errors": regression(lambda generator, n: generator.normal(size=n)),
    "Laplace errors": regression(lambda generator, n: generator.laplace(size=n)),
    "errors of t, 5 degrees": regression(lambda generator, n: generator.standard_t(5, n)),
    "errors of t, 3 degrees": regression(lambda generator, n: generator.standard_t(3, n)),
}


def coverage(draw: Draw, examples: int, samples: int, seed: int = 0) -> Iterator[tuple[str, float, float, float]]:
    """Yield each metric with an interval, its value, the fraction of samples that cover it, and the mean width."""
    generator = np.random.default_rng(seed)
    truth = draw(generator, POPULATION).metrics()
    covered, shown, widths = Counter[str](), Counter[str](), Counter[str]()
    for _ in range(samples):
        for name, (low, high) in draw(generator, examples).intervals().items():
            shown[name] += 1
            covered[name] += low - 1e-9 <= truth[name] <= high + 1e-9
            widths[name] += min(high, 1e9) - low
    for name, count in shown.items():
        yield name, truth[name], covered[name] / count, widths[name] / count


if __name__ == "__main__":
    samples, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2].split(",")]
    chosen = [name for name in POPULATIONS if all(word in name for word in sys.argv[3:])]
    for population in chosen:
        for size in sizes:
            for name, value, share, width in coverage(POPULATIONS[population], size, samples):
                mark = "  <" if share < 0.93 else ""
                print(f"{population:34} {size:5} {name:26} {value:8.4f} {share:6.1%} {width:8.4f}{mark}")
