"""A training on TPUs whose launcher, hosts and API calls fail must end, with no TPU left and never two at once.

`python -m tests.chaos.tpus` runs it with 30 kills. The launcher is the train step of `--target tpu` in a process of its
own; the TPU API is the fake one, whose hosts run the real start-up script. Kinds, victims and moments of the kills, and
the calls that fail, are drawn from a seed; the machine's timing is not.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from slipway.components.train.tpu.settings import TpuRequest, TpuSettings
from slipway.core.exit_codes import STOPPED
from slipway.trainer.config import RestartSettings
from tests.fakes.google import PROJECT, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, RUNNER, let_use_tpus, make_ready

# Both have the TPU: the second one is used when the first has no capacity.
ZONES = ("us-east5-a", "us-east5-b")
RUN = "chaos"
LEASE_SECONDS = 3
FAILING_CALLS = 0.2
# Within this many seconds an attempt of the launcher has to end by itself: a hang is a failure.
LIMIT_SECONDS = 120.0
STEP_SECONDS = 0.05
# What runs in the trainer's container: it counts its steps in a checkpoint, continues from there, and ends when told.
TRAINER = """
import os, sys, time
from slipway.core.paths import local_path
model, checkpoints = (local_path(os.environ[name]) for name in ("AIP_MODEL_DIR", "AIP_CHECKPOINT_DIR"))
checkpoints.mkdir(parents=True, exist_ok=True)
state, finish = checkpoints / "state", sys.argv[1]
step = int(state.read_text()) if state.exists() else 0
print(f"from step {step}", flush=True)
while not os.path.exists(finish):
    time.sleep(float(sys.argv[2]))
    step += 1
    beside = checkpoints / f".state-{os.getpid()}"
    beside.write_text(str(step))
    beside.replace(state)
model.mkdir(parents=True, exist_ok=True)
(model / "model.json").write_text(state.read_text())
"""
# Credentials ask Google's public address where they may be used: the test stays on loopback.
LAUNCHER = """
import json, sys
from pathlib import Path
from google.auth.credentials import CredentialsWithRegionalAccessBoundary as Asking
Asking._is_regional_access_boundary_lookup_required = lambda _self: False
from slipway.components.step import step
from slipway.components.train.tpu.job import train_on_tpu
from slipway.components.train.tpu.settings import TpuRequest
from slipway.trainer.config import RestartSettings
plan = json.loads(Path(sys.argv[1]).read_text())
with step("train"):
    output = Path(plan["output"])
    request, restarts = TpuRequest.model_validate(plan["request"]), RestartSettings.model_validate(plan["restarts"])
    train_on_tpu(request, plan["pool"], output, None, restarts)
