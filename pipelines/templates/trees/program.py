"""Gradient-boosted trees: `train.module` in slipway.yaml names this program."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import log_loss, mean_squared_error

from slipway import training

RATES, LEAVES = (0.03, 0.1), (4, 15)


def fitted(data: training.Data, iterations: int) -> tuple[Any, float]:
    """Return the estimator with the lowest loss on the validation split, and that loss."""
    (x, y), (held_out, expected) = data.table("train"), data.table("validation")
    regression = data.manifest.target is not None
    best: tuple[Any, float] = (None, np.inf)
    for rate in RATES:
        for leaves in LEAVES:
            kind = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
            model = kind(
                learning_rate=rate, max_iter=iterations, max_leaf_nodes=leaves, min_samples_leaf=10, random_state=0,
                early_stopping=True, n_iter_no_change=15, validation_fraction=None,
            )  # fmt: skip
            model.fit(x, y, X_val=held_out, y_val=expected)
            if regression:
                loss = mean_squared_error(expected, model.predict(held_out))
            else:
                loss = log_loss(expected, model.predict_proba(held_out), labels=model.classes_)
            if loss < best[1]:
                best = model, float(loss)
    return best


def main() -> None:
    """Train on one replica; the others of a larger cluster have nothing to do."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--threshold", choices=["f1", "youden"], help="of two classes; default: the more probable one")
    options = parser.parse_args()
    if not training.cluster().is_chief:
        return
    model, loss = fitted(training.data(), options.iterations)
    training.report(model.n_iter_, kind="validation", loss=loss)
    training.export(model, threshold=options.threshold)
    training.finish()


if __name__ == "__main__":
    main()
