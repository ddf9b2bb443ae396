"""Predictions on many inputs in several processes: a folder with a file for each part of the inputs.

A part is finished once its record is written; a batch that was stopped continues with the other parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from slipway.core import cores, integrity
from slipway.core.atomic import replace_file
from slipway.core.errors import UserError
from slipway.core.parent_death import die_with_parent
from slipway.core.paths import short
from slipway.core.values import JsonObject
from slipway.pipelines.prediction import inputs, models, output
from slipway.pipelines.prediction.models import Chosen
from slipway.pipelines.prediction.output import Format
from slipway.pipelines.prediction.parts import Part
from slipway.pipelines.prediction.unknown import UnknownValues

SUMMARY = "summary.json"
ERRORS = "errors.jsonl"
# Exists until every part is finished: the plan, and a record of each finished part.
UNFINISHED = ".unfinished"
PLAN = "plan.json"
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Batch:
    """What to predict, and where to.

    Attributes:
        chosen: The model.
        inputs: What to predict on; see `inputs.FORMATS`.
        folder: The folder that receives the predictions.
        kind: The format of the files with predictions.
        size: Examples in a part.
        batch_size: Examples in one call of the model.
        split: The split of prepared data sets.
        key: The field or column with an example's key.
    """

    chosen: Chosen
    inputs: tuple[str, ...]
    folder: Path
    kind: Format
    size: int
    batch_size: int
    split: str
    key: str | None = None

    def part_file(self, number: int) -> Path:
        """Return the file with the predictions of a part."""
        return self.folder / f"part-{number:05d}.{self.kind}"

    def record_file(self, number: int) -> Path:
        """Return the file that says that a part is finished, and lists its inputs with an error."""
        return self.folder / UNFINISHED / f"{number:05d}.json"


@dataclass(frozen=True)
class Outcome:
    """The number of inputs, of those with a prediction (`done`), and of those in the errors file (`failed`).

    `first` is the first of the latter with its error; "" if there is none, or the batch was complete before.
    """

    inputs: int
    done: int
    failed: int
    parts: int
    kept: int = 0
    first: str = ""
    unknown: UnknownValues = field(default_factory=UnknownValues)


def run(batch: Batch, processes: int, show: Callable[[int, int], object]) -> Outcome:
    """Predict all parts that are not finished, and write the errors file and the summary.

    Args:
        batch: What to predict.
        processes: Number of processes.
        show: Receives the number of finished examples, and of all, as they change.

    Returns:
        The outcome; `kept` counts the parts that an earlier call had finished.

    Raises:
        UserError: The folder has something else, an input or the model is not usable, or a process was killed.
    """
    every = [part for source in inputs.listed(batch.inputs, batch.split) for part in source.divided(batch.size)]
    if not every:
        raise inputs.unreadable(batch.inputs[0], "has no examples")
    plan = _plan(batch, every)
    if finished := _finished(batch, plan):
        shutil.rmtree(batch.folder / UNFINISHED, ignore_errors=True)
        return finished
    with _locked(batch.folder):
        if finished := _finished(batch, plan):  # by another process, meanwhile
            return finished
        missing = _begin(batch, plan, len(every))
        counts = [part.examples or 0 for part in every]
        total, before = sum(counts), sum(counts) - sum(counts[number] for number in missing)
        _predict(batch, [(number, every[number]) for number in missing], processes, lambda n: show(before + n, total))
        outcome = _end(batch, plan, every, total, len(every) - len(missing))
    # The lock is closed: NFS and FUSE keep a file that is open, and thus its folder.
    shutil.rmtree(batch.folder / UNFINISHED, ignore_errors=True)
    return outcome


def _plan(batch: Batch, every: Sequence[Part]) -> JsonObject:
    """Return what must be the same in a call that continues a batch."""
    seen = hashlib.sha256()
    for path in sorted({path for part in every for path in part.paths}):
        seen.update(f"{path}\n".encode(errors="surrogateescape"))
        with contextlib.suppress(OSError):  # reading the file reports it
            status = Path(path).expanduser().stat()
            seen.update(f"{status.st_size} {status.st_mtime_ns}\n".encode())
    return {
        "model": str(batch.chosen),
        "folder": str(batch.chosen.folder),
        "digest": _digest(batch.chosen.folder),
        "module": batch.chosen.module,
        "inputs": list(batch.inputs),
        "content": seen.hexdigest(),
        "split": batch.split,
        "key": batch.key,
        "format": str(batch.kind),
        "part_size": batch.size,
    }


def _digest(model: Path) -> str:
    """Return what changes with the model's files: the checksum of its record, against which a load verifies them."""
    with contextlib.suppress(IsADirectoryError, ValueError, RecursionError):  # the load reports a damaged record
        if sealed := integrity.checksum(model):
            return sealed
    return hashlib.sha256(json.dumps(integrity.files(model)).encode()).hexdigest()


