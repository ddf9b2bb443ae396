"""What a training step takes of a GPU or a TPU, for all kinds of them from one compilation, which is kept.

XLA gives a step nearly the same memory and traffic on all GPUs, and on all TPUs: of ResNet-50 and of a decoder, the
memory on v5e, v5p and v6e differs by at most 7 % and the traffic by 3 %, that on a T4 and an A100 by 0.4 %. So a kind
with much memory stands for the others, and `estimate` scales by the devices' rates.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from slipway.core import integrity
from slipway.core import manifest as manifests
from slipway.core.atomic import replace_file
from slipway.core.parent_death import dying_with_parent
from slipway.core.paths import cached, local_path
from slipway.pipelines.hardware import compiled
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.compiled import Platform, program
from slipway.pipelines.hardware.estimate import product
from slipway.pipelines.hardware.memory import GIB
from slipway.trainer.config import JobConfig, TrainSettings
from slipway.trainer.engines import ahead
from slipway.trainer.engines.ahead import Profile
from slipway.trainer.engines.installed import is_installed, package
from slipway.trainer.engines.jax import ahead as jax_ahead
from slipway.trainer.engines.jax.ahead import Topology
from slipway.trainer.engines.measured import Rates
from slipway.trainer.engines.pytorch import ahead as pytorch_ahead

TITLES: dict[Platform, str] = {"cuda": "GPUs", "tpu": "TPUs"}
Known = TypeVar("Known", Profile, Rates)
# The kinds that stand for all GPUs and all TPUs, and the latter's topologies: one chip, then as many as hold 8 times
# the variables.
GPU, TPU = "h200", "tpu-v5p"
TOPOLOGIES = (Topology(name="v5p:1x1x1", options={"chips_per_host_bounds": (1, 1, 1)}), Topology(name="v5p:2x2x2"))
# Examples of the compiled step, at most; memory and traffic grow evenly with them.
LARGEST_BATCH = 128
# Settings of a training that make no difference to its step.
WITHOUT_EFFECT = {
    "epochs", "steps", "examples", "learning_rate", "schedule", "seed", "monitor", "on_epoch_end", "early_stop",
    "export", "threshold", "profile_steps", "checkpoint", "restarts", "metrics",
}  # fmt: skip
# Changes with what a kept profile contains.
FORMAT = 1
LIBRARIES = ("jax", "libtpu", "jax-cuda12-plugin", "torch", "keras", "tensorflow")


def missing(platform: Platform, engine: str) -> str | None:
    """Return why an engine's steps cannot be compiled or traced here, as a phrase; None if they can."""
    if program(platform, engine) == "traced":
        return None if is_installed("torch") else f"without torch: pip install {package('pytorch')}"
    modules, extras = compiled.COMPILERS[platform]
    lacking = [name for name in modules if not is_installed(name)]
    return f"without {' and '.join(lacking)}: pip install {package(extras)}" if lacking else None


def profile(platform: Platform, job: JobConfig, say: Callable[[str], None]) -> Profile:
    """Return what a job's step takes of a device; what is known is kept for this user.

    Takes 10 to 40 seconds of CPU the first time. A step that cannot be compiled has `Profile.unknown`.
    """
    if why := missing(platform, job.train.engine):
        return Profile(devices=1, unknown=why)
    requests = _requests(platform, job)

    def made() -> Profile:
        verb = "tracing" if program(platform, job.train.engine) == "traced" else "compiling"
        say(f"{verb} the step for {TITLES[platform]}, up to a minute")
        profiles = (_made(request) for request in requests)
        known = next(profiles)
        return next((other for other in profiles if not other.unknown), known) if known.unknown else known

    return kept(requests[0], Profile, made)


def kept(request: BaseModel, kind: type[Known], make: Callable[[], Known]) -> Known:
    """Return what is kept of a request for this user, else what `make` makes, which is kept if it is known.

    A request has a `job`; `kind` has `files`, the digests of the project's modules on which it depends, and `unknown`.
    """
    if (known := look_up(request, kind)) is not None:
        return known
    made, file = make(), _file(request)
    if not made.unknown:
        with contextlib.suppress(OSError):  # a cache that cannot be written
            file.parent.mkdir(parents=True, exist_ok=True)
            replace_file(file, made.model_dump_json().encode(), durable=False)
    return made


def look_up(request: BaseModel, kind: type[Known]) -> Known | None:
    """Return what is kept of a request; None if nothing is, or a module that it depends on has changed."""
    with contextlib.suppress(OSError, ValueError):
        known = kind.model_validate_json(_file(request).read_bytes())
        if all(integrity.file_digest(Path(name)) == digest for name, digest in known.files.items()):
            return known
    return None


def known(platform: Platform, job: JobConfig) -> Profile | None:
    """Return what is kept of a job's step on a platform; None if nothing is."""
    return look_up(_requests(platform, job)[0], Profile)


def _file(request: BaseModel) -> Path:
    return cached(f"profiles/{_digest(request)}.json")


def of_step(job: JobConfig) -> JobConfig:
    """Return a job with the same step whose other settings, such as the seed, are those of all."""
    kept = {name: getattr(job.train, name) for name in type(job.train).model_fields if name not in WITHOUT_EFFECT}
    train = type(job.train).model_construct(**{**TrainSettings(steps=1000, batch_size=1).__dict__, **kept})
    return job.model_copy(update={"train": train})


def _requests(platform: Platform, job: JobConfig) -> list[ahead.Request]:
    """Return what to compile: on one device, else, of a network that shards its variables, on several TPU chips."""
    row, job = load().accelerator_index[GPU if platform == "cuda" else TPU], of_step(job)
    train = job.train.model_copy(update={"accumulation": 1})
    batch = min(job.train.batch_size, LARGEST_BATCH)
    memory = row.memory_gb * GIB

    def asked(devices: int) -> dict[str, object]:
        sized = job.model_copy(update={"train": train.model_copy(update={"batch_size": devices * batch})})
        return {"job": sized, "memory": memory, "product": product(row), "profile": True}

    if program(platform, job.train.engine) == "traced":
        major, minor = map(int, str(row.compute_capability).split("."))
        return [pytorch_ahead.Request(devices=1, capability=(major, minor), **asked(1))]
    if platform == "cuda":
        return [jax_ahead.Request(topology=compiled.gpu_topology(row, 1, 1), **asked(1))]
    sizes = TOPOLOGIES if job.train.sharding != "replicated" else TOPOLOGIES[:1]
    return [jax_ahead.Request(topology=topology, **asked(8**number)) for number, topology in enumerate(sizes)]


def _made(request: ahead.Request) -> Profile:
    module = jax_ahead if isinstance(request, jax_ahead.Request) else pytorch_ahead
    command = dying_with_parent([sys.executable, "-m", module.__name__, request.model_dump_json()])
    ended = compiled.executed(command, {**os.environ, **module.ENVIRONMENT})
    if isinstance(ended, str):
        return Profile(devices=1, unknown=ended)
    return Profile.model_validate_json(ended.stdout.splitlines()[-1])


def _digest(request: BaseModel) -> str:
    """Return the SHA-256 of what decides: the request, the data set's shapes, and the versions of the libraries."""
    versions = []
    for name in LIBRARIES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append((name, metadata.version(name)))
    asked = request.model_dump(mode="json")
    manifest = integrity.file_digest(local_path(asked["job"]["data"]) / manifests.FILE_NAME)
    asked["job"] = {"model": asked["job"]["model"], "train": asked["job"]["train"]}
    decides = [FORMAT, type(request).__module__, str(Path.cwd()), manifest, versions, asked]
    return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