"""
KINDS = ("launcher", "host", "preemption", "abandoned", "no capacity", "stock-out")


@dataclass(frozen=True)
class Strike:
    """One kill, so many seconds `after` there is what it needs: a launcher, a request, or a TPU.

    `kind` is "launcher" (killed and started again), "abandoned" (killed, and started again only when its TPU has
    deleted itself), "host" (crashed and restarted) or "preemption". With "no capacity" in the first zone, and with a
    "stock-out" in both, which last until the next strike, the launcher is killed, too.
    """

    kind: str
    after: float
    signal: signal.Signals


def plan_strikes(seed: int, kills: int) -> list[Strike]:
    """Return the strikes in order."""
    chance = random.Random(seed)
    signals = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    kinds = [KINDS[number % len(KINDS)] for number in range(kills)]
    chance.shuffle(kinds)
    return [
        Strike(kind, chance.uniform(0.0, 4.0), signal.SIGKILL if kind == "abandoned" else chance.choice(signals))
        for kind in kinds
    ]


@dataclass
class Result:
    """The outcome; `problems` is empty on success."""

    problems: list[str] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    launchers: int = 0
    failed_calls: int = 0


def run(seed: int, kills: int, folder: Path) -> Result:
    """Train in `folder` with kills, and check what is left."""
    google_folder = folder / "google"
    google_folder.mkdir()
    with FakeGoogle(google_folder, seed) as google:
        make_ready(google)
        let_use_tpus(google)
        google.tpu.seconds |= {"WAITING_FOR_RESOURCES": 0.3, "PROVISIONING": 0.3, "DELETING": 0.3}
        google.tpu.grace_seconds = 0.5
        result = Result()
        google.faults.share = FAILING_CALLS
        _Chaos(google, folder, result).run(plan_strikes(seed, kills))
        google.faults.share = 0.0
        result.failed_calls = sum(google.faults.struck.values())
        result.requests = len({name for name, _ in google.tpu.history})
        result.problems += _left(google)
        result.problems += _two_at_once(google.tpu.history)
        result.problems += _lost_steps(folder)
    return result


class _Chaos:
    def __init__(self, google: FakeGoogle, folder: Path, result: Result) -> None:
        self._google, self._result, self._folder = google, result, folder
        self._finish = folder / "finish"
        output = folder / RUN / "train"
        output.mkdir(parents=True)
        settings = TpuSettings(
            project=PROJECT,
            zones=ZONES,
            bucket=f"gs://{BUCKET}",
            image=IMAGE,
            service_account=RUNNER,
            lease=LEASE_SECONDS / 60,
            max_hours=LIMIT_SECONDS / 3600,
            valid_for=LIMIT_SECONDS / 3600,
            endpoints={name: google.endpoints[name] for name in ("tpu", "storage")},
        )
        request = TpuRequest(
            settings=settings,
            accelerator={"acceleratorType": "v6e-8"},
            runtime_version="v2-alpha-tpuv6e",
            spot=True,
        )
        container = {
            "image_uri": IMAGE,
            "command": ["python"],
            "args": ["-c", TRAINER, str(self._finish), str(STEP_SECONDS)],
        }
        plan = {
            "request": request.model_dump(mode="json"),
            "pool": {"container_spec": container},
            "output": str(output),
            "restarts": RestartSettings(at_most=100, backoff_seconds=0.0).model_dump(mode="json"),
        }
        self._plan = folder / "plan.json"
        self._plan.write_text(json.dumps(plan))
        (folder / "launcher.py").write_text(LAUNCHER)

    def run(self, strikes: list[Strike]) -> None:
        """Execute the strikes one after the other, then let the last launcher finish."""
        launcher = self._start()
        for strike in strikes:
            self._have_capacity()
            deadline = time.monotonic() + LIMIT_SECONDS
            while not self._is_struck(strike):
                if launcher.poll() is not None:
                    launcher = self._started_again(launcher)
                if time.monotonic() > deadline:
                    self._result.problems.append(f"there was no TPU for a {strike.kind}")
                    break
                time.sleep(0.05)
            self._result.struck[strike.kind] += 1
            if strike.kind in ("host", "preemption"):
                continue
            if strike.kind == "no capacity":
                self._google.tpu.exhausted.add(ZONES[0])
            elif strike.kind == "stock-out":
                self._google.tpu.stocked_out.update(ZONES)
            launcher.send_signal(strike.signal)
            self._check_end(launcher, strike)
            if strike.kind == "abandoned":
                self._check_deleted_by_itself()
            launcher = self._start()
        self._have_capacity()
        self._finish.touch()
        while launcher.wait(LIMIT_SECONDS) != 0 and self._result.launchers < 3 * len(strikes) + 10:
            launcher = self._started_again(launcher)

    def _have_capacity(self) -> None:
        self._google.tpu.exhausted.clear()
        self._google.tpu.stocked_out.clear()

    def _start(self) -> subprocess.Popen[bytes]:
        self._result.launchers += 1
        environment = {**os.environ, **self._google.environment, "SLIPWAY_RETRY_SECONDS": "0.04"}
        with (self._folder / "launcher.log").open("a") as log:
            log.write(f"--- launcher {self._result.launchers}\n")
            log.flush()
            return subprocess.Popen(
                [sys.executable, str(self._folder / "launcher.py"), str(self._plan)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _started_again(self, ended: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """A launcher that ended by itself: with the result, or because too many calls failed one after the other."""
        self._result.struck["ended with " + str(ended.returncode)] += 1
        return self._start()

    def _is_struck(self, strike: Strike) -> bool:
        """Wait for the moment of a strike, and execute it if it is one at a TPU; False if there was nothing to hit."""
        tpu = self._google.tpu
        states = {
            each.name.rpartition("/")[2]: each.state
            for each in list(tpu.resources.values())
            if strike.kind == "abandoned" or each.state == "ACTIVE"
        }
        if not states and strike.kind in ("host", "preemption", "abandoned"):
            return False
        time.sleep(strike.after)
        if strike.kind == "abandoned":
            return bool(tpu.resources)
        try:
            if strike.kind == "host":
                tpu.kill_host(next(iter(states)), 0)
            elif strike.kind == "preemption":
                tpu.preempt(next(iter(states)))
        except (AssertionError, StopIteration, IndexError):  # it has ended meanwhile
            return False
        return True

    def _check_end(self, launcher: subprocess.Popen[bytes], strike: Strike) -> None:
        """A launcher that was asked to stop deletes its TPU before it ends."""
        try:
            code = launcher.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()
            self._result.problems.append(f"the launcher did not end after {strike.signal.name}")
            return
        if code == STOPPED and self._google.tpu.resources:
            states = [resource.state for resource in self._google.tpu.resources.values()]
            self._result.problems.append(f"after {strike.signal.name} the launcher left a TPU: {states}")

    def _check_deleted_by_itself(self) -> None:
        """The machines delete their TPU; a request that has none (any more) is the next launcher's to delete."""
        deadline = time.monotonic() + LEASE_SECONDS + 30
        while states := [resource.state for resource in list(self._google.tpu.resources.values())]:
            if set(states) <= {"FAILED", "SUSPENDED"}:
                return
            if time.monotonic() > deadline:
                self._result.problems.append(f"the launcher was killed, and its TPU is still there: {states}")
                return
            time.sleep(0.05)


