"""A training job whose workers are killed at random: it ends with the weights of one that was left alone.

The workers are the trainer's, started by the local cluster as for any run. How many kills there are, whom they strike,
how and when is drawn from a seed; the machine's own timing is not, so a seed repeats the plan, not each microsecond.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

from components.plan_training.plan import plan_training
from components.prepare_data.prepare import prepare
from components.prepare_data.settings import DataSettings
from components.train.local_cluster import run_local_cluster
from components.train.restarts import Restart
from trainer.checkpoints import Checkpoints, pointed_step
from trainer.config import ModelSettings, RestartSettings, TrainSettings

KEEP = 3
# Within this many seconds the whole of it has to be over: a hang is a failure.
LIMIT_SECONDS = 1200.0
# What of a line of the history the training decides, and not the clock.
DECIDED = ("kind", "step", "epoch", "loss", "accuracy", "learning_rate")


@dataclass(frozen=True)
class Chaos:
    """What to run, and how often to kill. `signals` are sent to as many workers at once as drawn, one to three."""

    seed: int
    engine: str = "tensorflow"
    processes: int = 4
    kills: int = 20
    steps: int = 1500


@dataclass(frozen=True)
class Strike:
    """Some workers of one try, killed at one moment.

    `when` is "starting": `part` of the time that a start takes after the try began; "training": as soon as the run is
    saved past `part` of its steps; "ending": `part` of a second after its last step was saved.
    """

    when: str
    part: float
    victims: tuple[tuple[int, signal.Signals], ...]


def plan_strikes(chaos: Chaos) -> list[Strike]:
    """The strikes in their order; they have `chaos.kills` victims together."""
    chance = random.Random(chaos.seed)
    groups = []
    left = chaos.kills
    while left:
        count = min(left, chaos.processes, chance.choice((1, 1, 1, 1, 2, 2, 3)))
        ranks = chance.sample(range(chaos.processes), count)
        groups.append(tuple((rank, chance.choice((signal.SIGKILL, signal.SIGTERM))) for rank in ranks))
        left -= count
    endings = min(2, len(groups) - 1)
    kinds = [("training", "starting")[number % 2] for number in range(len(groups) - endings)]
    chance.shuffle(kinds)
    parts = iter(sorted(chance.uniform(0.02, 0.95) for _ in kinds))
    strikes = [
        Strike(kind, next(parts) if kind == "training" else chance.random(), victims)
        for kind, victims in zip(kinds, groups[endings:], strict=True)
    ]
    return strikes + [Strike("ending", chance.random(), victims) for victims in groups[:endings]]


@dataclass
class Attacker:
    """Kills workers of the job that writes to `output`, in a thread of its own, while the main thread runs the job."""

    chaos: Chaos
    output: Path
    start_seconds: float
    killed: list[signal.Signals] = field(default_factory=list)
    seen_steps: list[int] = field(default_factory=list)  # the newest checkpoint's step, at each strike
    timed_out: bool = False

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._deadline = time.monotonic() + LIMIT_SECONDS
        self._thread = threading.Thread(target=self._attack, daemon=True)

    def __enter__(self) -> Attacker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _attack(self) -> None:
        struck: set[psutil.Process] = set()
        for strike in plan_strikes(self.chaos):
            workers = self._next_try(struck)
            if not self._wait_for(strike):
                break
            self._strike(strike, workers)
            struck |= {*workers}
        while not self._over.wait(0.5):
            if time.monotonic() > self._deadline:
                self.timed_out = True
                for worker in trainers():
                    worker.kill()

    def _next_try(self, struck: set[psutil.Process]) -> list[psutil.Process]:
        """The workers of a try that has not been struck, in the order of their ranks."""
        while not self._is_over():
            workers = trainers()
            if len(workers) == self.chaos.processes and not struck & {*workers}:
                return workers
            time.sleep(0.01)
        return []

    def _wait_for(self, strike: Strike) -> bool:
        """Wait for the moment; whether it has come before the job was over."""
        if strike.when == "starting":
            return not self._over.wait(strike.part * self.start_seconds)
        goal = self.chaos.steps if strike.when == "ending" else strike.part * self.chaos.steps
        while (pointed_step(self.output / "checkpoints") or 0) < goal:
            if self._is_over():
                return False
            time.sleep(0.002)
        return strike.when == "training" or not self._over.wait(strike.part)

    def _strike(self, strike: Strike, workers: list[psutil.Process]) -> None:
        self.seen_steps.append(pointed_step(self.output / "checkpoints") or 0)
        for rank, number in strike.victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                if workers and workers[rank].status() != psutil.STATUS_ZOMBIE:
                    workers[rank].send_signal(number)
                    self.killed.append(number)

    def _is_over(self) -> bool:
        return self._over.is_set() or time.monotonic() > self._deadline


def trainers() -> list[psutil.Process]:
    """This process's workers, also those that have just ended, in the order in which they were started."""
    found = []
    for child in psutil.Process().children():
        try:
            if "trainer" in child.cmdline() or child.status() == psutil.STATUS_ZOMBIE:
                found.append(child)
        except psutil.Error:
            continue
    return sorted(found, key=lambda process: process.pid)


