"""A search on a cluster: Optuna's trials, several at once, each of which trains by a TrainJob of its own.

The study is Optuna's journal in the run's base output directory. A step that starts again, such as in a resumed run,
continues it, and the trials that it finds unfinished from their checkpoints.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from slipway.components.cloud.retries import paced
from slipway.components.step import WorkFailed, termination_deferred
from slipway.components.train import study as studies
from slipway.components.train.restarts import Restart, say, wait
from slipway.components.train.result import validation_of
from slipway.components.train.trainjob.cluster import DeniedError, NotInstalledError
from slipway.components.train.trainjob.job import Stopped, Training
from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.components.train.tuning import SearchSettings
from slipway.components.worker_pools import WorkerPool
from slipway.core.errors import UserError
from slipway.core.formatting import number
from slipway.trainer.config import RestartSettings
from slipway.trainer.overrides import text_of

if TYPE_CHECKING:
    import optuna

FILE_NAME, STUDY = "search.journal", "search"
POLL_SECONDS = 1.0
BEGAN = "began"  # attribute of the study: seconds since 1970


@dataclass
class Running:
    """A trial that is training, in a thread."""

    trial: optuna.Trial
    output: str
    stop: threading.Event
    training: Future[list[Restart]]
    validations: studies.Validations


@dataclass(frozen=True)
class Best:
    """The best trial: its number, base output directory, parameters, and the restarts of all trials."""

    trial: int
    output: str
    parameters: dict[str, Any]
    restarts: list[Restart]


def run_search(
    worker_pool_specs: list[WorkerPool],
    output: str,
    settings: TrainJobSettings,
    search: SearchSettings,
    *,
    restarts: RestartSettings | None = None,
    log: TextIO = sys.stdout,
) -> Best:
    """Execute the trials of a search that are missing; return the best one.

    Args:
        worker_pool_specs: The specifications of a custom job, whose containers receive each trial's values.
        output: The run's base output directory, on the volume that the pods and this process's pod mount.
        settings: What the pods have besides the containers.
        search: How to search.
        restarts: Limit and backoff of each trial's restarts; None for the defaults.
        log: Receives the output of all replicas.

    Raises:
        UserError: Too many trials failed, none succeeded, or the cluster refuses TrainJobs.
    """
    with termination_deferred():
        execution = _Search(worker_pool_specs, output, settings, search, restarts, log)
        execution.execute()
        return execution.best()


@dataclass
class _Search:
    pools: list[WorkerPool]
    output: str
    settings: TrainJobSettings
    search: SearchSettings
    policy: RestartSettings | None
    log: TextIO
    study: optuna.Study = field(init=False)
    failures: list[str] = field(default_factory=list)  # of this execution
    restarts: list[Restart] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)

    def __post_init__(self) -> None:
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        Path(self.output).mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(f"{self.output}/{FILE_NAME}"))
        self.study = studies.open_study(storage, STUDY, self.search)
        if BEGAN not in self.study.user_attrs:
            self.study.set_user_attr(BEGAN, time.time())

    def execute(self) -> None:
        """Execute trials until there are enough, the time is over or too many have failed."""
        unfinished = studies.unfinished(self.study)
        with self._threads() as threads:
            while unfinished or self.running or self._may_start():
                while len(self.running) < self.search.parallel and (unfinished or self._may_start()):
                    self._start(unfinished.pop(0) if unfinished else self.study.ask(), threads)
                wait(paced(POLL_SECONDS))
                for trial in list(self.running):
                    if trial.validations.report():
                        trial.stop.set()
                    if trial.training.done():
                        self.running.remove(trial)
                        self._end(trial)
                if len(self.failures) > self.search.failures:
                    raise UserError(
                        f"More than tune.failures trials failed; the last one: {self.failures[-1]}",
                        setting="tune.failures",
                        value=self.search.failures,
                        fix="see the output of the trials above, or --set tune.failures=NUMBER",
                    )

    @contextmanager
    def _threads(self) -> Iterator[ThreadPoolExecutor]:
        """Return a context with the threads of the trainings, which are stopped if it ends by an exception."""
        with ThreadPoolExecutor(self.search.parallel) as threads:
            try:
                yield threads
            finally:
                for trial in self.running:
                    trial.stop.set()

    def _may_start(self) -> bool:
        over = self.study.user_attrs[BEGAN] + 3600 * (self.search.hours or math.inf)
        return time.time() < over and studies.may_start(self.study, self.search, len(self.failures))

    def _start(self, trial: optuna.Trial, threads: ThreadPoolExecutor) -> None:
        values = studies.suggest(trial, self.search.parameters)
        if studies.PRUNED in trial.user_attrs:  # by an earlier step, which was killed before it had stopped it
            self._tell(trial, "PRUNED", "pruned")
            return
        output = f"{self.output}/trials/trial-{trial.number}"
        title, stop = f"trial {trial.number} ", threading.Event()
        training = Training(_with_values(self.pools, values), output, self.settings, self.log, title=title, stop=stop)
        validations = studies.Validations(trial, self.search.metric, Path(output, "logs"))
        say(f"{title}trains with {_spoken(values)}", self.log)
        future = threads.submit(training.run, self.policy)
        self.running.append(Running(trial, output, stop, future, validations))

    def _end(self, ended: Running) -> None:
        """Tell the study how a trial has ended.

        Raises:
            UserError: The cluster refuses TrainJobs, so that no trial can train.
        """
        error = ended.training.exception()
        if error is None:
            self.restarts += ended.training.result()
            try:
                value = studies.value_of(validation_of(ended.output), self.search.metric)
            except UserError as lacking:
                self._fail(ended, lacking.message)
            else:
                self._tell(ended.trial, "COMPLETE", f"{self.search.metric} {number(value)}", value)
        elif isinstance(error, Stopped):
            self._tell(ended.trial, "PRUNED", "pruned")
        elif isinstance(error, UserError | WorkFailed) and not isinstance(error, DeniedError | NotInstalledError):
            self._fail(ended, error.message)
        else:
            raise error

    def _fail(self, ended: Running, message: str) -> None:
        self.failures.append(message)
        self._tell(ended.trial, "FAIL", f"failed: {message}")

    def _tell(self, trial: optuna.Trial, state: str, text: str, value: float | None = None) -> None:
        from optuna.trial import TrialState

        self.study.tell(trial.number, value, TrialState[state])
        say(f"trial {trial.number} {text}", self.log)

    def best(self) -> Best:
        """Return the best trial.

        Raises:
            UserError: None has succeeded.
        """
        if all(trial.state.name != "COMPLETE" for trial in self.study.get_trials(deepcopy=False)):
            raise UserError(
                "No trial has succeeded: all failed or were pruned, or tune.hours left no time for one.",
                setting="tune.hours",
                value=self.search.hours,
            )
        best = self.study.best_trial
        values = studies.drawn(best.params, self.search.parameters)
        say(
            f"best trial {best.number}: validation {self.search.metric} {number(best.value)} with {_spoken(values)}",
            self.log,
        )
        return Best(best.number, f"{self.output}/trials/trial-{best.number}", values, self.restarts)


def _with_values(pools: list[WorkerPool], values: dict[str, Any]) -> list[WorkerPool]:
    """Return the specifications with the arguments that Vertex AI adds for a trial, too."""
    arguments = [
        f"{name}={value}" if name.startswith("--") else f"--{name}={text_of(value)}" for name, value in values.items()
    ]
    changed: list[WorkerPool] = []
    for pool in pools:
        if pool:
            container = pool["container_spec"]
            pool = {**pool, "container_spec": {**container, "args": [*container.get("args", ()), *arguments]}}
        changed.append(pool)
    return changed


def _spoken(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )
