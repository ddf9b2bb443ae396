"""AutoGluon's preset medium_quality without networks on a table with a split: prints the metric on the test split.

`benchmarks.quality --autogluon PYTHON` runs it with a Python that has `autogluon.tabular[lightgbm,catboost,xgboost]`,
which needs other versions of its libraries than Slipway: `python quality_autogluon.py TABLE FOLDER`.
"""

from __future__ import annotations

import sys

import pandas as pd
from autogluon.tabular import TabularPredictor

NETWORKS = ["NN_TORCH", "FASTAI"]


def main() -> None:
    """Fit to the training split, of which AutoGluon holds rows out itself."""
    table, folder = sys.argv[1:]
    rows = pd.read_csv(table, dtype={"zip": str}).drop(columns="person", errors="ignore")
    parts = {split: part.drop(columns="split") for split, part in rows.groupby("split")}
    predictor = TabularPredictor("target", path=folder, verbosity=0)
    predictor.fit(parts["train"], presets="medium_quality", excluded_model_types=NETWORKS, num_cpus=1)
    predicted, target = predictor.predict(parts["test"]), parts["test"]["target"]
    is_number = pd.api.types.is_float_dtype(target)
    print(((predicted - target) ** 2).mean() ** 0.5 if is_number else (predicted == target).mean())


if __name__ == "__main__":
    main()