def _left(google: FakeGoogle) -> list[str]:
    """Return what is left of queued resources and their nodes, and of the processes of hosts."""
    left = [f"{name} is left: {resource.state}" for name, resource in google.tpu.resources.items()]
    return left + [f"process {pid} of a host is left" for pid in google.tpu.machines.processes()]


def _lost_steps(folder: Path) -> list[str]:
    """Return where a container did not continue from the newest step, and whether the model is of an older one."""
    steps = [int(found) for found in re.findall(r"from step (\d+)", (folder / "launcher.log").read_text())]
    model = folder / RUN / "train" / "model" / "model.json"
    if not model.is_file():
        return ["the model is not in the run's folder"]
    steps.append(int(model.read_text()))
    return [f"step {after} after step {before}" for before, after in itertools.pairwise(steps) if after < before]


def _two_at_once(history: list[tuple[str, str]]) -> list[str]:
    """Return the moments at which the run had two queued resources."""
    there: set[str] = set()
    problems = []
    for name, state in history:
        there = there - {name} if state == "" else there | {name}
        if state == "CREATING" and len(there) > 1:
            problems.append(f"two at once: {', '.join(sorted(there))}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.tpus", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SLIPWAY_SEED") or random.randrange(2**31)))
    parser.add_argument("--keep", type=Path, help="an empty folder for the logs; default: a temporary folder")
    options = parser.parse_args()
    print(f"seed {options.seed}: the same plan again with SLIPWAY_SEED={options.seed}", flush=True)
    started = time.monotonic()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        result = run(options.seed, options.kills, options.keep or Path(temporary))
    for problem in result.problems:
        print(f"  {problem}")
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(result.struck.items()))
    print(
        f"chaos of TPUs: {'FAILED' if result.problems else 'passed'}: {struck}; {result.failed_calls} calls failed, "
        f"{result.launchers} launchers made {result.requests} requests, {time.monotonic() - started:.0f} s, seed "
        f"{options.seed}: " + ("; ".join(result.problems) or "no TPU left, never two at once, no step lost")
    )
    return 1 if result.problems else 0


if __name__ == "__main__":
    sys.exit(main())
