"""Export of scikit-learn's HistGradientBoosting as a SavedModel, which needs no scikit-learn.

An estimator is a sum of trees for each output. All nodes of all trees are in one array; an example goes down all trees
at once, one level at a time.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.data.features import matrix
from slipway.trainer.export import saved_model
from slipway.trainer.export.threshold import Decision


def is_boosted(model: Any) -> bool:
    """Return whether a model is a HistGradientBoosting estimator, without importing scikit-learn."""
    ensemble = sys.modules.get("sklearn.ensemble")
    if ensemble is None:
        return False
    return isinstance(model, ensemble.HistGradientBoostingClassifier | ensemble.HistGradientBoostingRegressor)


def write_custom(folder: Path, model: Any, manifest: Manifest, decide: Decision) -> tuple[str, float | None]:
    """Write a fitted estimator of `slipway.training.Data.table` as a SavedModel.

    Returns:
        The checksum of its trees, and the decision threshold.

    Raises:
        UserError: It predicts something else than the data set's classes or target.
    """
    expected = manifest.outputs if len(manifest.classes) > 2 else 1  # one logit of two classes
    outputs = model.n_trees_per_iteration_
    if manifest.task == "multilabel" or outputs != expected:
        raise UserError(
            f"The estimator has {outputs} outputs, but the data set has {manifest.outputs}.",
            allowed="an estimator of the labels of slipway.training.data().table('train'), for classification "
            "or regression",
        )
    trees = Trees(model)
    network = trees.outputs(manifest)
    threshold = decide(network)
    saved_model.write(folder, network, trees.variables, manifest, threshold)
    return hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in trees.variables)).hexdigest(), threshold


class Trees:
    """The trees of an estimator as arrays of TensorFlow.

    Attributes:
        variables: The arrays.
        depth: The number of nodes above the lowest leaf.
    """

    def __init__(self, model: Any) -> None:
        # [iterations][outputs]; scikit-learn has no public access to the nodes.
        trees = [tree.nodes for iteration in model._predictors for tree in iteration]
        if any(nodes["is_categorical"].any() for nodes in trees):
            raise UserError(
                "The estimator has categorical features, which cannot be exported.",
                fix="leave categorical_features out: the columns of a category are 0 and 1",
            )
        starts = np.cumsum([0, *map(len, trees)])[:-1].astype(np.int32)
        nodes = np.concatenate(trees)
        shift = np.repeat(starts, [*map(len, trees)])
        indices = np.arange(len(nodes), dtype=np.int32)
        leaf = nodes["is_leaf"].astype(bool)
        self.depth = int(nodes["depth"].max(initial=0))
        self._roots = tf.Variable(starts)
        self._feature = tf.Variable(nodes["feature_idx"].astype(np.int32))
        self._threshold = tf.Variable(nodes["num_threshold"].astype(np.float64))
        self._left = tf.Variable(np.where(leaf, indices, nodes["left"] + shift).astype(np.int32))
        self._right = tf.Variable(np.where(leaf, indices, nodes["right"] + shift).astype(np.int32))
        self._value = tf.Variable(nodes["value"].astype(np.float64))
        self._baseline = tf.Variable(np.ravel(model._baseline_prediction).astype(np.float64))
        self._iterations, self._outputs = len(model._predictors), model.n_trees_per_iteration_
        self.variables = [
            self._roots, self._feature, self._threshold, self._left, self._right, self._value, self._baseline,
        ]  # fmt: skip

    def outputs(self, manifest: Manifest) -> saved_model.Outputs:
        """Return the function from the network's inputs to its outputs."""

        def network(inputs: Any) -> tf.Tensor:
            raw = tf.cast(self._sums(tf.cast(matrix(inputs, manifest), tf.float64)), tf.float32)
            return tf.concat([tf.zeros_like(raw), raw], axis=1) if len(manifest.classes) == 2 else raw

        return network

    def _sums(self, columns: tf.Tensor) -> tf.Tensor:
        """Return the sum of the leaves of each output, float64 [batch, outputs], for columns [batch, columns]."""
        node = tf.tile(self._roots[tf.newaxis, :], [tf.shape(columns)[0], 1])
        for _ in range(self.depth):
            value = tf.gather(columns, tf.gather(self._feature, node), batch_dims=1)
            goes_left = value <= tf.gather(self._threshold, node)
            node = tf.where(goes_left, tf.gather(self._left, node), tf.gather(self._right, node))
        leaves = tf.reshape(tf.gather(self._value, node), [-1, self._iterations, self._outputs])
        return tf.reduce_sum(leaves, axis=1) + self._baseline
