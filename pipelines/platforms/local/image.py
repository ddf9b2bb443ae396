"""The step build_image of a run with `--runner docker`: a process of its own, as every step is."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from slipway.components.step import step
from slipway.core import events
from slipway.pipelines.config.config import load
from slipway.pipelines.images.build import local_image
from slipway.pipelines.platforms.local.containers import has_gpus
from slipway.pipelines.runs.record import RunFolder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m slipway.pipelines.platforms.local.image")
    parser.add_argument("folder", type=Path)
    folder = RunFolder(parser.parse_args().folder)
    with step("build_image") as outcome:
        config = load(folder.configuration_file)
        image, outcome.reused = local_image(config, "gpu" if has_gpus() else "cpu", sys.stdout, events.message)
        outcome.outputs = {"image": image}
        folder.image_file.write_text(image)


if __name__ == "__main__":
    main()
