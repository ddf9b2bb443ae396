"""The process that executes a run's pipeline with kfp.local; `launch` starts one per run.

A separate process keeps the slow import of kfp out of the command line. The steps run in its session and process
group, so that all of them can be stopped together.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from slipway import extensions
from slipway.core import forking, integrity
from slipway.core.exit_codes import STOPPED
from slipway.core.values import JsonObject
from slipway.pipelines.platforms.capabilities import WithTrainerImage
from slipway.pipelines.platforms.local.warm import Warm
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.runs.record import RunFolder


def execute(folder: RunFolder, output: Path, champion: str, *, rehearsal: bool, containers: bool) -> bool:
    """Compile and execute the run's pipeline; return whether every step succeeded.

    When a run is resumed, the finished steps are not repeated.
    """
    # Imported here, after the warm process has been started.
    from kfp import compiler, local

    from slipway.pipelines.config.config import load
    from slipway.pipelines.platforms.local.containers import run_arguments, run_container
    from slipway.pipelines.platforms.local.earlier import fill_cache, tasks_before
    from slipway.pipelines.platforms.local.steps import pipeline

    config = load(folder.configuration_file)
    runner: local.SubprocessRunner | local.DockerRunner = local.SubprocessRunner(use_venv=False)
    if containers:
        if not _build_image(folder):
            return False
        from kfp.local import docker_task_handler  # imports docker

        # Kfp's function reports success for a container that it could not find any more, also if that had failed, and
        # has no setting for it. Seen with kfp 2.17.0: https://github.com/kubeflow/pipelines/issues/13332
        docker_task_handler.run_docker_container = run_container
        runner = local.DockerRunner(**run_arguments(folder, config))
    record = folder.read()
    platform, part = platform_of(record.platform), record.part
    earlier = tasks_before(part.first, record.platform) if part else []
    if isinstance(platform, WithTrainerImage):
        training = pipeline(config, platform=platform.steps(folder.image_file.read_text()))
    else:
        image = folder.image_file.read_text() if containers else ""
        training = pipeline(
            config,
            rehearsal=rehearsal,
            image=image,
            earlier=earlier,
            last=part.last if part else None,
            arguments=record.arguments,
        )
    compiler.Compiler().compile(training, str(folder.specification_file))
    finished = folder.artifacts / ".finished"
    if earlier:
        fill_cache(finished, folder, earlier, training.pipeline_spec)
    forget_damaged(finished)
    local.init(runner=runner, pipeline_root=str(folder.artifacts), enable_caching=True, cache_root=str(finished))
    try:
        training(run_id=folder.run_id, output=str(output), champion=champion)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return False
    return True


def forget_damaged(cache: Path) -> None:
    """Delete the results of finished steps of which a power cut left a part, so that those steps are repeated.

    kfp's cache itself notices artifacts that are missing, not those that are damaged. It also keeps a result without
    any output, of a process that was stopped before it wrote one.
    """
    for entry in cache.glob("*.json"):
        try:
            outputs = json.loads(entry.read_bytes()).values()
            artifacts = [output for output in outputs if isinstance(output, dict) and "uri" in output]
            is_whole = len(outputs) > 0 and not any(map(_is_damaged, artifacts))
        except (ValueError, AttributeError):
            is_whole = False
        if not is_whole:
            entry.unlink()


def _is_damaged(artifact: JsonObject) -> bool:
    """Return whether an artifact is an empty file, or a model that is damaged or has lost its checksums."""
    path = Path(artifact["uri"])
    if not path.is_dir():
        return path.is_file() and not path.stat().st_size
    known = artifact["metadata"].get(integrity.FILES_CHECKSUM)
    return integrity.damage(path) is not None or (known is not None and known != integrity.checksum(path))


@contextlib.contextmanager
def _warm(steps: Sequence[str], engine: str, lock: int, stopping: threading.Event) -> Iterator[None]:
    """Run these steps of the pipeline in forks of a process that imports their libraries while other steps run.

    If this process is a fork that has imported them, so are the others; see `Warm`. Their process must outlive a stop
    signal for as long as the step that handles it: this process then waits for that step, and starts no other.
    """
    if not steps and not forking.is_announced(Warm.__module__):
        yield
        return
    warm = Warm(steps, engine, lock)
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    try:
        from kfp.local import subprocess_task_handler

        start = subprocess_task_handler.run_local_subprocess

        def run(full_command: list[str], env_vars: dict[str, str] | None = None) -> int:
            if stopping.is_set():
                return STOPPED
            status = None if env_vars else warm.run(full_command)
            return start(full_command, env_vars) if status is None else status

        # Kfp starts tasks only by its two classes of runners, and by this function with that of processes. Seen with
        # kfp 2.17.0; no upstream issue is known.
        subprocess_task_handler.run_local_subprocess = run
        yield
    finally:
        warm.close()


def _build_image(folder: RunFolder) -> bool:
    """Build the steps' image in another process, as every step runs; return whether that succeeded."""
    [builder] = extensions.references("image_builder")
    return subprocess.run([sys.executable, "-m", builder, str(folder.path)], check=False).returncode == 0


@contextlib.contextmanager
def _ends_with_parent(
    folder: RunFolder, stopping: threading.Event, *, containers: bool
) -> Iterator[Callable[[], None]]:
    """Yield what starts to watch the process that started this one: its end stops the session.

    It closes the pipe on stdin. This process, which has inherited the run's lock, ends last.
    """
    ending = threading.Event()

    def watch() -> None:
        while os.read(0, 1):
            pass
        ending.set()
        stopping.set()
        if containers:
            from slipway.pipelines.platforms.local.containers import stop_containers

            stop_containers(folder.run_id)
        from slipway.pipelines.platforms.local import session  # imports psutil

        session.stop_members(os.getpid(), platform_of(folder.read().platform).stop_seconds)
        os._exit(1)

    thread = threading.Thread(target=watch, daemon=True)
    try:
        yield thread.start
    finally:
        if ending.is_set():
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m slipway.pipelines.platforms.local.executor")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--champion", default="")
    parser.add_argument("--rehearsal", action="store_true")
    parser.add_argument("--containers", action="store_true")
    parser.add_argument("--lock", type=int, required=True, help="the descriptor of the run's lock, which was inherited")
    parser.add_argument("--warm", metavar="STEP", nargs="*", default=(), help="steps to run in forks")
    parser.add_argument("--engine", default="tensorflow", help="the engine of the step train")
    arguments = parser.parse_args()
    folder = RunFolder(arguments.folder)
    stopping = threading.Event()
    with (
        _ends_with_parent(folder, stopping, containers=arguments.containers) as watch_parent,  # until `warm` has ended
        _warm(arguments.warm, arguments.engine, arguments.lock, stopping),
    ):
        watch_parent()  # its thread would hinder the forks
        done = execute(
            folder, arguments.output, arguments.champion, rehearsal=arguments.rehearsal, containers=arguments.containers
        )
    sys.exit(0 if done else 1)


if __name__ == "__main__":
    main()
