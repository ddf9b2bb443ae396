"""Start a program with the environment of gIB, the network plugin of NCCL that Google's newest GPU machines need.

`python -m slipway.trainer.distributed.nccl FOLDER PROGRAM ARGUMENT…` replaces itself with the program. The variables
must be set before the process that loads NCCL starts, because the dynamic linker reads LD_LIBRARY_PATH only then.
"""

from __future__ import annotations

import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# "Ensure the following: /usr/local/gib/scripts/set_nccl_env.sh is sourced in your runtime environment […]; the
# /usr/local/gib/lib64 directory is in your LD_LIBRARY_PATH", for A4X Max, A4X, A4 and A3 Ultra:
# https://docs.cloud.google.com/ai-hypercomputer/docs/nccl/test-vms
MACHINES = ("a3-ultragpu-8g", "a4-highgpu-8g", "a4x-highgpu-4g")
FOLDER = Path("/usr/local/gib")
SCRIPT = "scripts/set_nccl_env.sh"
LIBRARIES = "lib64"
# The plugin loads it. With the script's NCCL_NET=gIB, NCCL fails without the plugin instead of using TCP.
VERBS = "libibverbs.so.1"
# Variables of the shell that sources the script.
_SHELLS_OWN = ("_", "SHLVL", "PWD", "OLDPWD")

logger = logging.getLogger("slipway.trainer")


def started_with(program: Sequence[str], machine_type: object, folder: Path = FOLDER) -> list[str]:
    """Return the command that starts `program` on a machine of this type."""
    if machine_type not in MACHINES:
        return list(program)
    return ["python", "-m", "slipway.trainer.distributed.nccl", str(folder), *program]


def environment_of(folder: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return `inherited` with the variables of gIB's script in `folder`; without it, log that and change nothing."""
    script = folder / SCRIPT
    if not script.is_file():
        return _without(inherited, f"{script} does not exist")
    if not _loads(folder):
        return _without(inherited, f"{VERBS} is missing: install libibverbs1 and ibverbs-providers in the base image")
    try:
        command = ["bash", "-c", 'source "$0" >&2 && exec env -0', str(script)]
        printed = subprocess.run(command, env=dict(inherited), stdout=subprocess.PIPE, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return _without(inherited, f"{script} failed: {error}")
    variables = dict(line.split("=", 1) for line in printed.split("\0") if line)
    variables = {name: value for name, value in variables.items() if name not in _SHELLS_OWN}
    paths = [str(folder / LIBRARIES), *filter(None, [variables.get("LD_LIBRARY_PATH")])]
    variables["LD_LIBRARY_PATH"] = ":".join(paths)
    changed = sorted(name for name, value in variables.items() if inherited.get(name) != value)
    logger.info("NCCL uses gIB: %s", ", ".join(f"{name}={variables[name]}" for name in changed))
    return variables


def _without(inherited: Mapping[str, str], reason: str) -> dict[str, str]:
    logger.warning("NCCL does not use gIB, so the machines of a job are connected by TCP, which is slower: %s", reason)
    return dict(inherited)


def _loads(folder: Path) -> bool:
    """Return whether the plugin will find the library that it depends on."""
    try:
        ctypes.CDLL(VERBS)
    except OSError:
        return (folder / LIBRARIES / VERBS).exists()
    return True


def main(arguments: Sequence[str]) -> None:
    """Replace this process with the program."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    folder, *program = arguments
    environment = environment_of(Path(folder), os.environ)
    if program[0] in ("python", "python3"):
        program[0] = sys.executable
    sys.stdout.flush()
    os.execvpe(program[0], program, environment)


if __name__ == "__main__":
    main(sys.argv[1:])
