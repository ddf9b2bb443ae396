"""The trials of a study as runs: each is the step `train` of the run that prepared the data, with other settings.

The run of a trial is a process of its own, which survives the command, and it can be resumed from its checkpoint: a
command that continues a study continues the runs of its unfinished trials.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipway.core.atomic import json_lines
from slipway.core.errors import UserError
from slipway.pipelines.api import starting
from slipway.pipelines.config import search
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.tune import TuneSettings
from slipway.pipelines.platforms.base import Say
from slipway.pipelines.platforms.local import launch
from slipway.pipelines.runs import following
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.record import RunFolder, RunRecord
from slipway.pipelines.tuning import study as studies
from slipway.trainer.metrics.history import FILE_NAME

if TYPE_CHECKING:
    import optuna

POLL_SECONDS = 0.2
# A trial whose run was killed is resumed so often.
MAX_RESUMES = 3
BASE, RUN, ERROR = "prepared by", "run", "error"  # attributes of studies and trials


@dataclass
class Running:
    """A trial whose run has not ended."""

    trial: optuna.Trial
    folder: RunFolder
    resumes: int = 0
    pruned: bool = False
    reported: set[int] = field(default_factory=set)
    read: int = 0  # size of the history that was reported


@dataclass(frozen=True)
class Ended:
    """A trial that has ended: the state is COMPLETE, PRUNED or FAIL."""

    number: int
    state: str
    value: float | None
    values: dict[str, Any]
    seconds: float | None
    error: str = ""


def prepare(config: RunConfig, study: optuna.Study, say: Say) -> RunFolder:
    """Return the run that prepared the study's data; start it if there is none yet, or if it was deleted."""
    if (known := study.user_attrs.get(BASE)) is not None:
        with contextlib.suppress(UserError):
            return runs.find(known)
    with starting.new(config, runs.LOCAL, say, last="prepare_data") as ready:
        record = ready.record
        record.study = study.study_name
        if config.prepared is None:  # a program that reads its data itself
            record.status = "succeeded"
            ready.folder.write(record)
        else:
            record = launch.run(ready.folder, config, record, _Silent())
        if record.status != "succeeded":
            problem = record.error.message if record.error else record.status
            raise UserError(f"The data were not prepared: {problem}", fix=f"slipway explain {record.run_id}")
        study.set_user_attr(BASE, ready.folder.run_id)
        return ready.folder


