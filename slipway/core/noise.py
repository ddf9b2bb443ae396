"""The start-up messages of libraries, which hide what a log says."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Messages that libraries print at every start: a description, and how the lines begin.
NOISE = {
    "absl: log to stderr before initialization": r"WARNING: All log messages before absl::InitializeLog",
    "TensorFlow, XLA, CUDA, gRPC: INFO in absl's format": r"I\d{4} \d\d:\d\d:\S+ +\d+ \S+\]",
    "INFO in TensorFlow's format": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I \S+\]",
    "TensorFlow: CPU instructions, continued": r"To enable the following instructions: ",
    "TensorFlow: a CUDA library is linked twice": r".*\] (Unable to register cu\w+ factory|computation placer already)",
    "CUDA: no GPU in this machine": r".*\] failed call to cuInit: .*(ERROR \(303\)|CUDA_ERROR_NO_DEVICE)",
    "TensorRT: not installed": r".*TF-TRT Warning: Could not find TensorRT",
    "oneDNN: a CPU without AVX-512": r".*\] oneDNN supports DT_\w+ only on platforms with",
    "TensorFlow: a large allocation, which succeeds": r".*\] Allocation of \d+ exceeds \d+% of free system memory",
    "tf.data: the end of a data set": r".*\] Local rendezvous is aborting with status: OUT_OF_RANGE",
    "kfp: which step it runs": r"\[KFP Executor .* INFO\]: Lo(oking for component|ading KFP component)",
    "kfp: the location of a step's outputs": r".* INFO Wrote executor output file to ",
}
_NOISE = re.compile(r"(\[\S+\] )?(" + "|".join(NOISE.values()) + ")")


@contextlib.contextmanager
def without_stderr() -> Iterator[None]:
    """Discard what native code writes to stderr, such as TensorFlow's log during its import."""
    sys.stderr.flush()
    with Path(os.devnull).open("w") as nothing:
        stderr = os.dup(2)
        os.dup2(nothing.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)


@contextlib.contextmanager
def without_native_stderr() -> Iterator[None]:
    """Discard what native code writes to stderr, such as libjpeg's warnings; what Python writes is kept."""
    if sys.stderr is not sys.__stderr__:  # Python's is another file already
        with without_stderr():
            yield
        return
    with (
        os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace") as kept,
        without_stderr(),
        contextlib.redirect_stderr(kept),
    ):
        yield


def is_noise(line: str) -> bool:
    """Return whether a line is a library's start-up message, with or without a replica's name in front."""
    return _NOISE.match(line) is not None
