"""The steps of a pipeline as processes on this machine, in place of containers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as vertex

from tests.fakes.mount import Mount
from tests.fakes.vertex.container_steps import ContainerSteps
from tests.fakes.vertex.jobs import JobService


class Processes:
    """Runs the commands of steps as processes, with a folder in place of the buckets."""

    def __init__(self, mount: Mount) -> None:
        self.mount = mount
        self.started: list[str] = []

    def steps(self, pipeline: vertex.PipelineJob, jobs: JobService) -> ContainerSteps:
        return ContainerSteps(self, pipeline, jobs)

    def start(
        self, image: str, command: list[str], *, environment: dict[str, str], keep_uris: bool = False, **_: Any
    ) -> Process:
        folder = f"{self.mount.folder}/"
        self.started.append(image)
        here = [part.replace("/gcs/", folder) for part in command]
        if not keep_uris:
            here = [part.replace("gs://", folder) for part in here]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        outputs = [Path(file) for part in here for file in re.findall(r'"outputFile": "([^"]+\.json)"', part)]
        return Process(subprocess.Popen(here, env={**os.environ, "PATH": path, **environment}), folder, outputs)


class Process:
    """A step's process; `wait` gives the URIs in its output their scheme again."""

    def __init__(self, popen: subprocess.Popen[bytes], folder: str, outputs: list[Path]) -> None:
        self._popen, self._folder, self._outputs = popen, folder, outputs

    def wait(self) -> Any:
        code = self._popen.wait()
        for file in self._outputs:
            if file.exists():
                file.write_text(file.read_text().replace(self._folder, "gs://"))
        return type("End", (), {"code": code})

    def stop(self) -> None:
        self._popen.terminate()
