"""A training job whose workers are killed at random must end with the weights of an undisturbed one.

The workers are the trainer's, started by the local cluster as for any run. The victims, signals and moments of kills
are drawn from a seed. The machine's timing is not, so a seed reproduces the plan but not the exact timing.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import psutil

from slipway.components.plan_training.plan import plan_training
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.train.local_cluster import run_local_cluster
from slipway.components.train.restarts import Restart
from slipway.trainer.checkpoint.store import Checkpoints, pointed_step
from slipway.trainer.config import ModelSettings, RestartSettings, TrainSettings

KEEP = 3
LOG = "train.log"
RESTART = re.compile(r"^\S+ .*all start again from .*$", re.MULTILINE)
# Within this many seconds the whole of it has to be over: a hang is a failure.
LIMIT_SECONDS = 1200.0
# What of a line of the history the training decides, and not the clock.
DECIDED = ("kind", "step", "epoch", "loss", "accuracy", "learning_rate")


@dataclass(frozen=True)
class Chaos:
    """The run and the number of kills; one to three workers are killed at once."""

    seed: int
    engine: str = "tensorflow"
    processes: int = 4
    kills: int = 20
    steps: int = 1500


@dataclass(frozen=True)
class Strike:
    """Workers of one attempt that are killed at the same moment, which depends on the run's progress.

    `when` is "starting": after `part` of an undisturbed start's duration, or when the attempt has saved something;
    "training": as soon as `part` of the steps are saved; "saved": as soon as the last step is saved; "exported": as
    soon as the model exists.
    """

    when: str
    part: float
    victims: tuple[tuple[int, signal.Signals], ...]


def plan_strikes(chaos: Chaos) -> list[Strike]:
    """The strikes in order, with `chaos.kills` victims in total."""
    chance = random.Random(chaos.seed)
    groups = []
    left = chaos.kills
    while left:
        count = min(left, chaos.processes, chance.choice((1, 1, 1, 1, 2, 2, 3)))
        ranks = chance.sample(range(chaos.processes), count)
        groups.append(tuple((rank, chance.choice((signal.SIGKILL, signal.SIGTERM))) for rank in ranks))
        left -= count
    endings = ("saved", "exported")[3 - min(3, len(groups)) :]
    kinds = [("training", "starting")[number % 2] for number in range(len(groups) - len(endings))]
    chance.shuffle(kinds)
    parts = iter(sorted(chance.uniform(0.02, 0.9) for _ in kinds))
    return [
        Strike(kind, next(parts) if kind == "training" else chance.random(), victims)
        for kind, victims in zip([*kinds, *endings], groups, strict=True)
    ]


@dataclass(frozen=True)
class Struck:
    """An executed strike: the restarts before it, the newest checkpoint's step, and model.json if it existed."""

    restarts: int
    step: int
    model: os.stat_result | None


