"""Find inputs that alone predict the target, such as a copy of it: what the network learns is then useless.

Each input is measured by the AUC of the classes, or the R² of the target, that it reaches alone on the training split.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from slipway.components.prepare_data.encoding.messages import all_values
from slipway.components.prepare_data.encoding.records import read_columns
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

Value: TypeAlias = bytes | float | int


def leak_notes(folder: Path, manifest: Manifest) -> list[str]:
    """Return a note on the inputs that alone predict the class or the target, if there are any.

    Args:
        folder: The folder of the shards.
        manifest: The data set's manifest.
    """
    names = [name for name, each in manifest.inputs.items() if each.kind != "image" and not each.stored_shape]
    if not names or manifest.task == "multilabel":
        return []
    from slipway.components.prepare_data.validation.input_scores import score  # imports NumPy

    first, most = FIRST_EXAMPLES, min(MAX_EXAMPLES, max(FEWEST_EXAMPLES, MAX_VALUES // len(names)))
    for count, least in ((first, SUSPECT), (most, LEAST)):
        labels, columns = _read(folder, manifest, names, count)
        scores = {name: score(columns[name], labels, manifest.inputs[name], manifest.task) for name in names}
        leaks = {name: reached for name, reached in scores.items() if reached >= least}
        if not (names := list(leaks)):
            return []
    measure, target = ("R²", "target") if manifest.task == "regression" else ("AUC", "class")
    shown = [
        f"{name} ({'equal to it' if columns[name] == labels else f'{measure} {reached:.4f}'})"
        for name, reached in sorted(leaks.items(), key=lambda pair: -pair[1])
    ]
    named = ", ".join(shown[:MAX_NAMED]) + (f" and {len(leaks) - MAX_NAMED:,} more" if len(leaks) > MAX_NAMED else "")
    those = f"The input {named} alone predicts" if len(leaks) == 1 else f"Each of the inputs {named} alone predicts"
    return [
        f"{those} the {target}, in {len(labels):,} training examples compared. If it is not known when the model is "
        "used, exclude it: data.inputs names the inputs."
    ]


def _read(
    folder: Path, manifest: Manifest, names: Sequence[str], count: int
) -> tuple[list[Value], dict[str, list[Value]]]:
    """Return the labels and the inputs of the first training examples."""
    shards = (folder / shard.file for shard in manifest.splits["train"].shards)
    label, *columns = map(all_values, read_columns(shards, ["label", *names], count).values())
    return label, dict(zip(names, columns, strict=True))
