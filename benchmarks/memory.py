"""Peak memory of prepare_data and evaluate as a data set grows: `python -m benchmarks.memory --images FOLDER`.

FOLDER holds `split/class/*.png`, such as MNIST's 70,000 files. The pipeline runs on a tenth of them and on all of them,
with a few training steps. Memory is the peak of a step's largest process, from the step's record.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

CONFIGURATION = Path(__file__).parents[1] / "configs" / "mnist.yaml"
STEPS = ("prepare_data", "evaluate")


def tenth(images: Path, folder: Path) -> Path:
    """Hard-link every tenth file of `images` into the same subfolders of `folder` (copy if on another disk)."""
    for path in sorted(images.glob("*/*/*"))[::10]:
        target = folder / path.relative_to(images)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, target)
        except OSError:
            target.write_bytes(path.read_bytes())
    return folder


def run(images: Path, workspace: Path) -> dict[str, float]:
    """Run the pipeline on `images`; return the number of images and each step's peak memory in MiB."""
    options = [f"data.source=images:{images}", "data.name=mnist", "train.steps=20", "evaluate.gate.minimum=0"]
    settings = [argument for option in options for argument in ("--set", option)]
    command = [sys.executable, "-m", "slipway.pipelines", "run", "-c", str(CONFIGURATION), *settings]
    subprocess.run(command, cwd=workspace, check=True, stdout=subprocess.DEVNULL)
    record = json.loads((workspace / "runs" / "latest" / "run.json").read_text())
    steps = {step["name"]: step for step in record["steps"]}
    peaks = {name: steps[name]["peak_memory_bytes"] / 2**20 for name in STEPS}
    return {"examples": sum(steps["prepare_data"]["outputs"]["examples"].values()), **peaks}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--images", type=Path, required=True, help="a folder of split/class/*.png")
    images = parser.parse_args().images.absolute()
    with tempfile.TemporaryDirectory() as folder:
        workspace = Path(folder)
        few, many = run(tenth(images, workspace / "tenth"), workspace), run(images, workspace)
    table = Table("step", f"{few['examples']:,} examples", f"{many['examples']:,} examples", title="peak memory, MiB")
    for name in STEPS:
        table.add_row(name, f"{few[name]:.0f}", f"{many[name]:.0f}")
    Console().print(table)
    print(json.dumps({f"{name}_memory_ratio": round(many[name] / few[name], 3) for name in STEPS}))


if __name__ == "__main__":
    main()
