"""Every write, fsync, rename, open and unlink fails once, or from there on: the same result, or a sentence.

A seeded sample of the faults; `make chaos-disk` injects all of them (SLIPWAY_FAULTS=all).
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from slipway.components.prepare_data import prepare as preparation
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.writing import shard_tasks
from slipway.components.register_model.registry import Registry
from slipway.components.step import WorkFailed
from slipway.core import atomic, integrity
from slipway.core.atomic import append_line
from slipway.core.errors import UserError, system_error
from slipway.pipelines.api import starting
from slipway.pipelines.cli.app import app
from slipway.pipelines.platforms.local import launch
from slipway.pipelines.prediction import batch as batches
from slipway.pipelines.runs import progress
from slipway.pipelines.runs import record as runs
from slipway.trainer.checkpoint import store
from slipway.trainer.checkpoint.store import WENT_BACK_FILE, Checkpoint, Checkpoints
from slipway.trainer.export import export as exports
from tests.chaos.faults import Disk, Fault, faults
from tests.components.prepare_data.conftest import encoded_image
from tests.trainer.conftest import job, manifest_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are found in /proc"),
]
SEED = int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31))
# The number of faults in each scenario.
FAULTS = os.environ.get("SLIPWAY_FAULTS", "30")


class Scenario:
    """Something that Slipway writes below a folder; `records` are files that say what failed."""

    records: frozenset[str] = frozenset()

    def begin(self, root: Path) -> None:
        """Write what exists before."""

    def act(self, root: Path) -> object:
        """Write, or continue what was begun; return what has to be equal in every success."""
        raise NotImplementedError

    def check(self, root: Path) -> None:
        """Check, after a failure, that nothing that exists is broken."""


class Export(Scenario):
    """The model of another run is replaced."""

    class Engine:
        def size(self) -> Any:
            from slipway.trainer.engines.base import ModelSize

            return ModelSize(variables=12, trainable=8)

        def export(self, folder: Path, _job: Any, _manifest: Any) -> None:
            (folder / "saved_model.pb").write_bytes(bytes(100))
            (folder / "variables").mkdir()
            (folder / "variables" / "data").write_bytes(bytes(20_000))

    def begin(self, root: Path) -> None:
        (root / "metrics.jsonl").write_text("{}\n")
        (root / "spent.json").write_text("{}")
        self._export(root, "before")

    def act(self, root: Path) -> object:
        self._export(root, "after")
        assert not integrity.damage(root / "model")
        return contents(root / "model")

    def check(self, root: Path) -> None:
        assert not integrity.damage(root / "model")

    def _export(self, root: Path, checksum: str) -> None:
        config = job(root, steps=10, steps_per_epoch=75)
        exports.export(self.Engine(), config, manifest_of(), checksum, root, root / "model", 10, 10)  # type: ignore[arg-type]


class Registration(Scenario):
    """A second version becomes the champion."""

    def begin(self, root: Path) -> None:
        (root / "source" / "variables").mkdir(parents=True)
        (root / "source" / "variables" / "data").write_bytes(bytes(20_000))
        integrity.seal(root / "source", {"weights_checksum": "abc"})
        self._register(root, "one")

    def act(self, root: Path) -> object:
        registration = self._register(root, "two")
        assert registration.champion
        return registration.version.number, (root / "models" / "digits" / "champion").read_text()

    def check(self, root: Path) -> None:
        known = Registry(root / "models")
        for version in known.versions("digits"):
            assert not integrity.damage(version.folder)
            assert integrity.checksum(version.folder)
        assert known.champion("digits") is not None

    def _register(self, root: Path, run_id: str) -> Any:
        metadata = {"run_id": run_id, "weights_checksum": "abc"}
        return Registry(root / "models").register("digits", root / "source", metadata, "any")


class Saving(Scenario):
    """Two checkpoints are saved after two others, of which one is kept."""

    records = frozenset({WENT_BACK_FILE})

    def begin(self, root: Path) -> None:
        for step in (10, 20):
            assert self._save(root, step)

    def act(self, root: Path) -> object:
        saved = [self._save(root, step) for step in (30, 40)]
        if not all(saved):
            raise UserError("a checkpoint could not be saved; the terminal says so")
        newest = Checkpoints(root, keep=2).newest()
        return newest and newest.step

    def check(self, root: Path) -> None:
        newest = Checkpoints(root, keep=2).newest()
        assert newest is not None
        assert (newest.state["weights"] == newest.step).all()

    def _save(self, root: Path, step: int) -> bool:
        return Checkpoints(root, keep=2).save(Checkpoint(step, {"weights": np.full(3000, step)}, {"a": {}}))


class Run(Scenario):
    """`slipway run` records its steps, or resumes the newest run; the steps themselves only report."""

    process = 5_000_000  # above every process id

    def begin(self, root: Path) -> None:
        configuration = {
            "name": "digits",
            "data": {"source": "digits"},
            "model": {"builder": "a:b"},
            "train": {"epochs": 1},
        }
        (root / "slipway.yaml").write_text(json.dumps(configuration))

    def act(self, root: Path) -> object:
        newest = next(runs.folders(), None)
        if newest is not None and newest.read().status == "succeeded":
            return self.steps(newest.read())
        with pytest.MonkeyPatch.context() as patch:
            self.process += 1  # every command is another process
            patch.setattr(os, "getpid", lambda: self.process)
            result = slipway("run", *(["--resume", newest.run_id] if newest else []))
        records = [folder.read() for folder in runs.folders()]
        if result.exit_code:
            for record in records:
                assert record.status == "failed", (record.status, result.output)
            raise UserError(result.stderr)
        assert [record.status for record in records] == ["succeeded"], result.output
        return self.steps(records[0])

    def steps(self, record: runs.RunRecord) -> list[tuple[str, str]]:
        return [(step.name, step.status) for step in record.steps]

    def execute(self, folder: Any, _config: Any, record: Any, follower: Any, _stop: Any, _temporary: str) -> bool:
        """Report each step, as the executing process does, which has faults of its own."""
        try:
            for step in record.steps:
                if step.status == "succeeded":
                    continue
                event = {"step": step.name, "event": "started"}
                append_line(folder.events_file, json.dumps(event))
                follower.follow()
                (folder.artifacts / step.name).write_text("result")
                outputs = {
                    "metrics": {"accuracy": 1.0},
                    "verdict": {"decision": "promote", "reasons": []},
                    "model": "m",
                    "report": "",
                }
                outputs["report"] = str(folder.artifacts / step.name)
                event |= {"event": "finished", "seconds": 1.0, "peak_memory_bytes": 1, "reused": False}
                append_line(folder.events_file, json.dumps(event | {"outputs": outputs}))
                follower.follow()
        except OSError:
            return False
        return True


class Batch(Scenario):
    """`slipway batch` writes three parts, or continues with those that are missing."""

    def begin(self, root: Path) -> None:
        (root / "format").mkdir()
        (root / "format" / "model.json").write_text("{}")
        (root / "input.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(6)))

    def act(self, root: Path) -> object:
        given = ("--input", "input.jsonl", "--output", "out", "--part-size", "2", "--module", f"{__name__}:load_double")
        result = slipway("batch", "format", *given)
        if result.exit_code:
            raise UserError(result.stderr)
        written = contents(root / "out")
        return {name: content for name, content in written.items() if not name.startswith(".unfinished/")}

    def check(self, root: Path) -> None:
        if (root / "out" / "summary.json").exists():
            assert json.loads((root / "out" / "summary.json").read_text())["done"] == 6


def load_double(_folder: Path) -> Callable[[list[Any]], list[Any]]:
    return lambda instances: [each["n"] * 2 for each in instances]


class Preparation(Scenario):
    """A data set of two classes is prepared, with what an interrupted preparation had left."""

    def begin(self, root: Path) -> None:
        for label, name in enumerate(("a", "b")):
            (root / "images" / name).mkdir(parents=True)
            for number in range(6):
                content = encoded_image(label * 100 + number)
                (root / "images" / name / f"{number}.png").write_bytes(content)

    def act(self, root: Path) -> object:
        given = {"source": f"images:{root / 'images'}", "store": str(root / "store"), "workers": 2}
        prepared = preparation.prepare(DataSettings.model_validate(given), 2)
        return prepared.folder.name, contents(prepared.folder)

    def check(self, root: Path) -> None:
        from slipway.core import manifest

        for path in root.glob("store/*/[0-9a-f]*/manifest.json"):
            for split in manifest.read(path.parent).splits.values():
                manifest.verify(path.parent, split.shards)


class InProcess:
    """Workers that process their tasks in this process, whose operations are counted."""

    def __init__(self, work: Callable[[Any, Any], Any], _count: int) -> None:
        self._work = work

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, tasks: Any, tick: Any = None, meanwhile: Any = None) -> Iterator[tuple[int, Any]]:
        if tasks and meanwhile:
            meanwhile()
        for number, task in enumerate(tasks):
            yield number, self._work(task, tick or (lambda _count: None))


class Silent(contextlib.AbstractContextManager["Silent"]):
    """A watcher of runs that shows nothing."""

    def __init__(self, _console: object) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def event(self, _record: object, _event: object) -> None:
        pass


def slipway(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert not result.exit_code or result.stderr.strip(), "it failed without a word"
    return result


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of each file, by path; without the times of writing."""
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: re.sub(rb'"(folder|content)": "[^"]*"', b"", content) for name, content in files.items()}


