"""Out-of-fold bagging: the folds, early stopping, and a killed training that ends with the same boosters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.core.errors import UserError
from slipway.trainer.trees.bagging import Bagging
from slipway.trainer.trees.table import Table

SETTINGS = {"learning_rate": 0.2, "num_leaves": 7, "min_data_in_leaf": 3, "extra_trees": True}


def rows(count: int = 150, classes: int = 3, groups: Any = None) -> Table:
    random = np.random.default_rng(3)
    x = random.normal(0, 1, (count, 3)).astype(np.float32)
    x[:, 2] = random.integers(0, 4, count)
    value = x[:, 0] + (x[:, 2] == 1)
    y = np.digitize(value, np.quantile(value, np.arange(1, classes) / classes)) if classes else value
    return Table(x, y, categories=[2], groups=groups, classes=classes)


class Killed(BaseException):
    pass


class Reports:
    """Collects reports; kills the training at the given fold's first one."""

    def __init__(self, fold: int | None = None) -> None:
        self.steps: list[int] = []
        self.losses: list[float] = []
        self._fold = fold

    def __call__(self, step: int, /, *, kind: str = "train", **metrics: float) -> None:
        self.steps.append(step)
        if kind == "validation":
            self.losses.append(metrics["loss"])
        elif len(self.losses) == self._fold:
            raise Killed


@given(st.integers(2, 90), st.integers(2, 6), st.sampled_from([0, 2, 3]))
def test_every_row_is_held_out_once_and_folds_are_alike(count: int, folds: int, classes: int) -> None:
    table = rows(max(count, folds), classes)
    held_out = list(Bagging(SETTINGS, folds).divided(table))
    assert sorted(np.concatenate(held_out).tolist()) == list(range(len(table.y)))
    sizes = [len(fold) for fold in held_out]
    assert max(sizes) - min(sizes) <= 1
    for label in range(classes):
        counts = [int((table.y[fold] == label).sum()) for fold in held_out]
        assert max(counts) - min(counts) <= 2
    others = Bagging(SETTINGS, folds, seed=1).divided(table)
    assert count < 20 or any(len(a) != len(b) or (a != b).any() for a, b in zip(held_out, others, strict=True))


@given(st.lists(st.integers(0, 20), min_size=12, max_size=120), st.integers(2, 3))
def test_a_group_is_in_one_fold(groups: list[int], folds: int) -> None:
    numbers = np.unique(groups, return_inverse=True)[1]
    if numbers.max() + 1 < folds:
        return
    held_out = list(Bagging(SETTINGS, folds).divided(rows(len(groups), 2, numbers)))
    assert sorted(np.concatenate(held_out).tolist()) == list(range(len(groups)))
    assert all(len(fold) for fold in held_out)
    for group in range(numbers.max() + 1):
        assert sum(bool((numbers[fold] == group).any()) for fold in held_out) == 1


@pytest.mark.parametrize(("count", "groups", "folds", "says"), [
    (20, np.zeros(20, np.int64), 5, "has 1 group, which cannot be divided among 5 folds"),
    (3, None, 5, "has 3 rows, which cannot be divided among 5 folds"),
    (20, None, 1, "has 20 rows, which cannot be divided among 1 folds"),
])  # fmt: skip
def test_too_few_rows_or_groups_are_refused(count: int, groups: Any, folds: int, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        list(Bagging(SETTINGS, folds).divided(rows(count, 2, groups)))
    assert error.value.setting == "--folds"


@pytest.mark.parametrize("classes", [0, 2, 3])
def test_a_killed_training_keeps_its_folds_and_ends_with_the_same_boosters(tmp_path: Path, classes: int) -> None:
    table, bagging = rows(classes=classes), Bagging(SETTINGS, folds=3, rounds=60, patience=8)
    reports = Reports()
    whole = bagging.train(table, _folder(tmp_path / "whole"), reports, "data")
    assert all(1 <= booster.num_trees() < 60 * max(classes - 1, 1) * 1.5 for booster in whole)
    assert (len(reports.losses), reports.steps) == (3, sorted(reports.steps))
    folder = _folder(tmp_path / "killed")
    with pytest.raises(Killed):
        bagging.train(table, folder, Reports(fold=1), "data")
    (kept,) = folder.iterdir()
    before = kept.stat().st_mtime_ns
    resumed = bagging.train(table, folder, Reports(), "data")
    assert [booster.model_to_string() for booster in resumed] == [booster.model_to_string() for booster in whole]
    assert kept.stat().st_mtime_ns == before


def test_folds_of_other_settings_data_or_with_damage_are_trained_again(tmp_path: Path) -> None:
    table, bagging = rows(), Bagging(SETTINGS, folds=2, rounds=3)
    first = bagging.train(table, tmp_path, Reports(), "data")
    (path, _) = sorted(tmp_path.iterdir())
    path.write_text("{")
    again = bagging.train(table, tmp_path, Reports(), "data")
    assert [booster.model_to_string() for booster in again] == [booster.model_to_string() for booster in first]
    assert json.loads(path.read_text())["loss"] > 0
    Bagging(SETTINGS, folds=2, rounds=2).train(table, tmp_path, Reports(), "data")
    Bagging(SETTINGS, folds=2, rounds=3).train(table, tmp_path, Reports(), "other data")
    assert len(list(tmp_path.iterdir())) == 6


def test_the_loss_of_a_constant_column_ends_early(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = Table(np.zeros((60, 1), np.float32), random.normal(0, 1, 60), [], None, 0)
    boosters = Bagging(SETTINGS, folds=2, rounds=500, patience=5).train(table, tmp_path, Reports())
    assert all(booster.num_trees() < 10 for booster in boosters)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
