"""The train step with the target tpu: its requests of queued resources, and the ends of its TPUs."""

from __future__ import annotations

import hashlib
import io
import itertools
import os
import re
import shlex
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slipway.components.step import Terminated, WorkFailed, _Termination
from slipway.components.train.restarts import Restart
from slipway.components.train.tpu import job, service
from slipway.components.train.tpu.lease import Holder, Lease
from slipway.components.train.tpu.request import SCRIPT
from slipway.components.train.tpu.settings import TpuRequest, TpuSettings
from slipway.core.errors import UserError
from slipway.trainer.config import RestartSettings
from tests.end_to_end.workspace import wait_for
from tests.fakes.errors import ConnectionReset, ServiceError
from tests.fakes.google import PROJECT, FakeGoogle
from tests.fakes.http_service import Raw, Request
from tests.fakes.ready import BUCKET, IMAGE, RUNNER, grant, let_use_tpus, tpu_settings
from tests.fakes.tpu.hosts import require_curl

# Both have TPU v2.
ZONES = ("us-central1-b", "us-central1-c")
MODEL = """
import os
from slipway.core.paths import local_path
folder = local_path(os.environ["AIP_MODEL_DIR"])
folder.mkdir(parents=True, exist_ok=True)
(folder / "model").write_text("trained")
"""
WAITING = "import time; time.sleep(60)"


class Runs:
    """Trainings of small programs on one TPU v2 with the fake service."""

    def __init__(self, google: FakeGoogle, folder: Path) -> None:
        self.google, self.folder = google, folder
        self.log = io.StringIO()
        let_use_tpus(google)

    def output(self, run: str = "run-1") -> Path:
        path = self.folder / run / "train"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def train(
        self,
        program: str = MODEL,
        run: str = "run-1",
        at_most: int = 0,
        spot: bool = False,
        image: str = IMAGE,
        **settings: Any,
    ) -> list[Restart]:
        section = TpuSettings(**tpu_settings(self.google, zones=ZONES, **settings))
        request = TpuRequest(
            settings=section,
            accelerator={"acceleratorType": "v2-8"},
            runtime_version="tpu-ubuntu2204-base",
            spot=spot,
        )
        container = {"image_uri": image, "command": ["python"], "args": ["-c", program]}
        restarts = RestartSettings(at_most=at_most, backoff_seconds=0.0)
        return job.train_on_tpu(request, {"container_spec": container}, self.output(run), None, restarts, self.log)  # type: ignore[typeddict-item]

    @property
    def requested(self) -> list[tuple[str, str]]:
        """The names and zones of all queued resources that there were, in order."""
        return [
            (name.rpartition("/")[2], name.split("/")[3])
            for name, state in self.google.tpu.history
            if state == "CREATING"
        ]

    @property
    def left(self) -> list[str]:
        return [resource.state for resource in self.google.tpu.resources.values()]


@pytest.fixture
def runs(ready_google: FakeGoogle, tmp_path: Path) -> Runs:
    require_curl()
    return Runs(ready_google, tmp_path)


def test_a_queued_request_that_expires_moves_on_to_the_next_zone(runs: Runs) -> None:
    runs.google.tpu.stocked_out.add(ZONES[0])
    runs.google.tpu.second = 0.00001
    runs.train()
    assert runs.requested == [("slipway-run-1-1", ZONES[0]), ("slipway-run-1-2", ZONES[1])]
    assert f"no TPU in {ZONES[0]}: The queued resource request expired" in runs.log.getvalue()
    assert not runs.left
    assert (runs.output() / "model" / "model").read_text() == "trained"


def test_no_zone_with_capacity_is_refused_and_no_queued_request_is_left(runs: Runs) -> None:
    runs.google.tpu.exhausted.add(ZONES[0])
    runs.google.world.quotas[PROJECT, ZONES[1], "tpu.googleapis.com/tpu-v2"] = 0
    with pytest.raises(UserError, match="No zone has a TPU") as error:
        runs.train()
    assert all(f"{zone}: " in error.value.message for zone in ZONES)
    assert "has been exceeded. Limit: 0" in error.value.message
    assert error.value.setting == "tpu.zones"
    assert not runs.left