@dataclass
class Attacker:
    """Kills workers of the job that writes to `output`, in a separate thread, while the main thread runs the job.

    A strike kills all its victims at once: if one of them has ended, the strike is postponed to the next attempt.
    """

    chaos: Chaos
    output: Path
    start_seconds: float
    killed: list[signal.Signals] = field(default_factory=list)
    struck: list[Struck] = field(default_factory=list)
    timed_out: bool = False

    def __post_init__(self) -> None:
        self.strikes = plan_strikes(self.chaos)
        self._over = threading.Event()
        self._deadline = time.monotonic() + LIMIT_SECONDS
        self._thread = threading.Thread(target=self._attack, daemon=True)

    def __enter__(self) -> Attacker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def is_done(self) -> bool:
        """Whether there are no more strikes to execute."""
        return len(self.struck) == len(self.strikes) or self.timed_out or not self._thread.is_alive()

    def _attack(self) -> None:
        known: set[psutil.Process] = set()
        for strike in self.strikes:
            while not self._is_over():
                workers = self._next_try(known)
                known |= {*workers}
                if self._wait_for(strike, workers) and self._strike(strike, workers):
                    break
        while not self._over.wait(0.5):
            if time.monotonic() > self._deadline:
                self.timed_out = True
                for worker in trainers():
                    worker.kill()

    def _next_try(self, known: set[psutil.Process]) -> list[psutil.Process]:
        """The workers of a new attempt, in rank order."""
        while not self._is_over():
            workers = trainers()
            if len(workers) == self.chaos.processes and not known & {*workers}:
                return workers
            time.sleep(0.01)
        return []

    def _wait_for(self, strike: Strike, workers: list[psutil.Process]) -> bool:
        """Wait for the strike's moment; False if the attempt or the job ended before."""
        started_at, saved = time.monotonic() + strike.part * self.start_seconds, self._saved_step()
        while not self._is_over() and all(map(_is_alive, workers)):
            moment = {
                "starting": time.monotonic() >= started_at or self._saved_step() > saved,
                "training": self._saved_step() >= strike.part * self.chaos.steps,
                "saved": self._saved_step() >= self.chaos.steps,
                "exported": self._model() is not None,
            }
            if moment[strike.when]:
                return True
            time.sleep(0.002)
        return False

    def _strike(self, strike: Strike, workers: list[psutil.Process]) -> bool:
        """Freeze all victims, then kill them; False, with none killed, if one has ended."""
        victims = [workers[rank] for rank, _ in strike.victims]
        try:
            if not all(map(_freeze, victims)):
                return False
            step = self._saved_step()
            self.struck.append(Struck(_restarts(self._log()), step, self._model()))
            for victim, (_, number) in zip(victims, strike.victims, strict=True):
                # A worker that is asked to stop after the last step finishes, and exits with status 0.
                self.killed.append(signal.SIGKILL if step >= self.chaos.steps else number)
                victim.send_signal(self.killed[-1])
        finally:
            for victim in victims:
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.send_signal(signal.SIGCONT)
        return True

    def _saved_step(self) -> int:
        return pointed_step(self.output / "checkpoints") or 0

    def _model(self) -> os.stat_result | None:
        with contextlib.suppress(OSError):
            return (self.output / "model" / "model.json").stat()
        return None

    def _log(self) -> str:
        return (self.output / LOG).read_text()

    def _is_over(self) -> bool:
        return self._over.is_set() or time.monotonic() > self._deadline


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _freeze(process: psutil.Process) -> bool:
    """Stop a process (SIGSTOP); return whether it is stopped rather than ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGSTOP)
        while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
            time.sleep(0.001)
        return process.status() == psutil.STATUS_STOPPED
    return False


def trainers() -> list[psutil.Process]:
    """This process's running workers, in start order."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if "slipway.trainer" in child.cmdline():
                found.append((child.create_time(), child.pid, child))  # process ids start over at some point
    return [child for *_, child in sorted(found)]


@dataclass(frozen=True)
class Result:
    """The outcome; `problems` is empty on success."""

    problems: list[str]
    killed: list[signal.Signals]
    strikes: int
    restarts: list[Restart]
    checksum: str


def run(chaos: Chaos, folder: Path) -> Result:
    """Train in `folder`, undisturbed and then with kills, and compare the results."""
    pools, spec = _job(chaos, folder)
    calm = _start(pools, spec, folder / "calm")
    output = folder / "attacked"
    before = psutil.Process().children(recursive=True)  # such as the resource tracker of multiprocessing
    with Attacker(chaos, output, calm.start_seconds) as attacker:
        attacked = _start(pools, spec, output)
        while not attacker.is_done:  # it ended before a strike: when restarted, it must detect that all is done
            again = _start(pools, spec, output)
            attacked = replace(again, restarts=attacked.restarts + again.restarts)
    problems = ["it did not end by itself"] if attacker.timed_out else []
    problems += _differences(folder / "calm", output)
    problems += _lost_checkpoints(output, attacked, attacker.struck, chaos.steps)
    problems += _repeated_ends(output, attacked, attacker.struck)
    if len(attacker.killed) < chaos.kills:
        problems.append(f"{chaos.kills} kills were planned and only {len(attacker.killed)} struck")
    if len(attacked.restarts) < len(attacker.struck):
        problems.append(f"{len(attacker.struck)} groups were killed, and there were {len(attacked.restarts)} restarts")
    if left := [each.pid for each in psutil.Process().children(recursive=True) if each not in before]:
        problems.append(f"processes are left: {left}")
    checksum = json.loads((output / "model" / "model.json").read_text())["weights_checksum"]
    return Result(problems, attacker.killed, len(attacker.struck), attacked.restarts, checksum)


@dataclass(frozen=True)
class Ended:
    """A finished job: its log, its restarts, and the seconds to its first checkpoint."""

    log: str
    restarts: list[Restart]
    start_seconds: float


