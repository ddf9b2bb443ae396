"""A machine whose NVIDIA driver shows some GPUs that no framework can use, for programs in processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

# Runs a module as `python -m` does, as if the driver had answered.
WITH_DRIVER = """
import runpy, sys
from slipway.trainer.distributed import verification
count = int(sys.argv.pop(1))
verification._driver_count = lambda environment: (count, "the driver shows another number")
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
REFUSAL_SECONDS = 10.0


def run_with_gpus(count: int, module: str, *arguments: str, folder: Path, **environment: str) -> tuple[int, str, float]:
    """Run `python -m module` where the driver shows `count` GPUs.

    Returns:
        Its exit code, its output, and its seconds of a processor, which do not depend on what else is running.
    """
    command = [sys.executable, "-c", WITH_DRIVER, str(count), module, *arguments]
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    before = _used()
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr, _used() - before


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
