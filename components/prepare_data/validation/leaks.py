"""Find inputs that alone predict the target, such as a copy of it: what the network learns is then useless.

Each input is measured by the AUC of the classes, or the R² of the target, that it reaches alone on the training split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slipway.components.prepare_data.encoding.messages import all_values
from slipway.components.prepare_data.encoding.records import ShardFile, read_sample
from slipway.core.formatting import number
from slipway.core.manifest import Manifest

# The training examples that are compared: fewer with many inputs.
MAX_EXAMPLES = 10_000
MAX_VALUES = 2_000_000
FEWEST_EXAMPLES = 50
# An input below SUSPECT in these is not measured on more.
FIRST_EXAMPLES, SUSPECT = 1000, 0.9
# The AUC or R² from which an input is named.
LEAST = 0.95
MAX_NAMED = 5
EXCLUDE = "If it is not known when the model is used, exclude it: data.inputs names the inputs."
# An input's part of what a model's AUC has above 0.5, or of its R², from which it is near the model's; and the least
# AUC or R² that is.
NEAR, LEAST_NEAR = 0.95, {"classification": 0.75, "regression": 0.5}


class Scores(NamedTuple):
    """The AUC or R² that inputs reach alone, highest first; those `equal` to the labels; the `examples` compared."""

    reached: dict[str, float]
    equal: frozenset[str]
    examples: int


def leak_notes(shards: Sequence[ShardFile], manifest: Manifest) -> list[str]:
    """Return a note on the inputs that alone predict the class or the target, if there are any.

    Args:
        shards: The files of the training split.
        manifest: The data set's manifest.
    """
    suspect = _scores(shards, manifest, _comparable(manifest), FIRST_EXAMPLES, SUSPECT).reached
    most = min(MAX_EXAMPLES, max(FEWEST_EXAMPLES, MAX_VALUES // max(1, len(suspect))))
    leaks = _scores(shards, manifest, list(suspect), most, LEAST)
    if not leaks.reached:
        return []
    measure, target = ("R²", "target") if manifest.task == "regression" else ("AUC", "class")
    shown = [
        f"{name} ({'equal to it' if name in leaks.equal else f'{measure} {number(reached)}'})"
        for name, reached in leaks.reached.items()
    ]
    more = f" and {len(shown) - MAX_NAMED:,} more" if len(shown) > MAX_NAMED else ""
    named = ", ".join(shown[:MAX_NAMED]) + more
    those = f"The input {named} alone predicts" if len(shown) == 1 else f"Each of the inputs {named} alone predicts"
    return [f"{those} the {target}, in {leaks.examples:,} training examples compared. {EXCLUDE}"]


def near_model_notes(folder: Path, manifest: Manifest, metrics: Mapping[str, float]) -> list[str]:
    """Return a note on the inputs that alone reach nearly the AUC or R² of a model of several inputs, if any do.

    Args:
        folder: The folder of the shards.
        manifest: The data set's manifest.
        metrics: The model's metrics on the test split.
    """
    of_regression = manifest.task == "regression"
    value, chance = metrics.get("r2" if of_regression else "macro_auc"), 0.0 if of_regression else 0.5
    if value is None or "train" not in manifest.splits or len(manifest.inputs) < 2:
        return []
    least = max(LEAST_NEAR.get(manifest.task, 1.0), chance + NEAR * (value - chance))
    shards = [folder / shard.file for shard in manifest.splits["train"].shards]
    near = _scores(shards, manifest, _comparable(manifest), FIRST_EXAMPLES, least)
    if not near.reached:
        return []
    measure = "R²" if of_regression else "AUC"
    those = "one input reaches" if len(near.reached) == 1 else f"each of {len(near.reached):,} inputs reaches"
    shown = ", ".join(f"{name} {number(reached)}" for name, reached in list(near.reached.items())[:MAX_NAMED])
    return [
        f"The model's {measure} is {number(value, 4)}, and {those} nearly as much or more alone: {shown}, in "
        f"{near.examples:,} training examples compared. {EXCLUDE}"
    ]


def _comparable(manifest: Manifest) -> list[str]:
    """Return the inputs of one value; none of a task with several labels."""
    inputs = manifest.inputs.items() if manifest.task != "multilabel" else ()
    return [name for name, network_input in inputs if network_input.kind != "image" and not network_input.stored_shape]


def _scores(shards: Sequence[ShardFile], manifest: Manifest, names: Sequence[str], count: int, least: float) -> Scores:
    """Return the scores of at least `least` among these inputs, on the first `count` training examples."""
    if not names:
        return Scores({}, frozenset(), 0)
    from slipway.components.prepare_data.validation.input_scores import score  # imports NumPy

    labels, *columns = map(all_values, read_sample(shards, ["label", *names], count).values())
    values = dict(zip(names, columns, strict=True))
    scores = {name: score(values[name], labels, manifest.inputs[name], manifest.task) for name in names}
    reached = sorted(((name, value) for name, value in scores.items() if value >= least), key=lambda pair: -pair[1])
    return Scores(dict(reached), frozenset(name for name, _ in reached if values[name] == labels), len(labels))
