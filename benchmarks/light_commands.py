"""Seconds that light commands take to answer: `python -m benchmarks.light_commands`.

Each command runs ten times in a temporary folder that holds one finished run, with cached bytecode as when installed.
CPU seconds vary less than wall time on a busy machine; the ratio is that of the CPU seconds to those of
`python -c pass`. With `--against TREE`, runs alternate with the code of another checkout.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from slipway.pipelines.runs.record import RunRecord, StepRecord

ROOT = Path(__file__).parents[1]
PYTHON = "python -c pass"
# Every command that neither reads data nor starts a step, and a configuration that is refused.
COMMANDS = {
    "--help": ("--help",),
    "run --help": ("run", "--help"),
    "--version": ("--version",),
    "hardware": ("hardware",),
    "hardware l4x4*2": ("hardware", "l4x4*2"),
    "list": ("list",),
    "status": ("status",),
    "config schema": ("config", "schema"),
    "config show": ("config", "show"),
    "run, refused setting": ("run", "--set", "train.batchsize=3"),
    "run, refused hardware": ("run", "--hardware", "a100x3"),
}
STEPS = ("prepare_data", "plan_training", "train", "evaluate", "register_model")

Seconds = tuple[float, float]  # wall and CPU


def measured(arguments: Sequence[str], tree: Path, folder: Path) -> Seconds:
    """Return the wall and CPU seconds of one command; its bytecode is cached in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, _, usage = os.wait4(process.pid, 0)
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime


def prepare(folder: Path) -> None:
    """Create the configurations and one finished run in `folder`."""
    (folder / "configs").symlink_to(ROOT / "configs")
    record = RunRecord(
        run_id="digits-1",
        name="digits",
        platform="local",
        hardware="cpu",
        created=datetime.now(UTC),
        status="succeeded",
        steps=[StepRecord(name=name, status="succeeded", seconds=1.0) for name in STEPS],
    )
    run = folder / "runs" / record.run_id
    run.mkdir(parents=True)
    (run / "run.json").write_text(record.as_json())
    (folder / "runs" / "latest").symlink_to(record.run_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10, help="runs of each command")
    parser.add_argument("--against", metavar="TREE", type=Path, help="another checkout to compare with")
    arguments = parser.parse_args()
    trees = {"before": arguments.against.resolve()} if arguments.against else {}
    trees |= {"this tree": ROOT}
    rows = {PYTHON: ("-c", "pass")} | {name: ("-m", "slipway.pipelines", *words) for name, words in COMMANDS.items()}
    seconds: dict[tuple[str, str], list[Seconds]] = {(row, tree): [] for row in rows for tree in trees}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for number in range(arguments.rounds + 1):
            for (row, tree), values in seconds.items():
                value = measured(rows[row], trees[tree], Path(folder))
                if number:  # the first round fills the caches of files and bytecode
                    values.append(value)
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    table = Table("command", title=f"light commands: median of {arguments.rounds} (load {load})")
    result: dict[str, dict[str, float]] = {}
    for tree in trees:
        for unit in ("wall s", "CPU s", "ratio"):
            table.add_column(f"{tree}: {unit}" if arguments.against else unit, justify="right")
    for row in rows:
        cells = []
        for tree in trees:
            wall, cpu = (median(values) for values in zip(*seconds[row, tree], strict=True))
            ratio = cpu / median(cpu for _, cpu in seconds[PYTHON, tree])
            cells += [f"{wall:.3f}", f"{cpu:.3f}", f"{ratio:.1f}"]
            result[row] = {"wall_seconds": round(wall, 3), "cpu_seconds": round(cpu, 3), "ratio": round(ratio, 1)}
        table.add_row(row, *cells)
    Console(width=110).print(table)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
