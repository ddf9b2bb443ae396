"""Killed, stopped and concurrent runs end with one valid data set and no leftover processes."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
# How often one run is killed.
KILLS = int(os.environ.get("SLIPWAY_KILLS", "6"))
# Slowed down, so that signals can arrive at every stage of the work.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from slipway.components.prepare_data.writing import shards
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.step import step

inspect, pause = shards.Inspector.inspect, float(sys.argv[2])
held = Path(sys.argv[3]).read_bytes() if sys.argv[3:] else None

def slowly(self, data):
    parent = os.getppid()
    while data == held and os.getppid() == parent:
        time.sleep(0.01)
    time.sleep(pause)
    return inspect(self, data)

shards.Inspector.inspect = slowly
with step("prepare_data"):
    prepared = prepare(DataSettings.model_validate_json(sys.argv[1]), 4)
    print("reused" if prepared.reused else "written")
"""


def start(
    settings: DataSettings, pause: float, events: Path | None = None, held: Path | None = None
) -> subprocess.Popen[str]:
    """Start a run that takes `pause` seconds per image; with `held`, it waits at that image until it is killed."""
    environment = {**os.environ, **({"SLIPWAY_EVENTS": str(events)} if events else {})}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, settings.model_dump_json(), str(pause), *([str(held)] if held else [])],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.01)


def wait_for_shard(settings: DataSettings, count: int = 1) -> None:
    wait_for(lambda: len(list(Path(settings.store).glob("*/.*.work/results/*.json"))) >= count)


def ended(processes: list[psutil.Process]) -> bool:
    return not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(make_folder: Callable[..., Path]) -> Path:
    return make_folder({"a": 30, "b": 30})


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_run_that_is_stopped_leaves_nothing(
    folder: Path, make_settings: Callable[..., DataSettings], sent: signal.Signals
) -> None:
    settings = make_settings(folder)
    run = start(settings, pause=0.2)
    wait_for_shard(settings)
    workers = psutil.Process(run.pid).children()
    assert len(workers) == 2
    run.send_signal(sent)
    assert run.wait(60) != 0
    assert not Path(settings.store).exists()
    wait_for(lambda: ended(workers))


def test_a_run_that_is_killed_is_resumed(
    folder: Path, make_settings: Callable[..., DataSettings], tmp_path: Path
) -> None:
    undisturbed = prepare(make_settings(folder, store=str(tmp_path / "undisturbed")), 4)
    settings = make_settings(folder)
    run = start(settings, pause=0.05, held=folder / "b" / "image 29.png")
    wait_for_shard(settings, 3)
    workers = psutil.Process(run.pid).children()
    run.kill()
    run.wait()  # its last thread releases the locks, which may be after its workers have ended
    wait_for(lambda: ended(workers))
    kept = {path: path.stat().st_mtime_ns for path in Path(settings.store).glob("*/.*.work/set/image_folder-*")}
    results = list(Path(settings.store).glob("*/.*.work/results/*.json"))
    assert len(results) >= 3
    prepared = prepare(settings, 4)
    assert not prepared.reused
    assert contents(prepared.folder) == contents(undisturbed.folder)
    for path, stamp in kept.items():
        assert (prepared.folder / path.name).stat().st_mtime_ns == stamp
    assert {path.name for path in prepared.folder.parent.iterdir()} == {".listings", prepared.folder.name}


def test_a_shard_of_a_killed_run_that_is_damaged_is_written_again(
    folder: Path, make_settings: Callable[..., DataSettings], tmp_path: Path
) -> None:
    undisturbed = prepare(make_settings(folder, store=str(tmp_path / "undisturbed")), 4)
    settings = make_settings(folder)
    run = start(settings, pause=0.03, held=folder / "b" / "image 29.png")
    wait_for_shard(settings, 3)
    workers = psutil.Process(run.pid).children()
    run.kill()
    run.wait()
    wait_for(lambda: ended(workers))
    one, two, *_ = sorted(Path(settings.store).glob("*/.*.work/results/*.json"))
    one.write_text("")
    shard = two.parents[1] / "set" / two.stem
    shard.write_bytes(bytes(shard.stat().st_size))
    assert contents(prepare(settings, 4).folder) == contents(undisturbed.folder)


