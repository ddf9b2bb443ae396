"""Replicas of a program in containers of its own image, which has no Slipway in it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipway.components.plan_training.plan import plan_training
from slipway.components.train.local_cluster import run_local_cluster
from slipway.core.errors import UserError
from slipway.pipelines.config.config import validate
from slipway.pipelines.platforms.local.replica import in_container
from slipway.pipelines.runs.record import create
from slipway.trainer.config import RestartSettings
from tests.containers.engine import Engine

# In the first attempt, one replica dies and the other waits until it is asked to stop; then both start again.
PROGRAM = """#!/bin/sh
case "$CLUSTER_SPEC" in *'"type": "workerpool0"'*) task=workerpool0 ;; *) task=workerpool1 ;; esac
echo "$task $* $SLIPWAY_DATA ${PATH_OF_HOST:-no} $PWD"
left="$AIP_CHECKPOINT_DIR/$task"
if [ ! -e "$left" ]; then
    : > "$left"
    [ $task = workerpool1 ] && exit 137
    trap "echo asked to stop; exit 143" TERM
    sleep 60 & wait
fi
[ $task = workerpool1 ] || echo "$SLIPWAY_DATA" > "$AIP_MODEL_DIR/weights"
"""
DOCKERFILE = """FROM {base}
COPY --chmod=755 program.sh /srv/own/program.sh
WORKDIR /srv/own
ENTRYPOINT ["/bin/sh", "program.sh"]
"""


@pytest.mark.parametrize("command", [None, ["/bin/sh", "/srv/own/program.sh"]], ids=["entry point", "command"])
def test_a_program_is_restarted_in_containers_of_its_image(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str] | None
) -> None:
    (tmp_path / "program.sh").write_text(PROGRAM)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.format(base=engine.base))
    image = f"{engine.registry}/own:1"
    for told in (["build", "--tag", image, str(tmp_path)], ["push", "--tls-verify=false", image]):
        subprocess.run(["buildah", *told], check=True, capture_output=True, env=engine.environment)
    for name, value in engine.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH_OF_HOST", "here")
    monkeypatch.chdir(tmp_path)
    train = {"image": image, "command": command, "arguments": ["--lr", "0.1"]}
    config = validate({"name": "own", "hardware": "cpu*2", "data": {"uri": "s3://rows"}, "train": train}, "the test")
    folder, log = create(config), io.StringIO()
    for name in ("checkpoints", "model"):
        (folder.path / "train" / name).mkdir(parents=True)
    pools = config.training_hardware.worker_pools()
    planned = plan_training(pools, 0, None, "s3://rows", None, in_container(config.train), "").worker_pool_specs
    [restart] = run_local_cluster(planned, folder.path / "train", restarts=RestartSettings(backoff_seconds=0), log=log)
    assert restart.replica == "workerpool1-0"
    assert (folder.path / "train/model/weights").read_text() == "s3://rows\n"
    assert (folder.path / "train/model/weights").stat().st_uid == os.getuid()
    assert log.getvalue().count("--lr 0.1 s3://rows no /srv/own") == 4
    assert "[workerpool0-0] asked to stop" in log.getvalue()
    running = subprocess.run(["podman", "ps", "-aq"], capture_output=True, text=True, env=engine.environment)
    assert running.stdout == ""

    if command is not None:  # without the GPUs that were planned, the program is not started
        folder = create(config)
        environment = {
            **os.environ,
            "AIP_MODEL_DIR": str(folder.path / "train" / "model"),
            "CLUSTER_SPEC": json.dumps({"task": {"type": "workerpool0", "index": 0}}),
            "SLIPWAY_ACCELERATORS": "gpu:2",
        }
        replica = [sys.executable, *in_container(config.train).command[1:]]
        done = subprocess.run(replica, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "This machine should have gpu:2, but it has 0 device files /dev/nvidiaN." in done.stdout + done.stderr
        return
    missing = config.train.model_copy(update={"image": f"{engine.registry}/missing:1"})
    planned = plan_training(pools, 0, None, "s3://rows", None, in_container(missing), "").worker_pool_specs
    with pytest.raises(UserError, match="missing:1 cannot be pulled"):
        run_local_cluster(planned, folder.path / "train", log=log)
