"""How much of a run is not inside a step's own work: `python -m benchmarks.pipeline_overhead`.

Runs the digits pipeline twice in a folder of its own: the first run prepares the data, the second reuses it. A step's
own work is what its record counts; all else (the command line, kfp, processes that start) is overhead.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

CONFIGURATION = Path(__file__).parents[1] / "configs" / "digits.yaml"


def run(folder: Path) -> dict[str, float]:
    """Run the pipeline in `folder`; gives the whole command's seconds, each step's, and what is left over."""
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "pipelines", "run", "-c", str(CONFIGURATION)],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    whole = time.monotonic() - started
    record = json.loads((folder / "runs" / "latest" / "run.json").read_text())
    steps = {step["name"]: step["seconds"] or 0.0 for step in record["steps"]}
    return {**steps, "outside steps": whole - sum(steps.values()), "whole": whole}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        first, second = run(Path(folder)), run(Path(folder))
    table = Table("seconds", "first run", "second run", title="digits, the whole pipeline")
    for name in first:
        table.add_row(name, f"{first[name]:.1f}", f"{second[name]:.1f}")
    Console().print(table)
    print(
        json.dumps(
            {
                "second_run_seconds": round(second["whole"], 2),
                "second_run_outside_steps_seconds": round(second["outside steps"], 2),
                "second_run_outside_steps_share": round(second["outside steps"] / second["whole"], 3),
            }
        )
    )


if __name__ == "__main__":
    main()
