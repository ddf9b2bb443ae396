"""Gradient-boosted trees: the template `trees` on LightGBM, and trees as SavedModels."""

from slipway.extensions import Extension, Template

EXTENSION = Extension(
    "trees",
    packages=("slipway.pipelines.trees",),
    templates={
        "trees": Template(
            "slipway.pipelines.trees",
            "gradient-boosted trees on a table",
            "slipway.pipelines.trees.configuration:sections",
            kinds=("number", "integer", "category", "date"),
        )
    },
    writers=("slipway.trainer.trees.boosters:writer", "slipway.trainer.trees.sklearn_trees:writer"),
    checks=("slipway.pipelines.trees.checks:CHECKS",),
)