def names(root: Path) -> set[str]:
    """Return the paths of all files and folders, with RUN for the id of a run."""
    return {re.sub(r"digits-\d+-\d+-\w+", "RUN", path.relative_to(root).as_posix()) for path in root.rglob("*")}


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def predict(batch: Any, tasks: Any, _processes: int, show: Any) -> None:
        monkeypatch.setattr(batches, "_model", None)
        monkeypatch.setattr(batches, "_batch", batch, raising=False)
        monkeypatch.setattr(
            batches, "_examples", SimpleNamespace(value=0, get_lock=contextlib.nullcontext), raising=False
        )
        for number, part in tasks:
            if error := batches._predict_part(number, part):
                raise UserError.from_dict(error)
            show(0)

    monkeypatch.setattr(batches, "_predict", predict)
    monkeypatch.setattr(preparation, "Workers", InProcess)
    monkeypatch.setattr(shard_tasks, "Workers", InProcess)
    monkeypatch.setattr(starting, "check", lambda *_arguments, **_named: [])
    monkeypatch.setattr(launch, "_execute", Run().execute)
    monkeypatch.setattr(progress, "RunDisplay", Silent)
    monkeypatch.setattr(launch, "LAST_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(launch, "started_at", time.time)
    monkeypatch.setattr(launch, "steps_on", lambda _platform: ["train", "evaluate", "register_model"])
    monkeypatch.setattr(store, "READ_WAITS", ())
    monkeypatch.setattr(atomic, "STALE_SECONDS", -1)


@pytest.mark.parametrize("scenario", [Export, Registration, Saving, Run, Batch, Preparation])
def test_a_failing_disk_costs_nothing_but_the_attempt(
    scenario: type[Scenario], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {SEED}: SLIPWAY_SEED={SEED} repeats it")
    root, tested = tmp_path / "root", scenario()

    def begin() -> None:
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        monkeypatch.chdir(root)
        tested.begin(root)

    begin()
    with Disk(root).failing() as disk:
        undisturbed = tested.act(root)
    tidy = names(root)
    possible = faults(disk.counts)
    assert {fault.operation for fault in possible} >= {"open", "write", "fsync", "rename"}
    count = len(possible) if FAULTS == "all" else min(int(FAULTS), len(possible))
    chosen = random.Random(SEED).sample(possible, count)
    problems = []
    for fault in chosen:
        begin()
        try:
            _inject(tested, root, fault, undisturbed, tidy)
        except Exception as error:
            problems.append(f"{fault}: {type(error).__name__}: {error}")
    print(f"{len(chosen)} of {len(possible)} faults: {dict(disk.counts)}")
    assert not problems, f"{len(problems)} of {len(chosen)} faults:\n" + "\n".join(problems)


def _inject(tested: Scenario, root: Path, fault: Fault, undisturbed: object, tidy: set[str]) -> None:
    with Disk(root, fault).failing():
        try:
            assert tested.act(root) == undisturbed, "another result"
        except (UserError, WorkFailed):
            pass
        except OSError as error:
            assert system_error(error) is not None, f"a traceback: {error!r}"
    tested.check(root)
    assert tested.act(root) == undisturbed, "another result afterwards"
    assert names(root) - tested.records == tidy, "other files afterwards"
