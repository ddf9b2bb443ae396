"""Checks of this machine."""

from __future__ import annotations

import platform
import shutil
import sys
import tempfile
from pathlib import Path

from slipway.core.cores import available_cores
from slipway.core.errors import UserError, system_error
from slipway.core.paths import require_utf8
from slipway.pipelines.hardware import this_machine
from slipway.pipelines.platforms.base import CheckWarning, Context, NotApplicableError
from slipway.pipelines.runs.provenance import version_of
from slipway.trainer.distributed.accelerators import find
from slipway.trainer.engines import installed

OLDEST_PYTHON = (3, 11)
LEAST_FREE_BYTES = 2 * 1024**3

# Packages known to conflict, and why.
CLASHES = (
    ("tensorflow", "tensorflow-tpu", "both install the package tensorflow; the later one wins"),
    ("tf-keras", "tensorflow-tpu", "tf-keras pulls plain tensorflow over the one for TPUs"),
)


def python_version(_: Context) -> str:
    """Python is new enough."""
    if sys.version_info < OLDEST_PYTHON:
        raise UserError(
            f"Python {platform.python_version()} is too old.",
            allowed="Python 3.11, 3.12 or 3.13",
            fix="make install PYTHON=python3.11",
        )
    return f"Python {platform.python_version()}"


def folder(context: Context) -> str:
    """Runs, data sets and models can be written to the working folder."""
    try:
        with tempfile.TemporaryFile(dir=context.folder):
            return f"{context.folder} is writable"
    except OSError as error:
        error.filename = context.folder
        raise system_error(error) or error from None


def folder_name(context: Context) -> str:
    """The working folder's path can be stored in records."""
    require_utf8(context.folder)
    return "UTF-8"


def disk(context: Context) -> str:
    """There is disk space for data sets, checkpoints and models."""
    data = context.config.prepared
    folder = Path(data.store) if data and Path(data.store).is_dir() else context.folder
    free = shutil.disk_usage(folder).free
    text = f"{free / 1024**3:.1f} GiB free in {folder}"
    if free < LEAST_FREE_BYTES:
        raise UserError(
            f"Disk space is low: {text}.",
            allowed=f"at least {LEAST_FREE_BYTES / 1024**3:.0f} GiB",
            fix="free some space, or move the data sets: --set data.store=FOLDER",
        )
    return text


def cores(context: Context) -> str:
    """There are at most four local replicas per CPU core."""
    if not context.platform.trains_here:
        raise NotApplicableError("the run is not on this machine")
    cores = available_cores()
    replicas = context.config.training_hardware.hosts
    if replicas > 4 * cores:
        raise UserError(
            f"{replicas} replicas would share {cores} cores.",
            setting="hardware",
            value=str(context.config.training_hardware),
            allowed=f"up to {4 * cores} replicas on this machine",
            nearest=f"cpu*{4 * cores}",
        )
    return f"{cores} cores for {replicas} replica{'s' if replicas > 1 else ''}"


def accelerators(context: Context) -> str:
    """The accelerators of this machine respond, and a run on this machine uses its GPUs."""
    if (here := find({})).kind == "tpu":
        return here.describe()
    try:
        gpus = this_machine.describe()
    except UserError as error:  # the check `hardware` refuses a run that needs them
        raise CheckWarning(error.message, error.fix or "") from error
    if not gpus:
        raise NotApplicableError("no accelerator found; local runs train on the CPU")
    trains_here = context.platform.trains_here and context.runner == "process" and not context.rehearsal
    if trains_here and not context.config.training_hardware.accelerators_per_replica:
        raise CheckWarning(
            f"{context.config.training_hardware} leaves this machine's GPUs unused: {gpus}", "--hardware gpu"
        )
    return gpus


def packages(context: Context) -> str:
    """The packages that the run needs on this machine are installed and do not conflict."""
    for first, second, reason in CLASHES:
        if version_of(first) and version_of(second):
            raise UserError(
                f"{first} and {second} are both installed: {reason}.",
                fix=f"pip uninstall {first} {second}, then make install",
            )
    installed.verify_extra(installed.NO_EXTRA)
    if context.platform.extra is not None:
        installed.verify_extra(context.platform.extra)
    names = ("kfp", "tensorflow", "keras")
    return ", ".join(f"{name} {version}" for name in names if (version := version_of(name)))
