"""A run's logs, step by step or as they are written, without the start-up messages of libraries."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from slipway.core.errors import UserError, nearest
from slipway.pipelines.runs.record import RunFolder

POLL_SECONDS = 0.2
# What libraries print at every start, whatever comes of it: what it is, and how its lines begin.
NOISE = {
    "absl: its log goes to stderr until it is set up": r"WARNING: All log messages before absl::InitializeLog",
    "TensorFlow, XLA, CUDA, gRPC: information, in absl's format": r"I\d{4} \d\d:\d\d:\S+ +\d+ \S+\]",
    "the same in TensorFlow's format": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I \S+\]",
    "TensorFlow: CPU instructions, continued": r"To enable the following instructions: ",
    "TensorFlow: a CUDA library is linked twice": r".*\] (Unable to register cu\w+ factory|computation placer already)",
    "CUDA: no GPU in this machine": r".*\] failed call to cuInit: .*(ERROR \(303\)|CUDA_ERROR_NO_DEVICE)",
    "TensorRT: not installed": r".*TF-TRT Warning: Could not find TensorRT",
    "oneDNN: a CPU without AVX-512": r".*\] oneDNN supports DT_\w+ only on platforms with",
    "TensorFlow: a large allocation, which succeeds": r".*\] Allocation of \d+ exceeds \d+% of free system memory",
    "tf.data: the end of a data set": r".*\] Local rendezvous is aborting with status: OUT_OF_RANGE",
    "kfp: which step it runs": r"\[KFP Executor .* INFO\]: Lo(oking for component|ading KFP component)",
    "kfp: where a step's outputs are": r".* INFO Wrote executor output file to ",
}
_NOISE = re.compile(r"(\[\S+\] )?(" + "|".join(NOISE.values()) + ")")


def is_noise(line: str) -> bool:
    """Whether a line is one that a library prints at every start; a replica's name may stand before it."""
    return _NOISE.match(line) is not None


def read(folder: RunFolder, step: str | None, *, follow: bool, raw: bool = False) -> Iterator[str]:
    """The lines of one step's log, or of all steps' in their order; with `follow`, until the run has ended.

    Args:
        folder: The run's.
        step: The step, "pipeline" for what ran the steps, or None for all.
        follow: Whether to wait for more while the run is running.
        raw: Whether to keep the start-up messages of libraries.

    Raises:
        UserError: The run has no step of that name, or it has not started.
    """
    names = check_step(folder, step, "pipeline")
    wanted = [step] if step else names
    positions = dict.fromkeys(wanted, 0)
    untitled = [] if step else list(names)
    while True:
        running = folder.read().status == "running"
        for name in wanted:
            lines = _new_lines(folder.logs / f"{name}.log", positions, name, ended=not running)
            lines = [line for line in lines if raw or not is_noise(line)]
            if lines and name in untitled:
                untitled.remove(name)
                yield f"==> {name}"
            yield from lines
        if not (follow and running):
            return
        time.sleep(POLL_SECONDS)


def check_step(folder: RunFolder, step: str | None, *also: str) -> list[str]:
    """The names of a run's steps.

    Args:
        folder: The run's.
        step: A step that is asked for.
        also: What may be asked for beside the steps.

    Raises:
        UserError: The run has no step of that name.
    """
    names = [record.name for record in folder.read().steps]
    if step is not None and step not in (*names, *also):
        near = nearest(step, names)
        raise UserError(
            f"The run {folder.run_id} has no step {step}.",
            setting="--step",
            value=step,
            allowed=", ".join(names),
            nearest=near,
            fix=f"slipway logs {folder.run_id}" + (f" --step {near}" if near else ""),
        )
    return names


def _new_lines(path: Path, positions: dict[str, int], name: str, *, ended: bool) -> list[str]:
    """The whole lines that have come since the last look (all that is left, once the run has ended)."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(positions[name])
        data = file.read()
    data = data if ended else data[: data.rfind(b"\n") + 1]
    positions[name] += len(data)
    return data.decode(errors="replace").splitlines()
