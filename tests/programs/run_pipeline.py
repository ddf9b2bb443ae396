"""Run a pipeline with kfp: `python -m tests.programs.run_pipeline PLATFORM CONFIGURATION ARTIFACTS ARGUMENTS`.

The arguments of the pipeline are JSON; on this machine (`local`), the training may be a rehearsal.
"""

import importlib
import json
import sys
from pathlib import Path

from kfp import local

from slipway.pipelines.config.config import load


def main() -> None:
    platform, configuration, artifacts, arguments = sys.argv[1:]
    local.init(runner=local.SubprocessRunner(use_venv=False), pipeline_root=artifacts)
    steps = importlib.import_module(f"slipway.pipelines.platforms.{platform}.steps")
    options = {"rehearsal": True} if platform == "local" else {}
    steps.pipeline(load(Path(configuration)), **options)(**json.loads(arguments))


if __name__ == "__main__":
    main()
