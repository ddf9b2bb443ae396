"""The trials of a study as runs: each is the step `train` of the run that prepared the data, with other settings.

The run of a trial is a process of its own, which survives the command, and it can be resumed from its checkpoint: a
command that continues a study continues the runs of its unfinished trials.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipway.components.train import study as studies
from slipway.components.train.tuning import SearchSettings
from slipway.core.errors import UserError
from slipway.pipelines.api import starting
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.platforms.base import Say
from slipway.pipelines.platforms.local import launch
from slipway.pipelines.runs import following
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.deadline import deadline, sentence
from slipway.pipelines.runs.record import ErrorRecord, RunFolder, RunRecord
from slipway.pipelines.tuning import search
from slipway.pipelines.tuning import study as tuning

if TYPE_CHECKING:
    import optuna

POLL_SECONDS = 0.2
# A trial whose run was killed is resumed so often.
MAX_RESUMES = 3
# How long a trial that is stopped may take to end before it is killed.
KILL_SECONDS = 60.0
# Attributes of studies and trials.
BASE, RUN, ERROR, SECONDS = "prepared by", "run", "error", "seconds"


@dataclass
class Running:
    """A trial whose run has not ended; `began` is when that was started, and `limit` what it exceeded, in seconds."""

    trial: optuna.Trial
    folder: RunFolder
    validations: studies.Validations
    began: float
    resumes: int = 0
    limit: float | None = None


@dataclass(frozen=True)
class Ended:
    """A trial that has ended: the state is COMPLETE, PRUNED or FAIL."""

    number: int
    state: str
    value: float | None
    values: dict[str, Any]
    seconds: float | None
    error: str = ""


def begin(
    config: RunConfig, search: SearchSettings, say: Say, *, continued: bool = False
) -> tuple[optuna.Study, RunFolder | None]:
    """Return the study that a configuration continues, with the run that prepared its data; None if there is none yet.

    A change of the code or the data begins another study, unless no trial of the newest one has a result.

    Args:
        config: The configuration.
        search: How to search.
        say: Receives what has changed.
        continued: Whether to continue the newest study, whatever has changed.
    """
    known = tuning.studies_of(config, search)
    if not known:
        return tuning.open_study(config, search), None
    base, data = None, _data_now(config)
    if data is None:
        base = prepare(config, known[0], say)
        data = _data_of(base)
    made = tuning.made_with(config, data)
    same = (study for study in known if study.user_attrs.get(tuning.MADE_WITH) == made)
    study = known[0] if continued else next(same, known[0])
    before: dict[str, str] = study.user_attrs.get(tuning.MADE_WITH, made)
    if before != made:
        results = sum(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False))
        changed = sorted(name for name in before.keys() | made.keys() if before.get(name) != made.get(name))
        message = f"changed since the {results} trials of {study.study_name}: {', '.join(changed)}."
        if results and not continued:
            say(f"{message} A new study begins; to add trials to that one: slipway tune --continue")
            return tuning.open_study(config, search, len(known) + 1), base
        say(message)
    study = tuning.open_study(config, search, len(known) - known.index(study))  # with its sampler
    if base is None and BASE in study.user_attrs:
        with contextlib.suppress(UserError):  # it was deleted
            earlier = runs.find(study.user_attrs[BASE])
            base = earlier if _data_of(earlier) == data else None
    if before != made or len(studies.failed(study)) > search.failures:
        studies.repeat_failed(study)
    return study, base


def _data_now(config: RunConfig) -> str | None:
    """Return the fingerprint of the data as their source is now, "" if Slipway prepares none; None if unknown."""
    from slipway.components.prepare_data.prepare import unchanged

    if config.prepared is None:
        return ""
    prepared = unchanged(config.prepared, config.readers, config.task)
    return None if prepared is None else prepared.manifest.fingerprint


def _data_of(base: RunFolder) -> str:
    return str(base.read().outputs("prepare_data").get("fingerprint", ""))


def prepare(config: RunConfig, study: optuna.Study, say: Say) -> RunFolder:
    """Start a run that prepares the data of a study, and return it."""
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
        return ready.folder


def note(config: RunConfig, study: optuna.Study, base: RunFolder) -> None:
    """Store with a study what its trials are made with."""
    study.set_user_attr(BASE, base.run_id)
    study.set_user_attr(tuning.MADE_WITH, tuning.made_with(config, _data_of(base)))


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
        tune: SearchSettings,
        starter: launch.StartProcess | None = None,
    ) -> None:
        self._study, self._base, self._config, self._tune = study, base, config, tune
        self._starter = starter
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
            for running_trial in list(self._running):
                if (finished := self._poll(running_trial)) is not None:
                    self._running.remove(running_trial)
                    yield finished
            if self.failed() > self._tune.failures:
                break
            time.sleep(POLL_SECONDS)
        for running_trial in self._running:
            if running_trial.folder.holder() is not None:
                following.cancel(running_trial.folder)

    def failed(self) -> int:
        """Return the number of failed trials, without those that were tried again."""
        return len(studies.failed(self._study))

    def _wanted(self) -> bool:
        is_early = time.monotonic() < self._until
        return is_early and studies.may_start(self._study, self._tune, self.failed())

    def _adopt(self) -> None:
        """Take over the trials that an earlier command has not finished, with their runs."""
        for trial in studies.unfinished(self._study):
            if (run_id := trial.user_attrs.get(RUN)) is None:
                self._start(trial)
            else:
                self._follow(trial, runs.find(run_id))

    def _follow(self, trial: optuna.Trial, folder: RunFolder) -> None:
        validations = studies.Validations(trial, self._tune.metric, folder.path / "train" / "logs")
        waited = time.time() - (folder.read().started or time.time())  # by an earlier command
        self._running.append(Running(trial, folder, validations, time.monotonic() - max(0.0, waited)))

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
        self._follow(trial, ready.folder)
        return None

    def _poll(self, running: Running) -> Ended | None:
        """Report the validations of a trial's run; return the trial if it has ended."""
        if self._is_overdue(running):
            return self._stop(running)
        record = running.folder.read()
        if running.validations.report() and (holder := running.folder.holder()) is not None:
            following.request_stop(holder.pid)
        if record.status == "running":
            return None
        seconds = record.step("train").seconds or record.seconds or 0.0
        if record.status == "succeeded":
            try:
                value = studies.value_of(record.step("train").outputs["validation"], self._tune.metric)
            except UserError as lacking:
                if running.folder.holder() is not None:  # its process has to end first, to write its record no more
                    return None
                record.status, record.error = "failed", ErrorRecord(step="train", message=lacking.message)
                running.folder.write(record)
                return self._tell(running.trial, "FAIL", error=lacking.message, seconds=seconds)
            running.trial.set_user_attr(SECONDS, seconds)
            return self._tell(running.trial, "COMPLETE", value=value, seconds=seconds)
        if running.validations.pruned:
            if running.folder.holder() is not None:  # its process writes the record last, with the seconds
                return None
            record = running.folder.read()
            record.status, record.error = "pruned", None
            running.folder.write(record)
            return self._tell(running.trial, "PRUNED", seconds=record.seconds or 0.0)
        if _was_stopped(record) and running.resumes < MAX_RESUMES:
            if running.folder.holder() is not None:  # its process has to end first: it may still be tracking the run
                return None
            running.resumes += 1
            running.began = time.monotonic()
            with starting.resumed(running.folder, (), None, lambda _line: None) as ready:
                launch.start(ready.folder, ready.record, self._starter)
            return None
        error = record.error.message.splitlines()[0] if record.error else record.status
        return self._tell(running.trial, "FAIL", error=f"{error} slipway explain {record.run_id}", seconds=seconds)

    def _limit(self) -> float:
        """Return the seconds that a trial may take; infinite if that is not known yet."""
        if self._tune.trial_hours is not None:
            return 3600 * self._tune.trial_hours
        trials = self._study.get_trials(deepcopy=False)
        limit = deadline(trial.user_attrs[SECONDS] for trial in trials if SECONDS in trial.user_attrs)
        return min(limit, 3600 * self._tune.hours) if limit == math.inf and self._tune.hours else limit

    def _is_overdue(self, running: Running) -> bool:
        """Whether a trial takes too long, and has not succeeded in the end."""
        holder = running.folder.holder()
        if running.limit is not None:
            return holder is not None or running.folder.read().status != "succeeded"
        limit = self._limit()
        if holder is None or not holder.is_here or time.monotonic() - running.began <= limit:
            return False
        running.limit = limit
        following.request_stop(holder.pid)
        return True

    def _stop(self, running: Running) -> Ended | None:
        """Return a trial that takes too long when its run has ended, which is killed if it does not end by itself."""
        assert running.limit is not None
        seconds, holder = time.monotonic() - running.began, running.folder.holder()
        if holder is not None:
            if seconds < running.limit + KILL_SECONDS:
                return None
            with contextlib.suppress(ProcessLookupError):
                os.kill(holder.pid, signal.SIGKILL)
        error = f"{sentence(running.limit)} To allow more time: --set tune.trial_hours=HOURS"
        record = running.folder.read()
        record.status, record.error = "failed", ErrorRecord(step="train", message=error)
        running.folder.write(record)
        return self._tell(running.trial, "FAIL", error=error, seconds=seconds)

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