class Trials:
    """Executes trials of a study, several at once.

    Args:
        study: The study.
        base: The run that prepared its data.
        config: The configuration that trials change.
        tune: How to search.
        starter: Starts the process of a trial's run; see `launch.start`.
    """

    def __init__(
        self,
        study: optuna.Study,
        base: RunFolder,
        config: RunConfig,
        tune: TuneSettings,
        starter: launch.StartProcess | None = None,
    ) -> None:
        self._study, self._base, self._config, self._tune = study, base, config, tune
        self._metric, self._starter = str(tune.metric), starter
        self._running: list[Running] = []
        self._until = time.monotonic() + 3600 * (tune.hours or math.inf)

    def execute(self, stop: Callable[[], bool]) -> Iterator[Ended]:
        """Yield the trials as they end, until there are enough of them or too many have failed.

        When `stop` returns True, the runs are stopped; their trials remain unfinished, for a later call.
        """
        self._adopt()
        while not stop() and (self._running or self._wanted()):
            while len(self._running) < self._tune.parallel and self._wanted():
                trial = self._study.ask()
                if (ended := self._start(trial)) is not None:
                    yield ended
            for each in list(self._running):
                if (found := self._poll(each)) is not None:
                    self._running.remove(each)
                    yield found
            if self.failed() > self._tune.failures:
                break
            time.sleep(POLL_SECONDS)
        for each in self._running:
            if each.folder.holder() is not None:
                following.cancel(each.folder)

    def failed(self) -> int:
        """Return the number of failed trials."""
        return self._count("FAIL")

    def _count(self, *states: str) -> int:
        return sum(trial.state.name in states for trial in self._study.get_trials(deepcopy=False))

    def _wanted(self) -> bool:
        is_early = time.monotonic() < self._until
        return is_early and self._count("COMPLETE", "PRUNED", "FAIL", "RUNNING") < self._tune.trials

    def _adopt(self) -> None:
        """Take over the trials that an earlier command has not finished, with their runs."""
        from optuna.trial import Trial

        for frozen in self._study.get_trials(deepcopy=False):
            if frozen.state.name != "RUNNING":
                continue
            trial = Trial(self._study, frozen._trial_id)
            if (run_id := frozen.user_attrs.get(RUN)) is None:
                self._start(trial)
                continue
            running = Running(trial, runs.find(run_id), pruned=bool(frozen.user_attrs.get("pruned")))
            running.reported = set(frozen.intermediate_values)
            self._running.append(running)

    def _start(self, trial: optuna.Trial) -> Ended | None:
        """Start the run of a trial; return the trial only if its settings are refused."""
        values = studies.suggest(trial, self._tune.parameters)
        changes = search.overrides(values, self._config.train.arguments)
        try:
            with starting.rerun(self._base, "train", None, changes, None, checked=True) as ready:
                trial.set_user_attr(RUN, ready.folder.run_id)
                ready.record.study = self._study.study_name
                launch.start(ready.folder, ready.record, self._starter)
        except UserError as error:
            return self._tell(trial, "FAIL", error=error.message)
        self._running.append(Running(trial, ready.folder))
        return None

    def _poll(self, running: Running) -> Ended | None:
        """Report the validations of a trial's run; return the trial if it has ended."""
        record = running.folder.read()
        self._report(running)
        if record.status == "running":
            return None
        seconds = record.step("train").seconds or record.seconds or 0.0
        if record.status == "succeeded":
            value = record.step("train").outputs["validation"].get(self._metric)
            if value is None or not math.isfinite(value):
                found = ", ".join(record.step("train").outputs["validation"]) or "nothing"
                error = f"the training reported no {self._metric} of the validation split, but {found}"
                return self._tell(running.trial, "FAIL", error=error, seconds=seconds)
            return self._tell(running.trial, "COMPLETE", value=value, seconds=seconds)
        if running.pruned:
            return self._tell(running.trial, "PRUNED", seconds=seconds)
        if _was_stopped(record) and running.resumes < MAX_RESUMES:
            if running.folder.holder() is not None:  # its process has to end first: it may still be tracking the run
                return None
            running.resumes += 1
            with starting.resumed(running.folder, (), None, lambda _line: None) as ready:
                launch.start(ready.folder, ready.record, self._starter)
            return None
        error = record.error.message.splitlines()[0] if record.error else record.status
        return self._tell(running.trial, "FAIL", error=f"{error} slipway explain {record.run_id}", seconds=seconds)

    def _report(self, running: Running) -> None:
        """Report the new validations to the study, which may prune the trial: its run is then stopped."""
        history = running.folder.path / "train" / "logs" / FILE_NAME
        if not history.is_file() or history.stat().st_size == running.read:
            return
        content = history.read_bytes()
        running.read = len(content)
        for line in json_lines(content):
            value, epoch = line.get(self._metric), line.get("epoch")
            # Trials with other batch sizes have other steps, so epochs are compared.
            step = round(epoch or line.get("step", 0))
            if line.get("kind") == "validation" and isinstance(value, int | float) and step not in running.reported:
                running.trial.report(value, step)
                running.reported.add(step)
        prunes = self._tune.pruning != "none" and not running.pruned and running.reported
        if prunes and running.trial.should_prune():
            running.pruned = True
            running.trial.set_user_attr("pruned", True)
            if (holder := running.folder.holder()) is not None:
                following.request_stop(holder.pid)

    def _tell(
        self, trial: optuna.Trial, state: str, *, value: float | None = None, error: str = "", seconds: float = 0.0
    ) -> Ended:
        from optuna.trial import TrialState

        if error:
            trial.set_user_attr(ERROR, error)
        frozen = self._study.tell(trial.number, value, TrialState[state])
        values = studies.drawn(frozen.params, self._tune.parameters)
        return Ended(trial.number, state, frozen.value, values, seconds, error)


def _was_stopped(record: RunRecord) -> bool:
    """Return whether a run was stopped or killed, so that it can continue."""
    was_killed = record.process is not None  # its last record says that it is running
    unexplained = record.error is not None and record.error.message in (launch.KILLED, launch.FAILED_OUTSIDE)
    return record.status == "cancelled" or was_killed or unexplained


class _Silent:
    """A watcher that shows nothing."""

    def event(self, record: RunRecord, event: dict[str, Any]) -> None:
        pass
