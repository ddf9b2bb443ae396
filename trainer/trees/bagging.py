"""Out-of-fold bagging: a booster of LightGBM for each fold, which stops early by the loss of the rows that it held out.

Finished folds are kept in the checkpoint folder: a resumed run trains the others only, and ends with the same boosters.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from slipway.core import events
from slipway.core.atomic import replace_file
from slipway.core.cores import available_cores
from slipway.core.errors import UserError
from slipway.trainer.trees.table import Table

if TYPE_CHECKING:
    import lightgbm

# Settings that every booster has: the same trees on every machine, with any number of threads.
FIXED = {"deterministic": True, "force_col_wise": True, "verbosity": -1}
METRICS = {"regression": "rmse", "binary": "binary_logloss", "multiclass": "multi_logloss"}
HELD_OUT = "held out"
ROUNDS_BETWEEN_REPORTS = 20
# Cells of a table for each thread: with fewer, threads wait longer for each other than they work.
CELLS_PER_THREAD = 100_000
logger = logging.getLogger(__name__)


class Report(Protocol):
    """`slipway.training.report`."""

    def __call__(self, step: int, /, *, total: int | None = None, kind: Any = "train", **metrics: float) -> None: ...


@dataclass(frozen=True)
class Fold:
    """A trained fold: its booster, the loss of the rows that it held out, and the number of rounds that it took."""

    booster: lightgbm.Booster
    loss: float
    rounds: int

    def encoded(self) -> bytes:
        """Return the fold as `_kept` reads it."""
        content = {"loss": self.loss, "rounds": self.rounds, "booster": self.booster.model_to_string()}
        return json.dumps(content).encode()


@dataclass(frozen=True)
class Bagging:
    """How boosters are trained.

    Attributes:
        settings: LightGBM's parameters.
        folds: The number of folds, at least 2.
        rounds: The largest number of rounds of boosting.
        patience: A fold ends when its loss has not improved in so many rounds.
        least: By how much the loss has to improve, as a fraction of the loss of a constant prediction.
        seed: The seed of the folds and the boosters.
    """

    settings: Mapping[str, Any]
    folds: int = 5
    rounds: int = 2000
    patience: int = 50
    least: float = 5e-4
    seed: int = 0

    def train(self, table: Table, folder: Path, report: Report, fingerprint: str = "") -> list[lightgbm.Booster]:
        """Return the boosters of all folds.

        Args:
            table: The rows of the training split.
            folder: The folder for finished folds, `slipway.training.checkpoint_dir()`.
            report: Receives the rounds and the losses, `slipway.training.report`.
            fingerprint: The data set's, so that a fold of other data is trained again.

        Raises:
            UserError: There are too few rows or groups.
        """
        identity = hashlib.sha256(json.dumps([asdict(self), fingerprint], sort_keys=True).encode()).hexdigest()[:16]
        finished: list[Fold] = []
        for number, held_out in enumerate(self.divided(table)):
            path = folder / f"fold-{number}-{identity}.json"
            step = sum(fold.rounds for fold in finished)
            kept = _kept(path)
            is_new = kept is None
            if kept is None:
                events.phase(f"training fold {number + 1} of {self.folds}")
                kept = self._fold(number, table, held_out, report, step)
                replace_file(path, kept.encoded())
            finished.append(kept)
            if is_new or number == self.folds - 1:
                loss = float(np.mean([fold.loss for fold in finished]))
                report(step + kept.rounds, kind="validation", loss=loss)
        return [fold.booster for fold in finished]

    def divided(self, table: Table) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each fold: similar labels in all folds, and the rows of a group in one.

        Raises:
            UserError: There are too few rows or groups.
        """
        count = len(table.y) if table.groups is None else int(table.groups.max(initial=-1)) + 1
        if not 2 <= self.folds <= count:
            kind = "row" if table.groups is None else "group"
            raise UserError(
                f"The training split has {count} {kind}{'' if count == 1 else 's'}, which cannot be divided among "
                f"{self.folds} folds.",
                setting="--folds",
                value=self.folds,
                allowed=f"2 to {count}" if count > 1 else f"a training split of at least 2 {kind}s",
                fix='--set \'train.arguments=["--folds", "2"]\'' if count > 1 else f"add {kind}s",
            )
        random = np.random.default_rng(self.seed)
        order = random.permutation(len(table.y))
        if table.groups is None:
            order = order[np.argsort(table.y[order], kind="stable")]
            folds = np.empty(len(order), np.int64)
            starts = np.arange(len(order)) // self.folds  # of as many rows as folds, one for each fold
            folds[order] = np.argsort(np.argsort(starts + random.random(len(order)))) - starts * self.folds
        else:
            folds = self._of_groups(table.groups, random)
        for number in range(self.folds):
            yield np.flatnonzero(folds == number)

    def _of_groups(self, groups: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        """Return the fold of each row: groups in random order, the largest first, each to the smallest fold."""
        sizes = np.bincount(groups)
        order = random.permutation(len(sizes))
        totals, fold = np.zeros(self.folds, np.int64), np.empty(len(sizes), np.int64)
        for group in order[np.argsort(-sizes[order], kind="stable")]:
            fold[group] = totals.argmin()
            totals[fold[group]] += sizes[group]
        return fold[groups]

    def _fold(self, number: int, table: Table, held_out: NDArray[np.int64], report: Report, step: int) -> Fold:
        import lightgbm

        objective = "regression" if not table.classes else "binary" if table.classes == 2 else "multiclass"
        parameters = {"objective": objective, **self.settings, **FIXED, "seed": self.seed + number}
        if objective == "multiclass":
            parameters["num_class"] = table.classes
        parameters.setdefault("metric", METRICS[objective])
        parameters.setdefault("num_threads", max(1, min(available_cores(), table.x.size // CELLS_PER_THREAD)))
        is_trained = np.ones(len(table.y), bool)
        is_trained[held_out] = False
        rows = lightgbm.Dataset(
            table.x[is_trained], table.y[is_trained], categorical_feature=table.categories, params=parameters
        )
        others = lightgbm.Dataset(table.x[held_out], table.y[held_out], reference=rows, params=parameters)

        rounds = 0

        def show(state: Any) -> None:
            nonlocal rounds
            rounds = state.iteration + 1
            if rounds % ROUNDS_BETWEEN_REPORTS == 0:
                report(step + rounds, held_out_loss=next(iter(state.evaluation_result_list))[2])

        least = self.least * _constant_loss(table)
        stop = lightgbm.early_stopping(self.patience, first_metric_only=True, verbose=False, min_delta=least)
        booster = lightgbm.train(
            parameters, rows, self.rounds, valid_sets=[others], valid_names=[HELD_OUT], callbacks=[show, stop]
        )
        return Fold(booster, float(next(iter(booster.best_score[HELD_OUT].values()))), rounds)


def _constant_loss(table: Table) -> float:
    """Return the RMSE of the mean, or the cross-entropy of the classes' frequencies."""
    if not table.classes:
        return float(table.y.std())
    frequencies = np.bincount(table.y) / len(table.y)
    return float(-(frequencies * np.log(np.maximum(frequencies, 1e-15))).sum())


def _kept(path: Path) -> Fold | None:
    """Return a fold that was trained before."""
    import lightgbm

    try:
        content = json.loads(path.read_bytes())
        return Fold(lightgbm.Booster(model_str=content["booster"]), content["loss"], content["rounds"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, lightgbm.basic.LightGBMError) as error:
        logger.warning("%s cannot be read and is trained again: %s", path, error)
        return None
