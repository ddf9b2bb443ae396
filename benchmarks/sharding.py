"""Speed and memory of replicated and sharded variables on `cpu*2`: `python -m benchmarks.sharding`.

A decoder of 25 million parameters trains on the digits, whose rows are its 8 tokens, with Adam, on the engines jax and
pytorch where they are installed. Memory is the largest process's, until the model is exported.
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
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from slipway.trainer.engines.installed import is_installed
from slipway.trainer.engines.table import ENGINES

ROOT = Path(__file__).parents[1]
CONFIGURATION = ROOT / "configs" / "digits.yaml"
BATCH, HEADS = 16, 8


def build(image_shape: Sequence[int], classes: int, width: int = 512, blocks: int = 8) -> Any:
    """Return a decoder whose tokens are an image's rows."""
    import keras
    from keras import layers

    inputs = keras.Input(tuple(image_shape))
    values = layers.Dense(width)(layers.Reshape((image_shape[0], -1))(inputs))
    for _ in range(blocks):
        normal = layers.LayerNormalization()(values)
        attention = layers.MultiHeadAttention(HEADS, width // HEADS)
        values = layers.add([values, attention(normal, normal, use_causal_mask=True)])
        hidden = layers.Dense(4 * width, activation="gelu")(layers.LayerNormalization()(values))
        values = layers.add([values, layers.Dense(width)(hidden)])
    return keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling1D()(values)))


def resident(process: psutil.Process) -> int:
    """Return the resident memory of a process, 0 once it has ended."""
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def run(engine: str, sharding: str, hardware: str, steps: int) -> dict[str, Any]:
    """Train in an empty project; return the steps per second, the peak memory in MiB and the losses."""
    settings = {
        "hardware": hardware, "model.builder": "benchmarks.sharding:build", "train.engine": engine,
        "train.sharding": sharding, "train.batch_size": BATCH, "train.epochs": "null", "train.steps": steps,
        "train.learning_rate": 0.0001, "train.augment": "{}", "evaluate.gate.minimum": 0,
    }  # fmt: skip
    options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "slipway.pipelines", "run", "-c", str(CONFIGURATION), *options]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with (Path(folder) / "output").open("w+") as output:
            process = psutil.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
            peak = 0
            while process.poll() is None:
                if not list(Path(folder).rglob("model/metrics.jsonl")):  # until the model is exported
                    peak = max([peak, *map(resident, process.children(recursive=True))])
                time.sleep(0.2)
            output.seek(0)
            if process.returncode:
                sys.exit(output.read()[-4000:])
        metrics = next(Path(folder).rglob("model/metrics.jsonl")).read_text().splitlines()
    lines = [line for line in map(json.loads, metrics) if line["kind"] == "train"]
    speeds = [line["steps_per_second"] for line in lines if "steps_per_second" in line]
    return {
        "speed": speeds[-1], "memory": peak / 2**20, "losses": [line["loss"] for line in lines]
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharding")
    parser.add_argument("--hardware", default="cpu*2")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    table = Table("engine", "sharding", "steps/s", "peak MiB of a process", "losses at log points")
    for engine in [name for name, row in ENGINES.items() if row.shards and all(map(is_installed, row.modules))]:
        for sharding in ("replicated", "fsdp"):
            found = run(engine, sharding, options.hardware, options.steps)
            losses = ", ".join(f"{loss:.6f}" for loss in found["losses"])
            table.add_row(engine, sharding, f"{found['speed']:.2f}", f"{found['memory']:.0f}", losses)
    Console().print(table)
    print("load", ", ".join(f"{load:.1f}" for load in os.getloadavg()))


if __name__ == "__main__":
    main()
