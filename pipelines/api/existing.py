"""Runs as objects: `Run`, one run, and `Runs`, all of a project's."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Generator, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.core.atomic import json_lines
from slipway.core.errors import UserError
from slipway.core.values import JsonObject, dotted
from slipway.pipelines.api import starting
from slipway.pipelines.api.errors import Interrupted, in_python, public
from slipway.pipelines.api.notebook import Report, display_of, runs_table, show_line, summary_html
from slipway.pipelines.platforms.base import RemotePlatform
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.runs import record as records
from slipway.pipelines.runs.record import RunFolder, RunRecord

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from slipway.pipelines.api.models import Model

POLL_SECONDS = 0.5


class RunFailed(UserError):
    """A run failed; `run` is the run, and the message says which step failed, and why."""

    run: Run


class Rejected(UserError):
    """The run's model was not promoted, although `require_promotion` was set; `run` is the run."""

    run: Run


class Run:
    """A run: what it was started with, its progress, and its results.

    It is read from its folder at every use, so that an object is never older than the run. A run on another platform
    is updated from there by `refresh` and `wait`, and when a result is missing.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        record = self._record
        verdict = f", {self.verdict}" if self.verdict else ""
        return f"<Run {self.id} on {record.platform}: {record.status}{verdict}>"

    def _repr_html_(self) -> str:
        return summary_html(self._record, self._history())

    @property
    def id(self) -> str:
        """The run's id, the name of its folder."""
        return self._folder.run_id

    @property
    def folder(self) -> Path:
        """The folder with its record, logs, report and artifacts."""
        return self._folder.path

    @property
    def _record(self) -> RunRecord:
        return self._folder.read()

    @property
    def status(self) -> str:
        """running, succeeded, failed or cancelled."""
        return self._record.status

    @property
    def platform(self) -> str:
        """Where it runs: local, vertex, kubeflow or tpu."""
        return self._record.platform

    @property
    def created(self) -> datetime:
        """When it was started first."""
        return self._record.created

    @property
    def seconds(self) -> float | None:
        """How long it took, in seconds; None until it has ended."""
        return self._record.seconds

    @property
    def steps(self) -> dict[str, str]:
        """The status of each step by its name."""
        return {step.name: step.status for step in self._record.steps}

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by their dotted names, such as "train.epochs", with defaults, and "prepare_data.fold"."""
        from slipway.core.yaml_loader import load_yaml

        file = self._folder.configuration_file
        return dict([*dotted(load_yaml(file.read_text(), str(file))), *dotted(self._record.arguments)])

    @property
    def verdict(self) -> str | None:
        """The gate's decision: promote, reject, unchanged or not comparable; None before the evaluation."""
        return (self._record.verdict or {}).get("decision")

    @property
    def reasons(self) -> list[str]:
        """Why the gate decided so, one sentence each."""
        return list((self._record.verdict or {}).get("reasons", ()))

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test split by name; empty before the evaluation."""
        return self._record.metrics

    @property
    def importance(self) -> dict[str, float]:
        """By how much the gate's metric gets worse without each input, the most important first.

        Measured on the validation split (permutation importance); {} before the evaluation, or with a single input. The
        intervals, and the slices, are in `runs/RUN/run.json`.
        """
        importances = self._record.outputs("evaluate").get("importance") or {}
        return {name: importance["loss"] for name, importance in importances.items()}

    @property
    def error(self) -> RunFailed | None:
        """Why it failed; None if it has not."""
        return _failure(self, self._record)

    @property
    @public
    def report(self) -> Report:
        """The evaluation's report, which a notebook shows inline.

        Raises:
            UserError: There is none yet, or it could not be downloaded.
        """
        path = self._record.report
        if path is None or not Path(path).is_file():
            raise UserError(
                f"Run {self.id} has no report on this machine; its status is {self.status}.",
                setting="report",
                value=path,
                fix="run.wait()" if self.status == "running" else None,
            )
        return Report(Path(path))

    @property
    @public
    def history(self) -> pandas.DataFrame:
        """The training history: a row per step with the metrics, and `kind`, which is train or validation."""
        return pandas_module().DataFrame([{k: v for k, v in row.items() if k != "time"} for row in self._history()])

    @public
    def plot(self, *metrics: str) -> Figure:
        """Return the learning curves as a figure of matplotlib: a plot per metric, with training and validation.

        Args:
            metrics: Names of columns of `history`; default: the loss, and the gate's metric if the history has it.

        Raises:
            UserError: The history is empty, or has no such metric.
        """
        history = self.history
        evaluated = self._record.outputs("evaluate")
        names = list(metrics) or [name for name in ("loss", str(evaluated.get("metric"))) if name in history]
        if not names:
            raise UserError(f"Run {self.id} has no training history yet; its status is {self.status}.")
        for name in names:
            if name not in history:
                raise UserError.unknown("metric", name, [key for key in history if key not in ("kind", "step")])
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5 * len(names), 3.5), layout="constrained")
        for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
            for kind, rows in history.dropna(subset=[name]).groupby("kind"):
                axes.plot(rows["step"], rows[name], label=kind, marker="." if len(rows) < 50 else "")
            axes.set(xlabel="step", ylabel=name)
            axes.legend()
        return figure

    def _history(self) -> list[JsonObject]:
        file = self._folder.history_file(self._record)
        return json_lines(file.read_bytes()) if file.is_file() else []

    @property
    @public
    def confusion(self) -> pandas.DataFrame:
        """The confusion matrix on the test split: a row per true class, a column per predicted class.

        Raises:
            UserError: The run has none: it has not been evaluated, or is no classification.
        """
        evaluated = self._record.outputs("evaluate")
        where = evaluated.get("classification")
        files = [self._folder.classification_file, *([Path(where)] if isinstance(where, str) else [])]
        evaluation: JsonObject = next((json.loads(file.read_text()) for file in files if file.is_file()), {})
        matrix = evaluation.get("confusionMatrix")
        if matrix is None:
            raise UserError(f"Run {self.id} has no confusion matrix; its status is {self.status}.")
        names = [spec["displayName"] for spec in matrix["annotationSpecs"]]
        pandas = pandas_module()
        return pandas.DataFrame(
            [row["row"] for row in matrix["rows"]],
            index=pandas.Index(names, name="true"),
            columns=pandas.Index(names, name="predicted"),
            dtype="int64",
        )

    @property
    @public
    def model(self) -> Model:
        """The model that it trained; at the first prediction it is copied to this machine from a bucket, and loaded."""
        from slipway.pipelines.api.models import Model

        model = Model.find(self.id)
        if model.uri and not model.folder.is_dir():
            show_line(f"the model is in the bucket, at {model.uri}; download() or predict() copies it to this machine")
        return model

    @public
    def refresh(self) -> Run:
        """Update the record of a run on another platform; returns the run itself."""
        starting.current(self._folder, show_line)
        return self

    @public
    def wait(self, timeout: float | None = None) -> Run:
        """Show the run until it has ended.

        A KeyboardInterrupt leaves it running, and says how to follow it again.

        Args:
            timeout: Seconds after which to stop waiting; the run continues.

        Returns:
            The run itself.

        Raises:
            TimeoutError: It is still running after `timeout`.
            RunFailed: It failed.
        """
        try:
            self._follow(timeout)
        except KeyboardInterrupt:
            raise Interrupted(f'run {self.id} continues\nto follow it: slipway.runs()["{self.id}"].wait()') from None
        return self._checked()

    def _follow(self, timeout: float | None) -> None:
        until = math.inf if timeout is None else time.monotonic() + timeout
        with display_of(self._folder) as display:
            while True:
                record = starting.current(self._folder, show_line)
                display.update(record)
                if record.status != "running":
                    break
                if time.monotonic() > until:
                    raise TimeoutError(f"Run {self.id} is still running after {timeout} s; it continues.")
                time.sleep(POLL_SECONDS)

    def __await__(self) -> Generator[Any, None, Run]:
        """Wait as `wait` does, without blocking the event loop; a cancelled task leaves the run running."""
        return self._wait().__await__()

    async def _wait(self) -> Run:
        with display_of(self._folder) as display:
            while True:
                record = await asyncio.to_thread(starting.current, self._folder, show_line)
                display.update(record)
                if record.status != "running":
                    break
                await asyncio.sleep(POLL_SECONDS)
        return self._checked()

    def _checked(self) -> Run:
        if error := self.error:
            raise error
        return self

    @public
    def cancel(self) -> Run:
        """Stop the run, and wait until it has stopped; finished steps are kept. Returns the run itself.

        Raises:
            UserError: It is not running.
        """
        starting.cancel(self._folder, show_line)
        return self

    @public
    def resume(self, settings: Mapping[str, Any] | None = None, *, wait: bool = True) -> Run:
        """Continue the run, after a failure or `cancel`; finished steps are not repeated.

        Args:
            settings: Changes to settings on which neither the data nor the weights depend, such as evaluate.*.
            wait: Whether to show it until it has ended; a KeyboardInterrupt then stops it again.

        Returns:
            The run itself.

        Raises:
            UserError: It is running, or has succeeded, or a setting cannot be changed.
            RunFailed: It failed again.
        """
        with starting.resumed(self._folder, starting.overrides(settings), None, show_line) as ready:
            start(ready)
        return self._waited() if wait else self

    @public
    def rerun(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        only: str | None = None,
        from_step: str | None = None,
        wait: bool = True,
    ) -> Run:
        """Start a new run of one step of this run, or of all from one on, on what this run has of the steps before.

        Args:
            settings: Settings of these steps to override, such as {"evaluate.gate.minimum": 0.9}.
            only: The step, such as "evaluate".
            from_step: The first of the steps.
            wait: Whether to show it until it has ended; a KeyboardInterrupt then stops it.

        Returns:
            The new run.

        Raises:
            UserError: The run is on another platform, has no such step, or has not what the step needs.
            RunFailed: The new run failed.
        """
        if only is None and from_step is None:
            raise UserError("rerun needs only or from_step.", fix='run.rerun(only="evaluate")')
        with starting.rerun(self._folder, only, from_step, starting.overrides(settings), None) as ready:
            start(ready)
            new = Run(ready.folder)
        return new._waited() if wait else new

    def _waited(self) -> Run:
        """Wait; a KeyboardInterrupt stops a run on this machine, whose caller has started it."""
        try:
            return self.wait()
        except KeyboardInterrupt:
            record = self._record
            if record.status == "running" and not isinstance(platform_of(record.platform), RemotePlatform):
                _stop(self._folder)
            state, method = ("continues", "wait") if self.status == "running" else (f"is {self.status}", "resume")
            text = f'run {self.id} {state}\nto continue: slipway.runs()["{self.id}"].{method}()'
            raise Interrupted(text) from None

    @public
    def logs(self, step: str | None = None, *, follow: bool = False, raw: bool = False) -> Iterator[str]:
        """Yield the lines of a step's log, or of all.

        Args:
            step: A step's name, such as "train".
            follow: Whether to wait for new lines until the run has ended.
            raw: Whether to include the libraries' start-up messages.

        Raises:
            UserError: There is no such step.
        """
        return platform_of(self.platform).log_lines(self._folder, step, follow=follow, raw=raw)


class Runs:
    """The project's runs, newest first: `runs["latest"]` or by id, a loop over all, and `frame`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def __getitem__(self, run_id: str) -> Run:
        """Return a run by its id, or "latest".

        Raises:
            UserError: There is none.
        """
        return public(lambda: Run(records.find(run_id, self._root)))()

    def __iter__(self) -> Iterator[Run]:
        return (Run(folder) for folder in records.folders(self._root))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or "<no runs yet>"

    def _repr_html_(self) -> str:
        return runs_table([run._record for run in self])

    @public
    def frame(self, *settings: str) -> pandas.DataFrame:
        """Return a row per run, by id: status, verdict, seconds, hardware, settings and metrics.

        Args:
            settings: The settings to include by dotted name; by default those that differ between the runs.
        """
        from slipway.pipelines.selection.captured import described
        from slipway.pipelines.selection.selection import differences

        runs = list(self)
        values = described([run.settings for run in runs], [run.folder.parent.parent for run in runs])
        names = list(settings) or [name for name in differences(values) if name not in ("hardware", "name")]
        for name in settings:
            if values and not any(name in by_name for by_name in values):
                known = sorted({name for by_name in values for name in by_name})
                raise UserError.unknown("setting", name, known)
        rows = []
        for run, run_values in zip(runs, values, strict=True):
            record = run._record
            row: dict[str, Any] = {"status": record.status, "verdict": run.verdict, "seconds": record.seconds}
            row |= {"hardware": record.hardware, "created": record.created}
            rows.append(row | {name: run_values.get(name) for name in names} | record.metrics)
        pandas = pandas_module()
        return pandas.DataFrame(rows, index=pandas.Index([run.id for run in runs], name="run"))


