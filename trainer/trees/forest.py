"""Trees as arrays of TensorFlow: as part of a SavedModel, they need no library of trees.

All nodes of all trees are in one array, the two children of a node beside each other. An example goes down all trees at
once, one level at a time, until the tree's lowest leaf.

The libraries compare float64. Columns are float32, for which thresholds that are rounded down to float32 make the same
decisions. There are two copies of the columns, with a missing number as the lowest and as the highest one, and a node
has a column of one or the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.export import saved_model
from slipway.trainer.export.threshold import Decision

# Examples times trees that are held in memory at once.
MAX_POSITIONS = 1 << 21
WORD_BITS = 32
# Maps the network's decoded inputs to the columns that trees were fitted to, float32 [batch, columns].
Columns: TypeAlias = Callable[[Any, Manifest], tf.Tensor]


@dataclass(frozen=True)
class Split:
    """The split of an inner node.

    Attributes:
        column: The column whose value is compared.
        threshold: Values up to this one go left; without meaning if there are `categories`.
        missing_goes_left: Whether NaN goes left.
        categories: The values, from 0, that go left; None if the column is a number.
    """

    column: int
    threshold: float
    missing_goes_left: bool
    categories: frozenset[int] | None = None


@dataclass
class Nodes:
    """The nodes of all trees, in the order in which `add` received them; the lists have one element per node.

    Attributes:
        roots: The root of each tree.
        depths: The number of nodes above the lowest leaf of each tree.
        left: The left child, which the right one follows; a leaf's is itself.
        splits: The split; None at a leaf.
        values: The output of a leaf.
    """

    roots: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    splits: list[Split | None] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, root: Any, opened: Callable[[Any], tuple[Split, Any, Any] | float]) -> None:
        """Add a tree.

        Args:
            root: The root, of the library's type.
            opened: Returns the output of a leaf, or the split of another node with its left and its right child.
        """
        self.roots.append(len(self.left))
        level = [root]
        self._reserve(1)
        first, depth = self.roots[-1], 0
        while level:  # the nodes of a level are beside each other
            children: list[Any] = []
            for number, node in enumerate(map(opened, level), first):
                if isinstance(node, tuple):
                    self.splits[number], self.left[number] = node[0], len(self.left)
                    children += node[1:]
                    self._reserve(2)
                else:
                    self.values[number], self.left[number] = node, number
            first += len(level)
            depth += bool(children)
            level = children
        self.depths.append(depth)

    def _reserve(self, count: int) -> None:
        self.left += [0] * count
        self.splits += [None] * count
        self.values += [0.0] * count


class Forest:
    """Trees that TensorFlow evaluates.

    Attributes:
        variables: The arrays.

    Args:
        nodes: The nodes of the trees: of each round of boosting, one tree for each output.
        columns: The number of columns.
        outputs: The number of outputs.
        baseline: What is added to the sums of leaves, float64 [outputs].
        models: The number of models whose raw scores are averaged.
    """

    def __init__(
        self, nodes: Nodes, columns: int, outputs: int, baseline: NDArray[np.float64] | None = None, models: int = 1
    ) -> None:
        leaf = Split(0, np.inf, missing_goes_left=True)  # whose left child is itself
        splits = [split or leaf for split in nodes.splits]
        self._trees, self._outputs, self._models = len(nodes.roots), outputs, models
        depths = np.array(nodes.depths, np.int32)
        order = np.argsort(-depths, kind="stable")  # the deepest trees first: others end before them
        self._active = [int((depths > level).sum()) for level in range(depths.max(initial=0))]
        self._roots = tf.Variable(np.array(nodes.roots, np.int32)[order])
        self._position = tf.Variable(np.argsort(order).astype(np.int32))
        self._left = tf.Variable(np.array(nodes.left, np.int32))
        self._columns = columns
        copies = [split.column + (0 if split.missing_goes_left or split.categories else columns) for split in splits]
        self._column = tf.Variable(np.array(copies, np.int32))
        self._threshold = tf.Variable(_rounded_down([split.threshold for split in splits]))
        self._value = tf.Variable(np.array(nodes.values, np.float64))
        self._baseline = tf.Variable(np.zeros(outputs) if baseline is None else baseline.astype(np.float64))
        self.variables = [
            self._roots, self._position, self._left, self._column, self._threshold, self._value, self._baseline,
        ]  # fmt: skip
        self._has_categories = any(split.categories is not None for split in splits)
        if self._has_categories:
            words = [_words(split.categories) for split in splits]
            counts = np.array([0 if bits is None else len(bits) for bits in words], np.int32)
            self._is_category = tf.Variable(np.array([bits is not None for bits in words]))
            self._first_word = tf.Variable(np.cumsum(counts, dtype=np.int32) - counts)
            self._bits = tf.Variable((counts * WORD_BITS).astype(np.int32))
            listed = [bits for bits in words if bits is not None]
            self._words = tf.Variable(np.concatenate([*listed, np.zeros(1, np.uint32)]).view(np.int32))
            self.variables += [self._is_category, self._first_word, self._bits, self._words]

    @property
    def checksum(self) -> str:
        """SHA-256 (hex) of the arrays."""
        return hashlib.sha256(b"".join(variable.numpy().tobytes() for variable in self.variables)).hexdigest()

    def raw_scores(self, columns: tf.Tensor) -> tf.Tensor:
        """Return the mean of the models' sums of leaves, float64 [batch, outputs], for float32 [batch, columns]."""
        if not self._trees:
            return tf.zeros([tf.shape(columns)[0], self._outputs], tf.float64) + self._baseline
        count, together = tf.shape(columns)[0], max(1, MAX_POSITIONS // self._trees)
        steps = tf.maximum(1, (count + together - 1) // together)
        parts = tf.TensorArray(tf.float64, size=steps, infer_shape=False, element_shape=[None, self._outputs])

        def step(number: tf.Tensor, parts: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            part = columns[number * together : (number + 1) * together]
            return number + 1, parts.write(number, self._sums(part))

        _, parts = tf.while_loop(lambda number, _: number < steps, step, (0, parts), parallel_iterations=1)
        return parts.concat() / self._models + self._baseline

    def _sums(self, columns: tf.Tensor) -> tf.Tensor:
        count = tf.shape(columns)[0]
        is_missing = tf.math.is_nan(columns)
        copies = [tf.where(is_missing, np.float32(limit), columns) for limit in (-np.inf, np.inf)]
        values = tf.reshape(tf.concat(copies, axis=1), [-1])
        row = tf.range(count)[:, tf.newaxis] * (2 * self._columns)
        node = tf.tile(self._roots[tf.newaxis, :], [count, 1])
        ended = []
        for active in self._active:
            ended.append(node[:, active:])
            node = node[:, :active]
            value = tf.gather(values, row + tf.gather(self._column, node))
            goes_right = value > tf.gather(self._threshold, node)
            if self._has_categories:
                goes_right = tf.where(tf.gather(self._is_category, node), ~self._is_in(value, node), goes_right)
            node = tf.gather(self._left, node) + tf.cast(goes_right, tf.int32)
        leaves = tf.gather(self._value, tf.gather(tf.concat([node, *reversed(ended)], axis=1), self._position, axis=1))
        return tf.reduce_sum(tf.reshape(leaves, [count, self._trees // self._outputs, self._outputs]), axis=1)

    def _is_in(self, category: tf.Tensor, node: tf.Tensor) -> tf.Tensor:
        """Return whether the bits of the nodes' categories are set."""
        bits = tf.gather(self._bits, node)
        known = (category > -1) & (category < tf.cast(bits, tf.float32))
        position = tf.cast(tf.where(known, category, tf.zeros_like(category)), tf.int32)
        word = tf.gather(self._words, tf.gather(self._first_word, node) + position // WORD_BITS)
        return known & (tf.bitwise.bitwise_and(tf.bitwise.right_shift(word, position % WORD_BITS), 1) == 1)


def _rounded_down(thresholds: list[float]) -> NDArray[np.float32]:
    """Return the largest float32 up to each threshold."""
    exact = np.array(thresholds, np.float64)
    with np.errstate(over="ignore"):
        nearest = exact.astype(np.float32)
    return np.where(nearest > exact, np.nextafter(nearest, np.float32(-np.inf)), nearest)


def _words(categories: frozenset[int] | None) -> NDArray[np.uint32] | None:
    """Return a set as bits."""
    if categories is None:
        return None
    words = np.zeros(max(categories, default=0) // WORD_BITS + 1, np.uint32)
    for category in categories:
        words[category // WORD_BITS] |= np.uint32(1 << category % WORD_BITS)
    return words


def check_outputs(outputs: int, manifest: Manifest, kind: str) -> None:
    """Raise UserError if trees predict something else than the data set's classes or target.

    Args:
        outputs: The number of the trees' outputs; one logit of two classes.
        manifest: The data set's manifest.
        kind: What has the trees, such as "booster".
    """
    expected = manifest.outputs if len(manifest.classes) > 2 else 1
    if manifest.task == "multilabel" or outputs != expected:
        raise UserError(
            f"The {kind} has {outputs} output{'' if outputs == 1 else 's'}, but the data set has {manifest.outputs} "
            f"{'labels' if manifest.task == 'multilabel' else 'classes' if manifest.classes else 'target'}.",
            allowed=f"{kind}s of the data set's labels, for classification or regression",
        )


def write(
    folder: Path,
    forest: Forest,
    columns: Columns,
    manifest: Manifest,
    decide: Decision,
    link: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> tuple[str, float | None]:
    """Write trees as a SavedModel that accepts a table's rows.

    Args:
        folder: An existing folder.
        forest: The trees.
        columns: What they were fitted to.
        manifest: The data set's manifest.
        decide: Returns the decision threshold of a network.
        link: Maps raw scores, float64 [batch, outputs], to logits or the standardized target.

    Returns:
        The checksum of the trees, and the decision threshold.
    """

    def network(inputs: Any) -> tf.Tensor:
        outputs = tf.cast(link(forest.raw_scores(columns(inputs, manifest))), tf.float32)
        return tf.concat([tf.zeros_like(outputs), outputs], axis=1) if len(manifest.classes) == 2 else outputs

    threshold = decide(network)
    saved_model.write(folder, network, forest.variables, manifest, threshold)
    return forest.checksum, threshold