def test_a_queued_request_whose_answer_was_lost_is_found_again(runs: Runs) -> None:
    runs.google.faults.plan("POST /v2/projects", ConnectionReset(), lost=True)
    runs.train()
    assert len(runs.requested) == 1
    assert not runs.left


def test_a_queued_resource_that_is_not_found_at_first_is_not_given_up(runs: Runs) -> None:
    name = f"tpu GET /v2/projects/{PROJECT}/locations/{ZONES[0]}/queuedResources/slipway-run-1-1"
    runs.google.faults.plan(name, ServiceError(404, "Resource was not found"))
    runs.train()
    assert [zone for _, zone in runs.requested] == [ZONES[0]]
    assert runs.google.faults.struck[name] == 1
    assert "deleted" not in runs.log.getvalue()


def test_a_tpu_that_is_provisioned_for_too_long_moves_on_to_the_next_zone(runs: Runs) -> None:
    runs.google.tpu.provisioning.add(ZONES[0])
    runs.train(max_provisioning_minutes=0.005)
    assert [zone for _, zone in runs.requested] == [*ZONES]
    assert f"no TPU in {ZONES[0]}: it was still provisioning after 0.005 minutes" in runs.log.getvalue()
    assert not runs.left


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("raise ValueError('a mistake')", r"workerpool0-0 failed with exit code 1: ValueError: a mistake"),
        ("import os; os.kill(os.getpid(), 9)", r"was killed by SIGKILL, for the 2nd time"),
    ],
)
def test_a_program_that_fails_with_target_tpu_leaves_no_tpu(runs: Runs, program: str, message: str) -> None:
    with pytest.raises(WorkFailed, match=message):
        runs.train(program, at_most=1)
    assert len(runs.requested) == (2 if "2nd" in message else 1)
    assert not runs.left


def test_a_user_error_with_target_tpu_is_that_of_the_trainer(runs: Runs) -> None:
    program = "from slipway.core.errors import UserError, report; report(UserError('No.', setting='train.x')); exit(1)"
    with pytest.raises(UserError, match=r"No\.") as error:
        runs.train(program, at_most=1)
    assert error.value.setting == "train.x"
    assert not runs.left


def test_target_tpu_preempted_too_often_fails_and_leaves_no_tpu(runs: Runs) -> None:
    def preempt() -> None:
        wait_for(lambda: runs.left == ["ACTIVE"])
        runs.google.tpu.preempt("slipway-run-1-1")

    thread = threading.Thread(target=preempt)
    thread.start()
    with pytest.raises(WorkFailed, match="workerpool0-0 was preempted"):
        runs.train(WAITING, spot=True)
    thread.join()
    assert not runs.left


def test_a_tpu_deletes_itself_when_its_time_is_over(runs: Runs) -> None:
    with pytest.raises(UserError, match="when its time was over") as error:
        runs.train(WAITING, max_hours=2 / 3600)
    assert error.value.setting == "tpu.max_hours"
    assert not runs.left


def test_a_tpu_whose_watching_script_is_killed_deletes_itself_all_the_same(runs: Runs) -> None:
    def kill() -> None:
        wait_for(lambda: "waits" in runs.log.getvalue())
        for unit in runs.google.tpu.host("slipway-run-1-1", 0).units():
            unit.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(UserError, match="when its time was over"):
        runs.train(f"print('waits', flush=True); {WAITING}", max_hours=4 / 3600)
    thread.join()
    assert not runs.left


def test_a_preempted_tpus_trainer_is_told_and_its_exit_code_is_kept(runs: Runs) -> None:
    def preempt() -> None:
        wait_for(lambda: "waits" in runs.log.getvalue())
        runs.google.tpu.grace_seconds = 10.0
        runs.google.tpu.preempt("slipway-run-1-1")

    thread = threading.Thread(target=preempt)
    thread.start()
    told = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(143))"
    with pytest.raises(WorkFailed, match="was preempted"):
        runs.train(f"{told}; print('waits', flush=True); {WAITING}", spot=True)
    thread.join()
    bucket = TpuSettings(**tpu_settings(runs.google)).connection.storage.bucket(BUCKET)
    assert bucket.blob("runs/run-1/hosts/1-0.exit").download_as_bytes() == b"143\n"