def start(ready: starting.Ready) -> None:
    """Start a run on this machine, in a process of its own, or submit it again to its platform."""
    from slipway.pipelines.platforms.local import launch

    if isinstance(ready.platform, RemotePlatform):
        ready.platform.resume(ready.folder, show_line)
    else:
        launch.start(ready.folder, ready.record)


def _stop(folder: RunFolder) -> None:
    """Ask a run on this machine to stop; return once its record says that it does."""
    from slipway.pipelines.runs import following

    if holder := folder.holder():
        following.request_stop(holder.pid)
        while folder.holder() == holder and folder.read().status == "running":
            time.sleep(following.POLL_SECONDS / 2)


def _failure(run: Run, record: RunRecord) -> RunFailed | None:
    if record.status != "failed" or record.error is None:
        return None
    problem = record.error
    where = f"The step {problem.step} of run {run.id} failed" if problem.step else f"Run {run.id} failed"
    error = RunFailed(
        f"{where}: {problem.message}",
        setting=problem.setting,
        value=run.settings.get(problem.setting) if problem.setting else None,
        fix=in_python(problem.fix),
        traceback=f"{problem.traceback.rstrip()}\n" if problem.traceback else None,
    )
    error.run = run
    return error


def reject(run: Run) -> Rejected:
    """Return the error of a run whose model was not promoted."""
    error = Rejected(f"The model of run {run.id} was not promoted: {' '.join(run.reasons)}")
    error.run = run
    return error


def pandas_module() -> Any:
    from slipway.trainer.engines.installed import verify_extra

    verify_extra("notebook")
    import pandas

    return pandas
