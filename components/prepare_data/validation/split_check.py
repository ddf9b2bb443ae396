"""Find splits that flatter: groups in several splits, examples in time divided at random, inputs that give labels away.

What is suspected is reported if a quick model's score is significantly higher the flattering way: see `suspicions` and
`quick_model`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from slipway.components.prepare_data.encoding.records import ShardFile
from slipway.components.prepare_data.examples import SPLITS
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.validation import input_scores, quick_model
from slipway.components.prepare_data.validation.quick_model import Difference, Floats, Fold, Integers, Sample
from slipway.components.prepare_data.validation.suspicions import (
    NEAR_DUPLICATES,
    SERIES_OF_NAMES,
    Examples,
    nearly_equal,
    read_examples_of,
    sample_of,
    suspected_groups,
    suspected_times,
)
from slipway.core.formatting import number
from slipway.core.manifest import Manifest
from slipway.core.values import JsonObject

MIN_EXAMPLES = 80
# The least difference of AUC or R² that is reported, and by how much it must exceed the half of its interval: that of
# 99 % does not have 0 then.
MIN_DIFFERENCE, SIGNIFICANT = 0.02, 1.31
# An input is suspected of giving the label away if it reaches so much alone; the most that are measured without.
MIN_ALONE = {"classification": 0.98, "regression": 0.95}
MAX_INPUTS = 3
TIME_CHUNKS = 50
# What groups rows without a column for it, as sentences name it; and the regular expression of series of names.
NEAR_ROWS = "origin, by which they nearly equal each other,"
GROUP_OF_SERIES = r"^(.*?)[-_ .]*\d+[a-zA-Z]?\.\w+$"


@dataclass(frozen=True)
class SplitFinding:
    """How much better a quick model is the flattering way.

    Attributes:
        kind: What flatters.
        name: The column, or what else groups the examples.
        metric: AUC or R².
        difference: The scores, the flattering one first.
        fix: The option that ends it; "" if no setting does.
    """

    kind: Literal["group", "time", "input"]
    name: str
    metric: str
    difference: Difference
    fix: str

    @property
    def flatters(self) -> bool:
        """Whether the difference is large, and not by chance."""
        half = self.difference.high - self.difference.size
        return self.difference.size >= max(MIN_DIFFERENCE, SIGNIFICANT * half)

    def as_dict(self) -> JsonObject:
        """Return what was measured, for programs."""
        measured = self.difference
        return {
            "kind": self.kind, "name": self.name, "metric": self.metric, "flattering": measured.first,
            "honest": measured.second, "difference": measured.size, "interval": [measured.low, measured.high],
            "examples": measured.examples, "flatters": self.flatters, "fix": self.fix, "text": self.sentence,
        }  # fmt: skip

    @property
    def sentence(self) -> str:
        """What was measured."""
        first, second = (number(value, 3) for value in (self.difference.first, self.difference.second))
        where = {
            "group": f"if examples of the same {self.name} are in several splits, as here, and {second} if none are",
            "time": f"at random times, as here, and {second} on examples that are later in {self.name} than those that "
            "it learned from",
            "input": f"with the input {self.name}, and {second} without it",
        }[self.kind]
        text = f"A quick model's {self.metric} is {first} {where}"
        low, high = (number(value, 3) for value in (self.difference.low, self.difference.high))
        if not self.flatters:
            return f"{text}: no significant difference ({low} to {high})."
        adds = "If it is known only afterwards, it gives away" if self.kind == "input" else "The split flatters by"
        by = f"{number(self.difference.size, 3)} (95% interval {low} to {high}, {self.difference.examples:,} examples)"
        return " ".join(filter(None, (f"{text}. {adds} {by}.", self.fix)))


def check_split(
    shards: Mapping[str, Sequence[ShardFile]],
    manifest: Manifest,
    settings: DataSettings,
    alike: Collection[Sequence[bytes]] = (),
    *,
    has_splits: bool = False,
) -> list[SplitFinding]:
    """Return what was suspected and measured; none for a task with several labels, or of too few examples.

    Args:
        shards: The files of each split.
        manifest: The data set's manifest.
        settings: The user's settings.
        alike: The keys of images that look the same, in groups.
        has_splits: Whether the source defines the splits.
    """
    if manifest.task == "multilabel":
        return []
    examples = read_examples_of(shards, manifest)
    if len(examples.labels) < MIN_EXAMPLES:
        return []
    groups = suspected_groups(examples, alike)
    times = {} if settings.order_by else suspected_times(examples)
    if manifest.has_image and not (groups or times):
        return []
    sample = sample_of(examples, shards)
    if not sample.inputs:  # of several values each
        return []
    rows = _different(sample)
    if len(rows) < MIN_EXAMPLES:
        return []
    comparison = _Comparison(sample.take(rows), examples.take(rows))
    findings = []
    for name, codes in groups.items():
        findings += comparison.of_groups(name, codes[rows], "" if has_splits else _fix_of_group(name))
    for name, values in times.items():
        fix = "" if has_splits else f"--set {shlex.quote(f'data.order_by=column:{name}')}"
        findings += comparison.of_times(name, values[rows], fix)
    known = {finding.name for finding in findings if finding.flatters}
    is_grouped = known or settings.group_by or manifest.has_image
    near = None if is_grouped else nearly_equal(comparison.sample)
    if near is not None:
        findings += comparison.of_groups(NEAR_ROWS, near, _fix_of_group(NEAR_ROWS))
    return findings + comparison.of_inputs(known)


def split_notes(findings: Collection[SplitFinding]) -> list[str]:
    """Return notes on the findings that are significant."""
    return [finding.sentence for finding in findings if finding.flatters]


def _different(sample: Sample) -> Integers:
    """Return the rows of a sample without those that equal another one, which are kept in one split."""
    values = [column.values.reshape(len(sample.labels), -1) for column in sample.inputs]
    known = np.nan_to_num(np.hstack([*values, sample.labels[:, None]]), nan=-1e300)
    _, rows = np.unique(known, axis=0, return_index=True)
    return np.sort(rows)


def _fix_of_group(name: str) -> str:
    if name == NEAR_DUPLICATES:
        return "--set data.near_duplicates=group"
    if name == SERIES_OF_NAMES:
        return f"--set {shlex.quote(f'data.group_by={GROUP_OF_SERIES}')}"
    if name == NEAR_ROWS:
        return "Add a column of what such rows come from, and name it in data.group_by."
    return f"--set {shlex.quote(f'data.group_by=column:{name}')}"


@dataclass(frozen=True)
class _Comparison:
    """Measures suspicions by a sample of a data set."""

    sample: Sample
    examples: Examples

    @cached_property
    def _distances(self) -> NDArray[np.float32]:
        return self.sample.distances()

    @cached_property
    def _at_random(self) -> Floats:
        """Predictions of a division at random."""
        return self._predict(self._distances, quick_model.random_folds(len(self.sample.labels)))

    def _predict(self, distances: NDArray[np.float32], folds: Sequence[Fold]) -> Floats:
        return quick_model.predict(distances, self.sample.labels, self.sample.task, folds)

    def _finding(
        self, kind: Literal["group", "time", "input"], name: str, first: Floats, second: Floats, clusters: Integers,
        fix: str,
    ) -> SplitFinding:  # fmt: skip
        difference = quick_model.difference(self.sample.labels, self.sample.task, first, second, clusters)
        return SplitFinding(kind, name, self.examples.metric, difference, fix)

    def of_groups(self, name: str, codes: Integers, fix: str) -> list[SplitFinding]:
        """Compare random folds with folds of whole groups, unless each group is in one split."""
        several = np.unique(np.column_stack([codes, self.examples.splits]), axis=0)
        if len(np.unique(several[:, 0])) == len(several):
            return []
        together = self._predict(self._distances, quick_model.group_folds(codes))
        return [self._finding("group", name, self._at_random, together, codes, fix)]

    def of_times(self, name: str, times: Floats, fix: str) -> list[SplitFinding]:
        """Compare random times with the past, unless the test split is the latest already."""
        test = self.examples.splits == SPLITS.index("test")
        if not test.any() or test.all() or times[~test].max() <= times[test].min():
            return []
        past, anywhere = (self._predict(self._distances, folds) for folds in quick_model.forward_folds(times))
        chunks = np.argsort(np.argsort(times, kind="stable")) * TIME_CHUNKS // len(times)
        return [self._finding("time", name, anywhere, past, chunks, fix)]

    def of_inputs(self, but: Collection[str]) -> list[SplitFinding]:
        """Compare the model with one without an input, for each that alone predicts well and is not in `but`."""
        manifest, names, labels = self.examples.manifest, self.examples.inputs, self.sample.labels.tolist()
        reached = {
            name: input_scores.score(self.examples.columns[name], labels, manifest.inputs[name], manifest.task)
            for name in (names if len(manifest.all_inputs) > 1 else ())
            if manifest.sources[name] not in but
        }
        suspects = sorted((name for name in reached if reached[name] >= MIN_ALONE[self.sample.task]),
                          key=lambda name: -reached[name])  # fmt: skip
        folds, rows = quick_model.random_folds(len(labels)), np.arange(len(labels))
        findings = []
        for name in suspects[:MAX_INPUTS]:
            without = self._predict(self.sample.distances(but=names.index(name)), folds)
            others = [manifest.sources[other] for other in manifest.all_inputs if other != name]
            fix = f"--set {shlex.quote(f'data.inputs={json.dumps(others, ensure_ascii=False)}')}"
            findings.append(self._finding("input", manifest.sources[name], self._at_random, without, rows, fix))
        return findings
