"""Run a replica of the training in a container of `train.image`, as Vertex AI does.

`python -m slipway.pipelines.platforms.local.replica [--command] IMAGE ARGUMENT …` is the replica's process on this
machine: it passes the variables, output, signals and exit code on. Without `--command`, the image's entry point runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.errors import UserError, report
from slipway.core.exit_codes import FAILED
from slipway.pipelines.config.config import load
from slipway.pipelines.platforms.local.containers import docker_client, run_arguments, run_to_end
from slipway.pipelines.runs.record import RunFolder
from slipway.trainer.config import TrainSettings
from slipway.trainer.distributed.accelerators import PLANNED_VARIABLE, VISIBLE_GPUS_VARIABLE
from slipway.trainer.distributed.verification import LIBRARIES_VARIABLE, verified_in_shell

if TYPE_CHECKING:
    from docker import DockerClient

MODULE = "slipway.pipelines.platforms.local.replica"
COMMAND = "--command"
# The variables of the cluster and of the job, by the beginning of their names; no others of this machine.
PASSED_ON = (
    "AIP_",
    "CLUSTER_SPEC",
    "TF_CONFIG",
    "SLIPWAY_DATA",
    "SLIPWAY_HOSTS",
    PLANNED_VARIABLE,
    LIBRARIES_VARIABLE,
    VISIBLE_GPUS_VARIABLE,
    "CUDA_DEVICE_ORDER",
    "PYTHONUNBUFFERED",
)


def in_container(train: TrainSettings) -> TrainSettings:
    """Return settings whose command runs the program of `train` in a container of its image."""
    program = ["python", "-m", train.module] if train.module else list(train.command or ())
    command = ("python", "-m", MODULE, *([COMMAND] if program else []), str(train.image), *program)
    return train.model_copy(update={"module": None, "command": command, "image": None})


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the container to its end, and return its exit code.

    Raises:
        UserError: Docker does not respond, or the image cannot be pulled.
    """
    is_command = arguments[0] == COMMAND
    image, *program = arguments[is_command:]
    if is_command and PLANNED_VARIABLE in environment:
        program = verified_in_shell(program)
    folder = RunFolder(Path(environment["AIP_MODEL_DIR"]).parents[1])
    options = run_arguments(folder, load(folder.configuration_file))
    del options["working_dir"]  # the image's own, as on Vertex AI
    passed = {name: value for name, value in environment.items() if name.startswith(PASSED_ON)}
    options["environment"] = {"HOME": "/tmp", **passed}
    task = json.loads(environment["CLUSTER_SPEC"])["task"]
    name = f"{folder.run_id}-{task['type']}-{task['index']}"
    with docker_client() as client:
        from docker import errors

        _pull(client, image)
        with suppress(errors.NotFound):  # of an attempt whose process was killed
            client.containers.get(name).remove(force=True)
        container = client.containers.create(
            image=image,
            entrypoint=program[:1] if is_command else None,
            command=(program[1:] if is_command else program) or None,
            name=name,
            network_mode="host",
            **options,
        )
        signal.signal(signal.SIGTERM, lambda *_: container.kill(signal="SIGTERM"))
        return run_to_end(container)


def _pull(client: DockerClient, image: str) -> None:
    from docker import errors

    try:
        client.images.get(image)
    except errors.ImageNotFound:
        print(f"pulling {image}", flush=True)
        try:
            client.images.pull(image)
        except errors.APIError as error:
            raise UserError(
                f"The image {image} cannot be pulled: {error.explanation or error}.",
                setting="train.image",
                value=image,
                fix=f"docker pull {image} shows why; or correct train.image",
            ) from None


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:], os.environ))
    except UserError as error:
        report(error)
        sys.exit(FAILED)
