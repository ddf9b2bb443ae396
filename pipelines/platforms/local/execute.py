"""The process that executes a run's pipeline with kfp.local; started by `launch`, one a run.

kfp is imported here, in a process of its own, so that the command line answers at once; its steps share this process's
group and session, by which everything is ended together.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from kfp import compiler, local

from pipelines.config import load
from pipelines.platforms.local.steps import pipeline
from pipelines.runs import RunFolder


def execute(folder: RunFolder, output: Path, champion: str, *, rehearsal: bool) -> bool:
    """Compile the run's pipeline and run it; steps that a former try of the same run finished are not repeated.

    Returns:
        Whether every step succeeded.
    """
    config = load(folder.configuration_file)
    training = pipeline(config, rehearsal=rehearsal)
    compiler.Compiler().compile(training, str(folder.specification_file))
    local.init(
        runner=local.SubprocessRunner(use_venv=False),
        pipeline_root=str(folder.artifacts),
        enable_caching=True,
        cache_root=str(folder.artifacts / ".finished"),
    )
    try:
        training(run_id=folder.run_id, output=str(output), champion=champion)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return False
    return True


def _end_with_parent() -> None:
    """End this session when whoever started it is gone: the pipe on standard input then closes."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipelines.platforms.local.execute")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--champion", default="")
    parser.add_argument("--rehearsal", action="store_true")
    arguments = parser.parse_args()
    _end_with_parent()
    done = execute(RunFolder(arguments.folder), arguments.output, arguments.champion, rehearsal=arguments.rehearsal)
    sys.exit(0 if done else 1)


if __name__ == "__main__":
    main()