@dataclass(frozen=True)
class Result:
    """How it went: `problems` is empty when all is as it should be."""

    problems: list[str]
    killed: list[signal.Signals]
    restarts: list[Restart]
    checksum: str


def run(chaos: Chaos, folder: Path) -> Result:
    """Train undisturbed, then under attack, in `folder`; compare."""
    pools, spec = _job(chaos, folder)
    calm = _start(pools, spec, folder / "calm")
    output = folder / "attacked"
    with Attacker(chaos, output, calm.start_seconds) as attacker:
        attacked = _start(pools, spec, output)
    problems = ["it did not end by itself"] if attacker.timed_out else []
    problems += _differences(folder / "calm", output)
    problems += _lost_checkpoints(output, attacked, attacker.seen_steps, chaos.steps)
    if len(attacker.killed) < chaos.kills:
        problems.append(f"{chaos.kills} kills were planned and only {len(attacker.killed)} struck")
    if left := [process.pid for process in psutil.Process().children(recursive=True)]:
        problems.append(f"processes are left: {left}")
    checksum = json.loads((output / "model" / "model.json").read_text())["weights_checksum"]
    return Result(problems, attacker.killed, attacked.restarts, checksum)


@dataclass(frozen=True)
class Ended:
    """A job that ended: its log, its restarts, and the seconds to its first checkpoint."""

    log: str
    restarts: list[Restart]
    start_seconds: float


def _job(chaos: Chaos, folder: Path) -> tuple[list[dict[str, Any]], RestartSettings]:
    """The worker pools of a job that saves often and draws at random, and how often it may be restarted."""
    prepared = prepare(DataSettings(source="digits", store=str(folder / "datasets")), chaos.processes)
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
    model = ModelSettings(builder="trainer.models.digits:build")
    planned = plan_training(hardware, 0, prepared.manifest, prepared.uri, model, train, image="")
    return planned.worker_pool_specs, RestartSettings(at_most=10 * chaos.kills, backoff_seconds=0.0)


def _start(pools: list[dict[str, Any]], restarts: RestartSettings, output: Path) -> Ended:
    output.mkdir()
    log_file = output / "train.log"
    started = time.monotonic()
    first: list[float] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            if pointed_step(output / "checkpoints") is not None:
                first.append(time.monotonic() - started)
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    log: TextIO
    try:
        with log_file.open("w") as log:
            done = run_local_cluster(pools, output, restarts=restarts, log=log)
    finally:
        over.set()
        watcher.join()
    return Ended(log_file.read_text(), done, first[0] if first else 0.0)


def _differences(calm: Path, attacked: Path) -> list[str]:
    """What an undisturbed run would have had otherwise: weights, and the history but for its clock."""

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


def _lost_checkpoints(output: Path, ended: Ended, seen: list[int], steps: int) -> list[str]:
    """What was once saved and not gone on from, or can not be read at the end."""
    problems = []
    tries = re.split(r"^\S+ .*all start again from .*$", ended.log, flags=re.MULTILINE)
    expected = [0, *(restart.step for restart in ended.restarts)]
    if len(tries) != len(expected):
        problems.append(f"the log tells of {len(tries) - 1} restarts, the record of {len(expected) - 1}")
    if expected != sorted(expected):
        problems.append(f"the restarts were from steps {expected[1:]}: one went back")
    for number, (text, step) in enumerate(zip(tries, expected, strict=False)):
        wrong = {
            found for found in re.findall(r"going on from the checkpoint at step (\d+)", text) if int(found) != step
        }
        problems += [f"try {number} went on from step {found}, and {step} had been saved" for found in sorted(wrong)]
    for step, restart in zip(seen, ended.restarts, strict=False):
        if restart.step < step:
            problems.append(f"step {step} had been saved before a kill, and only {restart.step} was there after it")
    if "damaged" in ended.log:
        problems.append("a checkpoint was damaged")
    newest = Checkpoints(output / "checkpoints", KEEP).newest()
    if newest is None or newest.step != steps:
        problems.append(f"the last checkpoint is {newest and newest.step}, not {steps}")
    return problems
