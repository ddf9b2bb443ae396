"""What a custom program writes, as far as its source says so."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from slipway.pipelines.programs.source import SourceFile

# What writes a model and metrics in place of the program.
EXPORTS = ("slipway.training.export", "slipway.training.model_dir")
REGISTERED = "let the chief write the model to slipway.training.model_dir()"
METRICS = 'let the chief write it, such as {"accuracy": 0.97} (slipway.training.finish), or set evaluate.module'


@dataclass(frozen=True)
class Output:
    """Something that a program should write.

    Attributes:
        text: What a text in a program that writes it ends in.
        why: Continues the sentence that begins with a program that does not.
        replacement: What to write instead.
        source: The page that says so.
        unless: Names of which one writes it, too.
    """

    text: str
    why: str
    replacement: str
    source: str
    unless: tuple[str, ...]


OUTPUTS = (
    Output(
        "AIP_MODEL_DIR",
        "saves no model to AIP_MODEL_DIR",
        REGISTERED,
        "https://cloud.google.com/vertex-ai/docs/training/code-requirements",
        EXPORTS,
    ),
    Output(
        "metrics.json",
        "writes no metrics.json to AIP_MODEL_DIR, by which a model is promoted",
        METRICS,
        "docs/your-own-training-loop.md",
        ("slipway.training",),
    ),
)


def occurring(files: Iterable[SourceFile]) -> set[str]:
    """Return the names and texts in files, and the parts of dotted names."""
    return {part for file in files for use in file.uses for part in (use.name, *use.name.split("."))}


def missing_outputs(names: Set[str]) -> list[Output]:
    """Return what a program should write and does not name, by the names and texts that occur in it."""
    return [
        row for row in OUTPUTS if names.isdisjoint(row.unless) and not any(name.endswith(row.text) for name in names)
    ]


def imported_packages(files: Sequence[SourceFile]) -> set[str]:
    """Return the packages that files import anywhere, with tf for tensorflow."""
    return {use.name.partition(".")[0] for file in files for use in file.uses if use.kind == "module"}


def literal_metrics(files: Sequence[SourceFile]) -> set[str] | None:
    """Return the metrics that all calls of slipway.training.finish name; None if one does not as a literal dict."""
    calls = [use.call for file in files for use in file.uses if use.name == "slipway.training.finish"]
    names: set[str] = set()
    for call in calls:
        values = next(iter([*call.args, *(keyword.value for keyword in call.keywords)]), None) if call else None
        if not isinstance(values, ast.Dict) or not all(isinstance(key, ast.Constant) for key in values.keys):
            return None
        names |= {str(key.value) for key in values.keys if isinstance(key, ast.Constant)}
    return names or None
