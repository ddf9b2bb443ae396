"""Send runs to the tracker of the section `track`, while they are executed and afterwards.

What is sent is what a run stores: settings, training history, metrics of the test split, report and outcome.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from slipway import extensions
from slipway.core.atomic import json_lines
from slipway.core.errors import UserError, internal_error
from slipway.core.values import JsonObject, by_option, dotted
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.runs import provenance
from slipway.pipelines.runs import record as runs
from slipway.pipelines.runs.observers import Observer, Say
from slipway.pipelines.runs.record import RunFolder, RunRecord
from slipway.pipelines.tracking.settings import TrackSettings

if TYPE_CHECKING:
    from slipway.pipelines.tracking.mlflow import Mlflow, Tracked

# Between two transmissions of a run; the time that one took is at most this fraction of the run's.
SECONDS, MAX_FRACTION = 5.0, 0.05
# By which a tracker delays a command at most, when a run or search starts or ends.
MAX_DELAY_SECONDS = 30.0
# What a record of the history has beside metrics.
NO_METRICS = ("kind", "step", "time")


class Tracking(Observer):
    """Sends runs and searches while they are executed."""

    def executing(
        self, folder: RunFolder, config: RunConfig, record: RunRecord, say: Say
    ) -> AbstractContextManager[None]:
        return tracked(folder, config, record, say)

    def searching(self, config: RunConfig, study: str, say: Say) -> AbstractContextManager[None]:
        return tracked_study(config, study, say)

    def ended_elsewhere(self, folder: RunFolder, record: RunRecord, say: Say) -> None:
        send_ended(folder, record, say)


def tracker_of(config: RunConfig) -> Mlflow:
    """Return the tracker of one run, whose configuration has one."""
    from slipway.pipelines.tracking.mlflow import Mlflow  # imports requests

    settings = config.section(TrackSettings)
    assert settings is not None
    return Mlflow(settings, settings.experiment or config.name)


@contextlib.contextmanager
def tracked(folder: RunFolder, config: RunConfig, record: RunRecord, say: Say) -> Iterator[None]:
    """Return a context that sends a run while this process executes it, and when it has ended.

    Args:
        folder, config: The run; a rehearsal is not sent.
        record: Its record, which changes in the context.
        say: Receives a warning with what could not be sent.
    """
    settings = config.section(TrackSettings)
    if settings is None or record.rehearsal:
        yield
        return
    tracker, ended = tracker_of(config), threading.Event()

    def follow() -> None:
        pause = 0.0
        while not ended.wait(pause):
            began = time.monotonic()
            with contextlib.suppress(Exception):  # the last transmission reports it
                tracker.send(of_run(folder, config, record))
            pause = max(SECONDS, (time.monotonic() - began) / MAX_FRACTION)

    folder.history_file(record)  # imports its module, which the thread must not do
    thread = threading.Thread(target=follow, name="tracking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        deadline = time.monotonic() + MAX_DELAY_SECONDS
        thread.join(MAX_DELAY_SECONDS)
        with warned(say, f"slipway runs track {record.run_id}"):
            if thread.is_alive():
                raise UserError(f"{settings.mlflow} took more than {MAX_DELAY_SECONDS:.0f} s.")
            tracker.send(of_run(folder, config, record), deadline)


def send_ended(folder: RunFolder, record: RunRecord, say: Say) -> None:
    """Send a run that has ended on another platform; `say` receives a warning with what was not sent."""
    config = load(folder.configuration_file)
    if config.section(TrackSettings) is not None:
        with warned(say, f"slipway runs track {record.run_id}"):
            tracker_of(config).send(of_run(folder, config, record), time.monotonic() + MAX_DELAY_SECONDS)


@contextlib.contextmanager
def tracked_study(config: RunConfig, study: str, say: Say) -> Iterator[None]:
    """Return a context that sends a search when it starts, before its first trial, and ends.

    For `say`, see `tracked`.
    """
    if config.section(TrackSettings) is None:
        yield
        return
    again = f"slipway runs track {study}"
    with warned(say, again):
        tracker_of(config).send(of_study(config, study, "running"), time.monotonic() + MAX_DELAY_SECONDS)
    try:
        yield
    finally:
        with warned(say, again):
            send_study(config, study, tracker_of(config), time.monotonic() + MAX_DELAY_SECONDS)


def send_study(config: RunConfig, study: str, tracker: Mlflow, deadline: float = math.inf) -> None:
    """Send a search that has ended, and what the tracker does not have of its runs, until `deadline`.

    Raises:
        UserError: The tracker failed.
    """
    study_runs = runs_of(study)
    best = next((record for _, record in study_runs if record.part and record.part.first == "evaluate"), None)
    tracker.send(of_study(config, study, best.status if best else "cancelled", best), deadline)
    for folder, record in study_runs:
        tracker_of(config).send(of_run(folder, load(folder.configuration_file), record), deadline)


def runs_of(study: str) -> list[tuple[RunFolder, RunRecord]]:
    """Return the runs of a search, newest first."""
    study_runs = []
    for folder in runs.folders():
        with contextlib.suppress(UserError):  # its record cannot be read
            if (record := folder.read()).study == study:
                study_runs.append((folder, record))
    return study_runs


@contextlib.contextmanager
def warned(say: Say, again: str) -> Iterator[None]:
    """Return a context whose errors are warnings, with the command that sends the rest."""
    try:
        yield
    except UserError as error:
        say(f"warning: not everything was tracked: {error.message} To send it: {again}")
    except Exception as error:
        say(f"warning: not everything was tracked. {internal_error(error).message}; to send it: {again}")


def of_run(folder: RunFolder, config: RunConfig, record: RunRecord) -> Tracked:
    """Return what is sent of a run."""
    from slipway.pipelines.tracking.mlflow import Point, Tracked

    history = folder.history_file(record)
    started, ended = record.created.timestamp(), record.ended.timestamp() if record.ended else None
    points = [
        Point(f"{line['kind']}/{name}", line["step"], value, line.get("time", started))
        for line in (json_lines(history.read_bytes()) if history.is_file() else ())
        for name, value in line.items()
        if name not in NO_METRICS and _is_number(value)
    ]
    last = max((point.step for point in points), default=0)
    tests = {f"test/{name}": value for name, value in record.metrics.items() if _is_number(value)}
    points += [Point(name, last, value, ended or time.time()) for name, value in tests.items()]
    return Tracked(
        run_id=record.run_id,
        status=record.status,
        started=started,
        ended=ended,
        parent=record.study,
        known=record.tracked,
        parameters=_parameters(_settings(config)) | _parameters(record.arguments),
        points=points,
        tags=_tags(folder, config, record),
        files=[folder.report_file] if ended and folder.report_file.is_file() else [],
    )


def of_study(config: RunConfig, study: str, status: str, best: RunRecord | None = None) -> Tracked:
    """Return what is sent of a search, which is the parent of its trials; `best` evaluated the best one."""
    from slipway.pipelines.tracking.mlflow import Point, Tracked

    now = time.time()
    tests = best.metrics if best else {}
    return Tracked(
        run_id=study,
        status=status,
        started=now,
        ended=None if status == "running" else now,
        parameters=_parameters({"tune": config.model_dump(mode="json")["tune"]}),
        points=[Point(f"test/{name}", 0, value, now) for name, value in tests.items() if _is_number(value)],
        tags={"slipway.best": best.run_id if best else None},
    )


def _tags(folder: RunFolder, config: RunConfig, record: RunRecord) -> dict[str, str | None]:
    image = folder.image_file.read_text() if folder.image_file.is_file() else None
    trained = record.outputs("train")
    return {
        "mlflow.user": getpass.getuser(),
        "mlflow.source.name": "slipway",
        "mlflow.source.git.commit": provenance.read(folder.path).get("commit"),
        "slipway.platform": record.platform,
        "slipway.hardware": record.hardware,
        "slipway.configuration": config.fingerprint(),
        "slipway.data": record.outputs("prepare_data").get("fingerprint"),
        "slipway.image": image or record.outputs("build_image").get("image"),
        "slipway.weights": trained.get("weights_checksum"),
        "slipway.model": record.model or trained.get("model"),
        "slipway.verdict": (record.verdict or {}).get("decision"),
        "slipway.error": record.error.message if record.error else None,
    }


def _settings(config: RunConfig) -> JsonObject:
    """Return the configuration with a program's arguments by option, and without sections that have secrets."""
    secret = {section.name for section in extensions.sections() if section.secrets}
    values = config.model_dump(mode="json", by_alias=True, exclude=secret)
    if config.train.arguments:
        values["train"]["arguments"] = by_option(config.train.arguments)
    return values


def _parameters(values: Mapping[str, object]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) and value else json.dumps(value)
        for name, value in dotted(values)
        if value is not None
    }


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