def test_killed_at_random_moments_the_result_is_the_same(
    folder: Path, make_settings: Callable[..., DataSettings], tmp_path: Path, encoded: Callable[..., bytes]
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    (folder / "a" / "bad.png").write_bytes(encoded(1)[:-15])  # found before shards are written
    for number in range(5):  # all shards are written again without them
        (folder / "b" / f"copy {number}.png").write_bytes((folder / "a" / f"image {number}.png").read_bytes())
    choices = {"skip_corrupt": 0.1, "duplicates": "drop"}
    undisturbed = prepare(make_settings(folder, store=str(tmp_path / "undisturbed"), **choices), 4)
    assert undisturbed.manifest.skipped_count > 1
    settings = make_settings(folder, **choices)
    workers: list[psutil.Process] = []
    for _ in range(KILLS):
        run = start(settings, pause=0.02)
        try:
            run.wait(0.3 + generator.random() * 1.2)
        except subprocess.TimeoutExpired:
            workers += psutil.Process(run.pid).children(recursive=True)
            run.kill()
            run.wait()
        for complete in Path(settings.store).glob("*/*/manifest.json"):
            assert contents(complete.parent) == contents(undisturbed.folder)
    wait_for(lambda: ended(workers))  # they may still hold locks
    prepared = prepare(settings, 4)
    assert contents(prepared.folder) == contents(undisturbed.folder)
    assert {path.name for path in prepared.folder.parent.iterdir()} == {".listings", prepared.folder.name}


def test_what_a_killed_run_of_another_set_left_is_removed(
    folder: Path, make_settings: Callable[..., DataSettings]
) -> None:
    killed = start(make_settings(folder, seed=1), pause=0.05)
    wait_for_shard(make_settings(folder))
    workers = psutil.Process(killed.pid).children()
    killed.kill()
    killed.wait()
    wait_for(lambda: ended(workers))
    assert list(Path(make_settings(folder).store).glob("*/.*"))
    prepared = prepare(make_settings(folder, seed=2), 4)
    assert {path.name for path in prepared.folder.parent.iterdir()} == {".listings", prepared.folder.name}


def test_what_a_living_run_of_another_set_writes_is_left_alone(
    folder: Path, make_settings: Callable[..., DataSettings]
) -> None:
    settings = make_settings(folder, seed=1)
    living = start(settings, pause=0.03)
    wait_for_shard(settings)
    other = prepare(make_settings(folder, seed=2), 4)
    assert living.wait(90) == 0, living.stderr
    assert prepare(settings, 4).reused
    assert len([path for path in other.folder.parent.iterdir() if path.name != ".listings"]) == 2


def test_two_runs_of_the_same_set_end_with_one(
    folder: Path, make_settings: Callable[..., DataSettings], tmp_path: Path
) -> None:
    settings = make_settings(folder)
    first = start(settings, pause=0.15)
    wait_for_shard(settings)
    first.send_signal(signal.SIGSTOP)  # or it could end before the second one starts
    log = tmp_path / "events"
    second = start(settings, pause=0.03, events=log)
    wait_for(lambda: log.exists() and "waiting for it" in log.read_text())
    first.send_signal(signal.SIGCONT)
    said = [run.communicate(timeout=180) for run in (first, second)]
    assert [out.strip() for out, _ in said] == ["written", "reused"], said
    (prepared,) = (Path(settings.store) / "image_folder").glob("[!.]*")
    assert not list(prepared.parent.glob(".*.work"))
    assert (prepared / "manifest.json").exists()


def test_a_worker_that_dies_ends_the_run(folder: Path, make_settings: Callable[..., DataSettings]) -> None:
    settings = make_settings(folder)
    run = start(settings, pause=0.2)
    wait_for_shard(settings)
    one, other = psutil.Process(run.pid).children()
    one.kill()
    _, said = run.communicate(timeout=180)
    assert run.returncode != 0
    assert "A process that prepares the data was killed by SIGKILL." in said
    assert not Path(settings.store).exists()
    wait_for(lambda: ended([other]))


def test_progress_is_told_a_few_times_a_second(
    folder: Path, make_settings: Callable[..., DataSettings], tmp_path: Path
) -> None:
    run = start(make_settings(folder), pause=0.03, events=tmp_path / "events")
    run.communicate(timeout=180)
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    told = [event for event in events if event["event"] == "progress"]
    assert told[-1]["done"] == told[-1]["total"] == 60
    assert {event["unit"] for event in told} == {"images"}
    assert told[-1]["values"]["images_per_second"] > 0
    assert all(after["done"] > before["done"] for before, after in itertools.pairwise(told))
    assert len(told) <= 2 + 4 * (told[-1]["time"] - told[0]["time"])