def _finished(batch: Batch, plan: JsonObject) -> Outcome | None:
    """Return the outcome of a batch that is complete; None if it has to be begun or continued.

    Raises:
        UserError: The folder has the predictions of another batch, or other files.
    """
    for path in (batch.folder / SUMMARY, batch.folder / UNFINISHED / PLAN):
        try:
            saved = json.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if path.name == PLAN and not any(path.parent.glob("[0-9]*.json")):
            return None
        _check_same(batch, plan, saved)
        if path.name == PLAN:
            return None
        unknown = UnknownValues(**saved["unknown"]) if "unknown" in saved else UnknownValues()
        return Outcome(
            saved["examples"], saved["done"], saved["failed"], saved["parts"], kept=saved["parts"], unknown=unknown
        )
    names = sorted(entry.name for entry in batch.folder.iterdir()) if batch.folder.is_dir() else []
    if names and names != [UNFINISHED]:
        raise UserError(
            f"The folder {batch.folder} has other files, such as {names[0]}.",
            setting="--output",
            value=str(batch.folder),
            allowed="a new folder, an empty one, or one with a batch to continue",
        )
    return None


def _check_same(batch: Batch, plan: JsonObject, saved: JsonObject) -> None:
    different = next((name for name, value in plan.items() if saved.get(name) != value), None)
    if different is None:
        return
    setting, value, message = {
        "content": ("--input", ", ".join(batch.inputs), "The inputs have changed since"),
        "digest": ("MODEL", str(batch.chosen), f"The model in {batch.chosen.folder} has changed since"),
    }.get(different, ("--output", str(batch.folder), ""))
    other = f"The batch in {batch.folder} has another {different.replace('_', ' ')}: {saved.get(different)}."
    raise UserError(
        f"{message} the batch in {batch.folder} was begun." if message else other,
        setting=setting,
        value=value,
        fix=f"--output {_another(batch.folder)}",
    )