def test_a_second_startup_script_leaves_the_unit_of_the_first_alone(tmp_path: Path) -> None:
    """Without the unit it is started; with it, the script ends, and does not continue in the foreground."""
    for state, started in (("not-found", ["systemd-run"]), ("loaded", [])):
        bins = tmp_path / state
        bins.mkdir()
        (bins / "systemctl").write_text(f"#!/bin/sh\necho {state}\n")
        for name in ("systemd-run", "curl", "docker"):
            (bins / name).write_text(f"#!/bin/sh\necho {name} >>'{bins}/called'\n")
        for path in bins.iterdir():
            path.chmod(0o755)
        environment = {"PATH": f"{bins}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
        subprocess.run(["bash", str(SCRIPT)], env=environment, check=True, timeout=180)
        called = bins / "called"
        assert (called.read_text().split() if called.exists() else []) == started


@pytest.mark.parametrize("is_whole", [True, False])
def test_gcsfuse_is_installed_only_with_the_pinned_checksum(tmp_path: Path, is_whole: bool) -> None:
    text = SCRIPT.read_text()
    pinned = re.search(r"^GCSFUSE_SHA256=([0-9a-f]{64})$", text, re.MULTILINE)
    assert pinned is not None
    checksum = hashlib.sha256(b"package").hexdigest() if is_whole else pinned[1]
    bins = tmp_path / "bin"
    bins.mkdir()
    (bins / "curl").write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nprintf package >"$2"\n')
    (bins / "apt-get").write_text(f'#!/bin/sh\necho "$*" >>"{tmp_path}/apt"\n')
    for path in bins.iterdir():
        path.chmod(0o755)
    function = text.partition("install_gcsfuse() {")[2].partition("\n}\n")[0]
    script = f"install_gcsfuse() {{{function}\n}}\nWORK={shlex.quote(str(tmp_path))}\ninstall_gcsfuse"
    environment = {
        "PATH": f"{bins}:{os.environ['PATH']}",
        "GCSFUSE_VERSION": "3.4.4",
        "GCSFUSE_SHA256": checksum,
    }
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) == is_whole
    if is_whole:
        assert (tmp_path / "apt").read_text().endswith(f"install -y {tmp_path}/gcsfuse_3.4.4_amd64.deb\n")
    else:
        assert "FAILED" in done.stdout + done.stderr
        assert not (tmp_path / "apt").exists()


@pytest.mark.parametrize("state", ["WAITING_FOR_RESOURCES", "ACTIVE"])
def test_a_queued_resource_that_somebody_deletes_ends_the_run(runs: Runs, state: str) -> None:
    runs.google.tpu.stocked_out = {ZONES[0]} if state != "ACTIVE" else set()

    def delete() -> None:
        wait_for(lambda: runs.left == [state])
        connection = TpuSettings(**tpu_settings(runs.google)).connection
        service.delete(connection, ZONES[0], "slipway-run-1-1")

    thread = threading.Thread(target=delete)
    thread.start()
    with pytest.raises(UserError, match="not by this command"):
        runs.train(WAITING)
    thread.join()
    assert not runs.left


