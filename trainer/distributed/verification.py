"""Verify that this machine has the accelerators that a run was planned for: otherwise it would train on the CPU.

`verify_machine` asks the machine and its driver before a framework is imported, and `verify_library` the framework
before it trains: one that sees no accelerator uses the CPU without an error. Of a custom program it is only known what
is installed: `verify_program` asks that. `python -m slipway.trainer.distributed.verification PROGRAM ARGUMENT…`
replaces itself with a program once both are verified.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path

from slipway.core.errors import UserError, report
from slipway.core.exit_codes import FAILED
from slipway.trainer.distributed import libraries
from slipway.trainer.distributed.accelerators import (
    GPU_FILES,
    TPU_FILES,
    TPU_VARIABLES,
    VIRTUAL_DEVICES_VARIABLE,
    VISIBLE_GPUS_VARIABLE,
    Accelerators,
    count_files,
    pci_chips,
    planned,
    virtual_devices,
    visible_gpus,
)
from slipway.trainer.distributed.libraries import LIBRARIES, UNSEEN, suffices

_AMD_FILE = "kfd"  # of AMD's GPUs, which NVIDIA's driver does not know
# Where Vertex AI and GKE mount NVIDIA's driver in containers.
DRIVER_FOLDER = "usr/local/nvidia"
_DRIVER_LIBRARY = "libcuda.so.1"
# In a process of its own, because the driver must not be started before a fork.
_COUNT_GPUS = f"""
import ctypes
driver, count = ctypes.CDLL("{_DRIVER_LIBRARY}"), ctypes.c_int()
print(driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)), count.value)
"""
_DRIVER_SECONDS = 60.0  # eight GPUs without the persistence mode need about 20
_SMI_SECONDS = 3.0
_IMPORT_SECONDS = 300.0  # from a slow disk, with eight GPUs
# Set to 0 for a program that trains with another library than those of LIBRARIES.
LIBRARIES_VARIABLE = "SLIPWAY_VERIFY_LIBRARIES"
_JAX_VARIABLE = "JAX_PLATFORMS"


def verify_machine(
    environment: Mapping[str, str],
    root: Path = Path("/"),
    count_gpus: Callable[[Mapping[str, str]], tuple[int, str]] | None = None,
) -> None:
    """Check, without a framework, that this machine has the accelerators that were planned, if any were.

    Args:
        environment: The environment variables.
        root: The file system's root, below which are dev, sys and usr/local/nvidia.
        count_gpus: Returns how many GPUs NVIDIA's driver sees, and that in words.

    Raises:
        UserError: It does not have them; says what it has.
    """
    plan = planned(environment)
    if plan is None:
        return
    if virtual_devices(environment):
        fix = f"unset {VIRTUAL_DEVICES_VARIABLE}; slipway rehearse sets it for a rehearsal"
        raise _refusal(plan, f"{VIRTUAL_DEVICES_VARIABLE} is set", fix, environment, root)
    if plan.kind == "tpu":
        if not (count_files(root / "dev", TPU_FILES) or pci_chips(root / "sys")):
            fix = (
                "run on a TPU VM, in a container with --privileged --net=host, or in a pod that requests google.com/tpu"
            )
            raise _refusal(plan, "there is no TPU chip", fix, environment, root)
    elif not _is_amd(root):  # otherwise only the framework knows
        seen, seen_text = (count_gpus or _driver_count)(environment)
        if not suffices(plan.kind, plan.count, seen):
            raise _refusal(plan, seen_text, _gpu_fix(plan, seen, environment, root), environment, root)


def _is_amd(root: Path) -> bool:
    """Whether the machine has AMD's GPUs, and none of NVIDIA's, which may be beside a processor's own of AMD."""
    return (root / "dev" / _AMD_FILE).exists() and not count_files(root / "dev", GPU_FILES)


def verify_library(name: str, environment: Mapping[str, str] = os.environ) -> None:
    """Check that an imported library of LIBRARIES sees the accelerators that were planned, before it uses them.

    Raises:
        UserError: It sees another number of them.
    """
    plan = planned(environment)
    if plan is not None and not suffices(plan.kind, plan.count, seen := _seen(name, plan)):
        raise _unseen([name], plan, f"{LIBRARIES[name].title} sees {seen}", environment)


