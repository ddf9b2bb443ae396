"""Export of LightGBM's boosters: one, or several whose raw scores are averaged, such as those of the folds."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.trainer.export.export import Writer
from slipway.trainer.export.threshold import Decision

if TYPE_CHECKING:
    import tensorflow as tf

    from slipway.trainer.trees.forest import Columns, Nodes, Split

# The objectives whose raw scores are logits or the standardized target, by the type of target.
LOGITS = ("binary", "multiclass", "cross_entropy")
IDENTITY = ("regression", "regression_l1", "huber", "fair", "quantile", "mape")
EXPONENTIAL = ("poisson", "gamma", "tweedie")
REFUSED = {"zero_as_missing": "zeros that are missing values", "linear_tree": "linear models in its leaves"}


def writer(model: Any) -> Writer | None:
    """Return what writes a booster, or a sequence of boosters; None for another model. Does not import LightGBM."""
    lightgbm = sys.modules.get("lightgbm")
    if lightgbm is None:
        return None
    models = list(model) if isinstance(model, list | tuple) else [model]
    boosters = [getattr(booster, "booster_", booster) if _is_fitted(booster) else booster for booster in models]
    if not boosters or not all(isinstance(booster, lightgbm.Booster) for booster in boosters):
        return None
    return functools.partial(_write, boosters)


def _is_fitted(model: Any) -> bool:
    return getattr(model, "fitted_", False) is True  # an estimator such as LGBMClassifier


def _write(boosters: Sequence[Any], folder: Path, manifest: Manifest, decide: Decision) -> tuple[str, float | None]:
    from slipway.trainer.trees.forest import Forest, check_outputs, write

    events.phase("exporting the trees")
    dumps = [booster.dump_model() for booster in boosters]
    outputs = dumps[0]["num_tree_per_iteration"]
    check_outputs(outputs, manifest, "booster")
    links = {_link(dump) for dump in dumps}
    if len(links) > 1 or any(dump["num_tree_per_iteration"] != outputs for dump in dumps):
        raise UserError(
            "The boosters have different objectives, so their raw scores cannot be averaged.",
            allowed="boosters of one objective",
        )
    columns = _columns({dump["max_feature_idx"] + 1 for dump in dumps}, manifest)
    forest = Forest(nodes_of(dumps), dumps[0]["max_feature_idx"] + 1, outputs, models=len(dumps))
    return write(folder, forest, columns, manifest, decide, _function(*links.pop()))


def nodes_of(dumps: Sequence[dict[str, Any]]) -> Nodes:
    """Return the nodes of boosters, given what `Booster.dump_model` returns.

    Raises:
        UserError: A booster has trees of a kind that cannot be exported.
    """
    from slipway.trainer.trees.forest import Nodes

    nodes = Nodes()
    for dump in dumps:
        if dump.get("average_output"):
            raise _unsupported("the boosting type rf, a random forest", "another setting of boosting, such as gbdt")
        for tree in dump["tree_info"]:
            nodes.add(tree["tree_structure"], _opened)
    return nodes


def _opened(node: dict[str, Any]) -> tuple[Split, dict[str, Any], dict[str, Any]] | float:
    """Return a leaf's output, or a split with its children; see `Decision` in LightGBM's tree.h."""
    from slipway.trainer.trees.forest import Split

    if "split_index" not in node:
        if "leaf_coeff" in node:
            raise _unsupported("linear models in its leaves", "linear_tree=False")
        return float(node["leaf_value"])
    if node["missing_type"] == "Zero":
        raise _unsupported("zeros that are missing values", "zero_as_missing=False")
    children = node["left_child"], node["right_child"]
    column, threshold = node["split_feature"], node["threshold"]
    if node["decision_type"] == "==":
        categories = frozenset(map(int, str(threshold).split("||")))
        return Split(column, 0.0, missing_goes_left=False, categories=categories), *children
    # Where no value was missing in training, NaN is 0.
    missing_goes_left = node["default_left"] if node["missing_type"] == "NaN" else threshold >= 0
    return Split(column, float(threshold), bool(missing_goes_left)), *children


def _columns(counts: set[int], manifest: Manifest) -> Columns:
    """Return the function of the columns to which boosters with these numbers of features were fitted.

    Raises:
        UserError: They were fitted to something else.
    """
    from slipway.trainer.data.features import matrix
    from slipway.trainer.trees import table

    widths = {table.columns: table.width(manifest), matrix: table.matrix_width(manifest)}
    for columns, width in widths.items():
        if counts == {width}:
            return columns
    raise UserError(
        f"The booster has {', '.join(map(str, sorted(counts)))} features, but the data set has "
        f"{widths[table.columns]} columns.",
        allowed="a booster that was fitted to the columns of slipway.trainer.trees.table.read, or of "
        "slipway.training.data().table",
    )


def _link(dump: dict[str, Any]) -> tuple[str, float]:
    """Return the name of the function from raw scores to the network's outputs, and its factor.

    Raises:
        UserError: The objective has another one.
    """
    name, *parameters = dump["objective"].split()
    values = dict(part.split(":") for part in parameters if ":" in part)
    if name in LOGITS:
        return "scaled", float(values.get("sigmoid", 1))
    if name in IDENTITY and "sqrt" not in parameters:
        return "scaled", 1.0
    if name in EXPONENTIAL:
        return "exponential", 1.0
    raise UserError(
        f"Trees of the objective {dump['objective']} cannot be exported.",
        setting="objective",
        value=name,
        allowed=", ".join(LOGITS + IDENTITY + EXPONENTIAL) + ", without reg_sqrt",
    )


def _function(name: str, factor: float) -> Callable[[tf.Tensor], tf.Tensor]:
    import tensorflow as tf

    if name == "exponential":
        return tf.exp
    return (lambda raw: raw * factor) if factor != 1 else tf.identity


def _unsupported(kind: str, fix: str) -> UserError:
    return UserError(f"The booster has {kind}, which cannot be exported.", allowed="trees of constant leaves", fix=fix)
