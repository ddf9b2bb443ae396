"""Gradient-boosted trees of LightGBM, bagged over folds: `train.module` in slipway.yaml names this program."""

from __future__ import annotations

import argparse

from slipway import training
from slipway.trainer.trees import bagging, table

# LightGBM's parameters; the objective and the number of classes are those of the data set.
SETTINGS = {
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 5,
    "extra_trees": True,  # random thresholds: the folds' trees differ more, and their mean is better
    "feature_fraction": 0.7,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "lambda_l2": 1.0,
}


def main() -> None:
    """Train a booster for each fold, and export the mean of their predictions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2000, help="the largest number of rounds of boosting")
    parser.add_argument("--patience", type=int, default=50, help="rounds without a lower loss after which a fold ends")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threshold", choices=["f1", "youden"], help="of two classes; default: the more probable one")
    options = parser.parse_args()
    data = training.data()
    rows = table.read(data.files("train"), data.manifest)
    bag = bagging.Bagging(SETTINGS, options.folds, options.rounds, options.patience, seed=options.seed)
    boosters = bag.train(rows, training.checkpoint_dir(), training.report, data.manifest.fingerprint)
    training.export(boosters, threshold=options.threshold)
    training.finish()


if __name__ == "__main__":
    main()