def verify_loaded(names: Sequence[str] = tuple(LIBRARIES), environment: Mapping[str, str] = os.environ) -> None:
    """Check that one of the libraries that a custom program has imported sees some of the planned accelerators.

    The program may use several libraries, or divide the accelerators among its processes.

    Raises:
        UserError: None of those that are imported sees any.
    """
    plan = planned(environment)
    loaded = [name for name in names if name in sys.modules]
    if plan is not None and loaded and not any(_seen(name, plan) for name in loaded):
        titles = " and ".join(LIBRARIES[name].title for name in loaded)
        raise _unseen(loaded, plan, f"{titles} {'see' if len(loaded) > 1 else 'sees'} 0", environment)


def verify_program(environment: MutableMapping[str, str], python: str = sys.executable) -> None:
    """Check, before a custom program starts, that the machine and an installed library of LIBRARIES have what it needs.

    The libraries are imported in a process of their own. If none is installed, the program has another one.

    Args:
        environment: The program's environment variables; JAX is told there to fail rather than to use the CPU.
        python: The Python interpreter whose libraries the program uses.

    Raises:
        UserError: The machine does not have the accelerators that were planned, or none of the libraries sees them.
    """
    verify_machine(environment)
    plan = planned(environment)
    if plan is None or environment.get(LIBRARIES_VARIABLE) == "0":
        return
    command = [python, "-c", Path(libraries.__file__).read_text(), plan.kind, str(plan.count)]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=False, env=dict(environment)
        )
    except subprocess.TimeoutExpired:
        reason = f"the libraries did not count its devices within {_IMPORT_SECONDS:g} s"
    else:
        if answer.returncode == UNSEEN:
            reason = answer.stdout.strip().splitlines()[-1]
        else:
            reason = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        if not answer.returncode:
            if plan.kind == "tpu" or not _is_amd(Path("/")):
                environment.setdefault(_JAX_VARIABLE, f"{'tpu' if plan.kind == 'tpu' else 'cuda'},cpu")
            return
    names = [name for name, library in LIBRARIES.items() if library.title in reason] or list(LIBRARIES)
    error = _unseen(names, plan, reason, environment)
    error.fix = f"{error.fix}; for a program with another library: export {LIBRARIES_VARIABLE}=0"
    raise error


def _seen(name: str, plan: Accelerators) -> int:
    return LIBRARIES[name].count(sys.modules[name], plan.kind)


def _unseen(names: Sequence[str], plan: Accelerators, reason: str, environment: Mapping[str, str]) -> UserError:
    """Return the error for libraries that see too few accelerators of a machine that `verify_machine` accepted."""
    installs = (f"pip install -U {LIBRARIES[name].packages[plan.kind]}" for name in names)
    build = f"a build with support for {plan.kind.upper()}s"
    if plan.kind == "gpu":
        build += ", whose CUDA version the driver supports: nvidia-smi shows the newest"
    fix = f"{' or '.join(installs)}, or in an image of your own: {build}"
    return _refusal(plan, reason, fix, environment, Path("/"))


def _refusal(plan: Accelerators, reason: str, fix: str, environment: Mapping[str, str], root: Path) -> UserError:
    noun = "GPU" if plan.kind == "gpu" else "TPU device"
    number = f"{plan.count} {noun}{'s' * (plan.count > 1)}" if plan.count else f"{noun}s"
    findings = "; ".join((_gpu_findings if plan.kind == "gpu" else _tpu_findings)(environment, root))
    return UserError(
        f"This machine should have {number}, but {reason}. Found: {findings}.",
        setting=plan.source,
        value=environment[plan.source],
        fix=fix,
    )


def _gpu_findings(environment: Mapping[str, str], root: Path) -> list[str]:
    files = sorted(path.name for path in (root / "dev").glob("nvidia*") if GPU_FILES[0].fullmatch(path.name))
    findings = [f"device files {', '.join(files)}" if files else "no device file /dev/nvidia0"]
    if (root / DRIVER_FOLDER / "lib64" / _DRIVER_LIBRARY).exists():
        findings.append(f"/{DRIVER_FOLDER}/lib64/{_DRIVER_LIBRARY}")
    findings += [
        f"{name}={environment[name]}" for name in ("LD_LIBRARY_PATH", VISIBLE_GPUS_VARIABLE) if name in environment
    ]
    path = f"{environment.get('PATH', '')}:{root / DRIVER_FOLDER / 'bin'}"
    program = shutil.which("nvidia-smi", path=path)
    return [*findings, f"nvidia-smi: {_said([program, '-L'], environment) if program else 'not installed'}"]