def _another(folder: Path) -> str:
    """Return a folder for another batch, beside this one, for a shell."""
    folder = folder.resolve()
    free = (path for number in itertools.count(2) if not (path := folder.with_name(f"{folder.name}-{number}")).exists())
    return shlex.quote(short(str(next(free))))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Return a context in which no other process writes to the folder."""
    try:
        (folder / UNFINISHED).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, FileNotFoundError, NotADirectoryError) as error:
        raise UserError(
            f"The folder {folder} cannot be created: {error.strerror}.",
            setting="--output",
            value=str(folder),
            allowed="a folder on this machine",
        ) from None
    try:
        with FileLock(folder / UNFINISHED / "lock", timeout=0):
            yield
    except Timeout:
        raise UserError(f"Another process is writing to {folder}.", setting="--output", value=str(folder)) from None


def _begin(batch: Batch, plan: JsonObject, count: int) -> list[int]:
    """Store the plan; return the numbers of the parts that are not finished."""
    for leftover in (*batch.folder.glob(".part-*"), *batch.folder.glob("part-*")):
        number = leftover.stem.rpartition("-")[2]
        if leftover.name.startswith(".") or not (batch.folder / UNFINISHED / f"{number}.json").is_file():
            leftover.unlink()
    replace_file(batch.folder / UNFINISHED / PLAN, json.dumps(plan).encode())
    return [
        number
        for number in range(count)
        if not (batch.record_file(number).is_file() and batch.part_file(number).is_file())
    ]


def _end(batch: Batch, plan: JsonObject, every: Sequence[Part], total: int, kept: int) -> Outcome:
    """Write the errors file and the summary from the records of the parts."""
    done = failed = 0
    first = ""
    unknown = UnknownValues()
    with output.opened(batch.folder / ERRORS) as file:
        for number, part in enumerate(every):
            record = json.loads(batch.record_file(number).read_bytes())
            done += record["done"]
            unknown.merge(record["unknown"])
            for error in record["errors"][: not failed]:
                first = f"{part.where(error['input'])}: {error['error']}"
            failed += len(record["errors"])
            file.writelines(json.dumps(error, ensure_ascii=False) + "\n" for error in record["errors"])
    if done + failed != total:
        raise UserError(
            f"{total:,} inputs were listed, but {done + failed:,} were read: they changed meanwhile.",
            setting="--input",
            value=", ".join(batch.inputs),
            fix=f"--output {_another(batch.folder)}",
        )
    summary = {**plan, "examples": total, "done": done, "failed": failed, "parts": len(every)}
    summary["unknown"] = unknown.as_dict()
    replace_file(batch.folder / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())
    return Outcome(total, done, failed, len(every), kept, first, unknown)


def _predict(batch: Batch, tasks: list[tuple[int, Part]], processes: int, show: Callable[[int], object]) -> None:
    """Predict parts in processes.

    Raises:
        UserError: The model or an input is not usable, or a process was killed.
    """
    if not tasks:
        return
    context = multiprocessing.get_context("spawn")
    examples, members = context.Value("q", 0), context.Value("i", 0)
    processes = min(processes, len(tasks))
    with ProcessPoolExecutor(processes, context, _begin_process, (batch, processes, members, examples)) as pool:
        waiting: set[Future[JsonObject | None]] = set()
        try:
            # The processes inherit the blocked signal: Ctrl+C is for this one.
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
            try:
                waiting = {pool.submit(_predict_part, number, part) for number, part in tasks}
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
            while waiting:
                ended, waiting = wait(waiting, POLL_SECONDS, FIRST_COMPLETED)
                for future in ended:
                    if error := future.result():
                        raise UserError.from_dict(error)
                show(examples.value)
        except BrokenProcessPool:
            name, most = ("processes", processes) if processes > 1 else ("batch-size", batch.batch_size)
            raise UserError(
                "A process that was predicting was killed, perhaps for lack of memory.",
                setting=f"--{name}",
                value=most,
                fix=f"--{name} {max(1, most // 2)}; the same command continues with the missing parts",
            ) from None
        finally:
            for process in multiprocessing.active_children() if waiting else ():
                process.kill()
            pool.shutdown(wait=True, cancel_futures=True)


# The state of a process of the pool: what it predicts, its model once loaded, and where it counts.
_batch: Batch
_examples: Synchronized[int]
_model: Any = None


def _begin_process(batch: Batch, processes: int, members: Synchronized[int], examples: Synchronized[int]) -> None:
    global _batch, _examples
    parent = multiprocessing.parent_process()
    assert parent is not None and parent.pid is not None
    die_with_parent(parent.pid)
    with members.get_lock():
        number = members.value
        members.value += 1
    if processes > 1:
        cores.take_part(number, processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(cores.available_cores()))
    _batch, _examples = batch, examples


def _predict_part(number: int, part: Part) -> JsonObject | None:
    """Predict a part and record it as finished; return the user's error that prevents this, if any."""
    global _model
    from slipway.pipelines.prediction import prediction

    done, errors, unknown = 0, [], UnknownValues()
    try:
        if _model is None:
            _model = models.ready(_batch.chosen)
            plan = json.loads((_batch.folder / UNFINISHED / PLAN).read_bytes())
            _check_same(_batch, {"digest": _digest(_batch.chosen.folder)}, plan)
        chunks = part.read(_model, _batch.batch_size, _batch.key)
        with prediction.quiet(_model), output.opened(_batch.part_file(number)) as file:
            for index, answers in enumerate(prediction.predict(_model, chunks)):
                if not index:
                    file.write(output.header(_batch.kind, _model, errors=False))
                file.write(output.lines(answers, _batch.kind, _model, errors=False))
                done += len(answers) - len(answers.errors)
                unknown.add(answers)
                errors += [{"input": answers.keys[at], "error": error} for at, error in sorted(answers.errors.items())]
                with _examples.get_lock():
                    _examples.value += len(answers)
    except UserError as error:
        return error.as_dict()
    replace_file(
        _batch.record_file(number), json.dumps({"done": done, "errors": errors, "unknown": unknown.as_dict()}).encode()
    )
    return None