def _job(chaos: Chaos, folder: Path, devices: int = 1) -> tuple[list[dict[str, Any]], RestartSettings]:
    """The worker pools of a job with frequent checkpoints and random augmentation, and its restart limit.

    `devices` are those of each replica.
    """
    prepared = prepare(DataSettings(source="digits", store=str(folder / "datasets")), chaos.processes * devices)
    train = TrainSettings.model_validate(
        {
            "engine": chaos.engine,
            "steps": chaos.steps,
            "batch_size": 8 * chaos.processes,
            "steps_per_call": 7,
            "augment": {"shift": 1},
            "checkpoint": {"every_steps": 10, "every_seconds": 0.5, "keep": KEEP},
        }
    )
    others = chaos.processes - 1
    hardware = [
        {"machine_spec": {}, "replica_count": 1},
        *([{"machine_spec": {}, "replica_count": others}] * (others > 0)),
    ]
    model = ModelSettings(builder="slipway.trainer.models.digits:build")
    planned = plan_training(hardware, 0, prepared.manifest, prepared.uri, model, train, image="")
    return planned.worker_pool_specs, RestartSettings(at_most=10 * chaos.kills, backoff_seconds=0.0)


def _start(pools: list[dict[str, Any]], restarts: RestartSettings, output: Path) -> Ended:
    output.mkdir(exist_ok=True)
    log_file = output / LOG
    started = time.monotonic()
    first: list[float] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            if pointed_step(output / "checkpoints") is not None:
                first.append(time.monotonic() - started)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    log: TextIO
    try:
        with log_file.open("a") as log:
            done = run_local_cluster(pools, output, restarts=restarts, log=log)
    finally:
        over.set()
        watcher.join()
    return Ended(log_file.read_text(), done, first[0] if first else 0.0)


def _differences(calm: Path, attacked: Path) -> list[str]:
    """Differences from an undisturbed run: in the weights, and in the history apart from times."""

    def weights(output: Path) -> str:
        return str(json.loads((output / "model" / "model.json").read_text())["weights_checksum"])

    def history(output: Path) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (output / "model" / "metrics.jsonl").read_text().splitlines()]
        return [{name: line.get(name) for name in DECIDED} for line in lines]

    problems = []
    if weights(calm) != weights(attacked):
        problems.append(f"the weights are {weights(attacked)[:12]}, undisturbed {weights(calm)[:12]}")
    if history(calm) != history(attacked):
        problems.append("the history differs from the undisturbed run's")
    return problems


def _lost_checkpoints(output: Path, ended: Ended, struck: list[Struck], steps: int) -> list[str]:
    """Checkpoints that were saved but not resumed from, or that cannot be read at the end."""
    problems = []
    tries = RESTART.split(ended.log)
    expected = [0, *(restart.step for restart in ended.restarts)]
    if len(tries) != len(expected):
        problems.append(f"the log tells of {len(tries) - 1} restarts, the record of {len(expected) - 1}")
    if expected != sorted(expected):
        problems.append(f"the restarts were from steps {expected[1:]}: one went back")
    for number, (text, step) in enumerate(zip(tries, expected, strict=False)):
        wrong = {
            found for found in re.findall(r"resuming from the checkpoint at step (\d+)", text) if int(found) != step
        }
        problems += [f"try {number} went on from step {found}, and {step} had been saved" for found in sorted(wrong)]
    for each in struck:
        after = [restart.step for restart in ended.restarts[each.restarts :]]
        if after and after[0] < each.step:
            problems.append(f"step {each.step} had been saved before a kill, and only {after[0]} was there after it")
    if "damaged" in ended.log:
        problems.append("a checkpoint was damaged")
    newest = Checkpoints(output / "checkpoints", KEEP).newest()
    if newest is None or newest.step != steps:
        problems.append(f"the last checkpoint is {newest and newest.step}, not {steps}")
    return problems


def _repeated_ends(output: Path, ended: Ended, struck: list[Struck]) -> list[str]:
    """Work that was repeated although the model had been exported before a kill."""
    exported = next((each for each in struck if each.model), None)
    if exported is None or exported.model is None:
        return []
    problems = []
    later = "".join(RESTART.split(ended.log)[exported.restarts + 1 :])
    problems += [f"{what!r} after the model was exported" for what in ("epoch ", "model written") if what in later]
    now = (output / "model" / "model.json").stat()
    if (now.st_ino, now.st_mtime_ns) != (exported.model.st_ino, exported.model.st_mtime_ns):
        problems.append("the model was written again")
    return problems


def _restarts(log: str) -> int:
    return len(RESTART.findall(log))
