"""Export of scikit-learn's HistGradientBoosting, fitted to `slipway.training.Data.table`."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import numpy as np

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.export.export import Writer
from slipway.trainer.export.threshold import Decision


def writer(model: Any) -> Writer | None:
    """Return what writes a HistGradientBoosting estimator; None for another model. Does not import scikit-learn."""
    ensemble = sys.modules.get("sklearn.ensemble")
    kinds = ("HistGradientBoostingClassifier", "HistGradientBoostingRegressor")
    if ensemble is None or not isinstance(model, tuple(getattr(ensemble, kind) for kind in kinds)):
        return None
    return functools.partial(_write, model)


def _write(model: Any, folder: Path, manifest: Manifest, decide: Decision) -> tuple[str, float | None]:
    from slipway.trainer.data.features import matrix
    from slipway.trainer.trees.forest import Forest, Nodes, Split, check_outputs, write

    check_outputs(model.n_trees_per_iteration_, manifest, "estimator")
    nodes = Nodes()
    # [iterations][outputs]; scikit-learn has no public access to the nodes.
    for table in (tree.nodes for iteration in model._predictors for tree in iteration):
        if table["is_categorical"].any():
            raise UserError(
                "The estimator has categorical features, which cannot be exported.",
                fix="leave categorical_features out: the columns of a category are 0 and 1",
            )

        def opened(index: int, table: Any = table) -> tuple[Split, int, int] | float:
            node = table[index]
            if node["is_leaf"]:
                return float(node["value"])
            split = Split(int(node["feature_idx"]), float(node["num_threshold"]), bool(node["missing_go_to_left"]))
            return split, int(node["left"]), int(node["right"])

        nodes.add(0, opened)
    baseline = np.ravel(model._baseline_prediction).astype(np.float64)
    forest = Forest(nodes, model.n_features_in_, model.n_trees_per_iteration_, baseline)
    return write(folder, forest, matrix, manifest, decide)