def test_a_tpu_whose_node_is_deleted_first_is_not_requested_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queued resource is ACTIVE when it is read, and deleted before its node is read."""
    read, reads = service.node_state, itertools.count(1)

    def deleted_meanwhile(*arguments: Any) -> str:
        if next(reads) == 3:
            service.request_delete(*arguments)
        return read(*arguments)

    monkeypatch.setattr(service, "node_state", deleted_meanwhile)
    with pytest.raises(UserError, match="not by this command"):
        runs.train(WAITING, at_most=3)
    assert len(runs.requested) == 1
    assert not runs.left


def test_a_machine_that_cannot_pull_the_image_says_so(runs: Runs) -> None:
    runs.google.images.untagged.clear()
    with pytest.raises(UserError, match="docker pull failed"):
        runs.train(at_most=3)
    assert "Permission" in runs.log.getvalue()
    assert len(runs.requested) == 1
    assert not runs.left


def test_a_private_image_of_container_registry_is_pulled_after_a_login(runs: Runs) -> None:
    repository, digest = f"projects/{PROJECT}/locations/us/repositories/gcr.io", IMAGE.partition("@")[2]
    runs.google.repositories.add(repository)
    runs.google.images.untagged.add((repository, "trainer", digest))
    grant(runs.google, repository, "roles/artifactregistry.reader", RUNNER)
    runs.train(image=f"gcr.io/{PROJECT}/trainer@{digest}")
    assert "Login Succeeded" in runs.log.getvalue()


def test_a_model_that_was_not_copied_yet_is_copied_without_another_tpu(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(job.BucketFolder, "download", interrupted)
        with pytest.raises(KeyboardInterrupt):
            runs.train()
    runs.train()
    assert len(runs.requested) == 1
    assert (runs.output() / "model" / "model").read_text() == "trained"
    assert not runs.left


def leave_request(settings: TpuSettings, run: str) -> None:
    """Request a TPU as the first request of a run whose launcher is then lost."""
    node = {
        "acceleratorType": "v2-8",
        "runtimeVersion": "tpu-ubuntu2204-base",
        "serviceAccount": {"email": settings.service_account},
        "labels": {"slipway-run": run, "slipway-owner": service.owner()},
    }
    parent, name = f"projects/{PROJECT}/locations/{ZONES[0]}", f"slipway-{run}-1"
    body = {"tpu": {"nodeSpec": [{"parent": parent, "nodeId": name, "node": node}]}}
    service.create(settings.connection, ZONES[0], name, body)


def test_a_launcher_that_is_stopped_at_once_deletes_the_tpu_of_a_killed_one(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TpuSettings(**tpu_settings(runs.google))
    lease = Lease(settings.connection, BUCKET, "runs/run-1/lease", runs.output() / "launcher", 60)
    lease.take()
    lease.hold(Holder("slipway-run-1-1", ZONES[0], 1))
    leave_request(settings, "run-1")
    made = job._Job.__init__

    def stopped(*arguments: Any) -> None:
        made(*arguments)
        monkeypatch.setattr(_Termination, "requested", True)
        if not _Termination.deferred:  # as the handler of the signals
            raise Terminated

    monkeypatch.setattr(job._Job, "__init__", stopped)
    with pytest.raises(Terminated):
        runs.train()
    assert len(runs.requested) == 1
    assert not runs.left


def test_an_expired_queued_request_of_a_lost_launcher_is_deleted_by_the_next_run(runs: Runs) -> None:
    runs.google.tpu.exhausted.add(ZONES[0])
    leave_request(TpuSettings(**tpu_settings(runs.google)), "lost")
    wait_for(lambda: runs.left == ["FAILED"])
    runs.google.tpu.exhausted.clear()
    runs.train()
    assert "deleting the queued resource slipway-lost-1" in runs.log.getvalue()
    wait_for(lambda: not runs.left)


def test_a_lease_that_was_written_is_held_though_the_answer_broke_off(runs: Runs) -> None:
    settings, writes = TpuSettings(**tpu_settings(runs.google)), itertools.count()
    lease = Lease(settings.connection, BUCKET, "runs/run-1/lease", runs.output() / "launcher", 60)
    lease.take()

    def written(request: Request) -> Raw | None:
        if request.method != "POST" or next(writes):
            return None
        return replace(runs.google.storage._pass_on(request), cut=True)

    runs.google.http["storage"].gate = written
    lease.hold(Holder("slipway-run-1-1", ZONES[0], 1))
    assert next(writes) > 1
    lease.check()
    other = Lease(settings.connection, BUCKET, "runs/run-1/lease", runs.output() / "launcher", 60)
    assert other.take() == Holder("slipway-run-1-1", ZONES[0], 1)


def test_a_run_that_another_launcher_trains_is_refused_before_a_tpu_is_requested(runs: Runs) -> None:
    settings = TpuSettings(**tpu_settings(runs.google))
    other = Lease(settings.connection, BUCKET, "runs/run-1/lease", runs.folder / "other", 60)
    other.take()
    other.hold(Holder("slipway-run-1-1", ZONES[0], 1))
    with pytest.raises(UserError, match="Another command trains this run on the TPU slipway-run-1-1"):
        runs.train()
    assert not runs.requested
    time.sleep(3.1)
    runs.train(lease=0.05)  # the other one has lapsed
    with pytest.raises(WorkFailed, match="taken over"):
        other.hold(Holder("slipway-run-1-1", ZONES[0], 1))