def _said(command: Sequence[str], environment: Mapping[str, str]) -> str:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=False, env=dict(environment)
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return " ".join((answer.stdout + answer.stderr).split())[:200] or f"status {answer.returncode}"


def _tpu_findings(environment: Mapping[str, str], root: Path) -> list[str]:
    return [
        f"{count_files(root / 'dev', TPU_FILES)} device files /dev/accelN and /dev/vfio/N",
        f"{pci_chips(root / 'sys')} TPU chips on the PCI bus",
        *(f"{name}={environment[name]}" for name in TPU_VARIABLES if name in environment),
    ]


def _gpu_fix(plan: Accelerators, seen: int, environment: Mapping[str, str], root: Path) -> str:
    visible = environment.get(VISIBLE_GPUS_VARIABLE)
    if visible is not None and visible_gpus(visible) < plan.count:
        return f"unset {VISIBLE_GPUS_VARIABLE}"
    if seen > plan.count:
        return f"export {VISIBLE_GPUS_VARIABLE}={','.join(str(number) for number in range(plan.count))}"
    if not seen and (root / DRIVER_FOLDER / "lib64" / _DRIVER_LIBRARY).exists():
        libraries = f"LD_LIBRARY_PATH=/{DRIVER_FOLDER}/lib64${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
        return f"add to the image's Dockerfile: ENV {libraries} PATH=$PATH:/{DRIVER_FOLDER}/bin"
    return (
        "choose hardware that this machine has, such as --hardware cpu, or install NVIDIA's driver until nvidia-smi "
        "lists the GPUs; containers get them from docker run --gpus all, or a pod's limit nvidia.com/gpu"
    )


def _driver_count(environment: Mapping[str, str]) -> tuple[int, str]:
    """Return how many GPUs NVIDIA's driver lets programs use, and that in words."""
    command = [sys.executable, "-I", "-S", "-c", _COUNT_GPUS]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=False, env=dict(environment)
        )
    except subprocess.TimeoutExpired:
        return 0, f"NVIDIA's driver did not respond within {_DRIVER_SECONDS:g} s"
    if (counted := re.fullmatch(r"(\d+) (\d+)", answer.stdout.strip())) is None:
        reason = (answer.stderr.strip().splitlines() or [f"status {answer.returncode}"])[-1]
        return 0, f"NVIDIA's driver library cannot be loaded ({reason.removeprefix('OSError: ')})"
    error, count = int(counted[1]), int(counted[2])
    if error:
        return 0, f"NVIDIA's driver does not start (CUDA error {error}{': no device' * (error == 100)})"
    return count, f"NVIDIA's driver shows {count} to programs"


def verified_command(program: Sequence[str]) -> list[str]:
    """Return the command that starts `program` once this machine is verified."""
    return ["python", "-m", "slipway.trainer.distributed.verification", *program]


def verified_in_shell(program: Sequence[str], root: str = "") -> list[str]:
    """Return the command that does the same in an image without Slipway, which needs a shell and no Python.

    It looks for the device files and the driver's library, and asks the libraries of the image's Python, if it has one.

    Args:
        program: The program and its arguments.
        root: The folder that stands for the file system's root in tests.
    """
    script = Path(__file__).with_name("verify.sh").read_text()
    return ["sh", "-c", script, "slipway", Path(libraries.__file__).read_text(), root, *program]


def main(program: list[str]) -> None:
    """Replace this process with the program, unless the machine is refused."""
    if program[0] in ("python", "python3"):
        program[0] = sys.executable
    python = program[0] if Path(program[0]).name.startswith("python") else sys.executable
    is_slipways = program[1:2] == ["-m"] and program[2].startswith("slipway.")  # which starts a program elsewhere
    try:
        if is_slipways:
            verify_machine(os.environ)
        else:
            verify_program(os.environ, python)
    except UserError as error:
        report(error)
        sys.exit(FAILED)
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
