"""A machine whose NVIDIA driver shows some GPUs that no framework can use: a libcuda.so.1 that only counts."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from slipway.core.cores import available_cores

SOURCE = """
#include <stdlib.h>
#include <unistd.h>
static int number(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
int cuInit(unsigned flags) { sleep(number("FAKE_CUDA_SECONDS")); return number("FAKE_CUDA_ERROR"); }
int cuDeviceGetCount(int *count) { *count = number("FAKE_CUDA_GPUS"); return 0; }
"""
# A refusal waits for nothing, such as the other replicas for minutes; a busy machine loads libraries for long.
REFUSAL_SECONDS = 60.0


@functools.cache
def driver_folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of the driver's library, which is compiled, and deleted when this process ends."""
    if (compiler := shutil.which("gcc")) is None:
        pytest.skip("a stand-in for NVIDIA's driver needs gcc")
    folder = tempfile.TemporaryDirectory(prefix="driver-")
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", f"{folder.name}/libcuda.so.1"]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return folder


def with_driver(count: int, **environment: str) -> dict[str, str]:
    """Return the variables of a process whose driver shows `count` GPUs; without any, it fails to start."""
    error = "0" if count else "100"
    found = {"LD_LIBRARY_PATH": driver_folder().name, "FAKE_CUDA_GPUS": str(count), "FAKE_CUDA_ERROR": error}
    return {**os.environ, **found, **environment}


def run_with_gpus(count: int, module: str, *arguments: str, folder: Path, **environment: str) -> tuple[int, str, float]:
    """Run `python -m module` where the driver shows `count` GPUs.

    Returns:
        Its exit code, its output, and its seconds, of which a machine with more to do than it has cores needs more.
    """
    command, started = [sys.executable, "-m", module, *arguments], time.monotonic()
    variables = with_driver(count, **environment)
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=120, check=False)
    crowd = max(1.0, os.getloadavg()[0] / available_cores())
    return done.returncode, done.stdout + done.stderr, (time.monotonic() - started) / crowd
