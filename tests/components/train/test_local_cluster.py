"""The local cluster: the replicas' environment, how they stop together, and which one a failure names."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from slipway.components.step import WorkFailed
from slipway.components.train.local_cluster import run_local_cluster
from slipway.components.train.result import rehearsed_steps
from slipway.components.worker_pools import cluster_environment, replicas_of
from slipway.core.errors import UserError
from slipway.core.exit_codes import on_vertex
from slipway.trainer.config import RestartSettings

NEVER = RestartSettings(at_most=0)


def pools(code: str, replicas: int) -> list[dict]:
    spec = {
        "machine_spec": {"machine_type": "x"},
        "container_spec": {"command": ["python", "-c", textwrap.dedent(code)]},
    }
    return [{**spec, "replica_count": 1}, *([{**spec, "replica_count": replicas - 1}] if replicas > 1 else [])]


TELL = """
    import json, os
    print("told", json.dumps({k: v for k, v in os.environ.items()
        if k in ("TF_CONFIG", "CLUSTER_SPEC") or k.startswith(("AIP_", "SLIPWAY_"))}))
"""


def told(log: str) -> dict[str, dict]:
    """What each replica says it was told, by the name before its line."""
    lines = [line.partition("] told ") for line in log.splitlines() if "told " in line]
    return {name.removeprefix("["): json.loads(text) for name, _, text in lines}


def test_each_host_of_a_slice_is_a_process_with_its_share_of_the_devices(tmp_path):
    """As on a TPU VM: the same CLUSTER_SPEC of one replica, and their places by the variables that JAX reads."""
    code = TELL.replace('"AIP_", ', '"AIP_", "TPU_", "JAX_", ')
    (pool,) = pools(code, 1)
    pool["container_spec"]["env"] = [{"name": "SLIPWAY_HOSTS", "value": "4"}]
    log = io.StringIO()
    run_local_cluster([pool], tmp_path, virtual_devices=16, log=log)
    seen = told(log.getvalue())
    assert set(seen) == {f"workerpool0-0-host{host}" for host in range(4)}
    first = seen["workerpool0-0-host0"]
    (address,) = json.loads(first["CLUSTER_SPEC"])["cluster"]["workerpool0"]
    assert first["JAX_COORDINATOR_ADDRESS"] == address
    for host in range(4):
        own = seen[f"workerpool0-0-host{host}"]
        assert own.pop("TPU_WORKER_ID") == str(host)
        assert own["SLIPWAY_VIRTUAL_DEVICES"] == "4"
        assert "TF_CONFIG" not in own
        assert own == {name: value for name, value in first.items() if name != "TPU_WORKER_ID"}


def test_replicas_are_told_what_vertex_tells(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "of an outer job")
    log = io.StringIO()
    run_local_cluster(pools(TELL, 3), tmp_path, virtual_devices=4, log=log)
    seen = told(log.getvalue())
    assert set(seen) == {"workerpool0-0", "workerpool1-0", "workerpool1-1"}
    config = json.loads(seen["workerpool1-1"]["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert [len(config["cluster"][kind]) for kind in ("chief", "worker")] == [1, 2]
    specification = json.loads(seen["workerpool1-1"]["CLUSTER_SPEC"])
    assert specification["task"] == {"type": "workerpool1", "index": 1}
    addresses = [*specification["cluster"]["workerpool0"], *specification["cluster"]["workerpool1"]]
    assert len(set(addresses)) == 3
    assert seen["workerpool0-0"]["AIP_MODEL_DIR"] == str(tmp_path / "model")
    assert seen["workerpool0-0"]["AIP_CHECKPOINT_DIR"] == str(tmp_path / "checkpoints")
    assert seen["workerpool0-0"]["AIP_TENSORBOARD_LOG_DIR"] == str(tmp_path / "logs")
    assert seen["workerpool0-0"]["SLIPWAY_VIRTUAL_DEVICES"] == "4"
    assert not any(on_vertex(environment) for environment in seen.values()), "its exit codes would be Vertex AI's"


def test_a_single_replica_has_no_tf_config(tmp_path, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "of an outer job")
    log = io.StringIO()
    run_local_cluster(pools(TELL, 1), tmp_path, log=log)
    assert set(told(log.getvalue())["workerpool0-0"]) >= {"CLUSTER_SPEC"}
    assert "TF_CONFIG" not in told(log.getvalue())["workerpool0-0"]


@pytest.mark.parametrize(("count", "virtual", "seen"), [(2, 0, "0,1"), (None, 0, "-1"), (2, 2, None)])
def test_a_replica_sees_the_gpus_of_its_hardware(tmp_path, monkeypatch, count, virtual, seen):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    log = io.StringIO()
    (pool,) = pools(TELL.replace('"TF_CONFIG", ', '"CUDA_VISIBLE_DEVICES", '), 1)
    pool["machine_spec"] |= {"accelerator_count": count} if count else {}
    run_local_cluster([pool], tmp_path, virtual_devices=virtual, log=log)
    assert told(log.getvalue())["workerpool0-0"].get("CUDA_VISIBLE_DEVICES") == seen


@pytest.mark.parametrize(("virtual", "seen"), [(0, "gpu:2"), (2, None)])
def test_a_replica_learns_the_accelerators_of_its_plan_but_not_in_a_rehearsal(tmp_path, monkeypatch, virtual, seen):
    monkeypatch.setenv("SLIPWAY_ACCELERATORS", "of an outer job")
    log = io.StringIO()
    planned, *others = pools(TELL, 2)
    planned["container_spec"] = {
        **planned["container_spec"],
        "env": [{"name": "SLIPWAY_ACCELERATORS", "value": "gpu:2"}],
    }
    run_local_cluster([planned, *others], tmp_path, virtual_devices=virtual, log=log)
    found = {name: environment.get("SLIPWAY_ACCELERATORS") for name, environment in told(log.getvalue()).items()}
    assert found == {"workerpool0-0": seen, "workerpool1-0": None}


def test_the_chiefs_lines_are_events_without_control_characters_and_noise(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events"))
    code = """
        import os
        print("\\033[31mepoch 1\\n\\nI0000 00:00:1.1 1 x.cc:1] start")
        print(os.environ["CLUSTER_SPEC"].count("workerpool"))
    """
    run_local_cluster(pools(code, 2), tmp_path, log=io.StringIO())
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    assert [each["text"] for each in events if each["event"] == "output"] == ["[31mepoch 1", "3"]


def test_the_evaluator_is_not_in_the_cluster():
    container = {"container_spec": {"command": ["python"]}, "replica_count": 1}
    replicas = replicas_of([container, {}, container, container], [1, 2, 3])
    config = json.loads(cluster_environment(replicas[2], replicas)["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert set(config["cluster"]) == {"chief", "ps"}


FAIL = """
    import json, os, sys, time
    if json.loads(os.environ["TF_CONFIG"])["task"] == {"type": "worker", "index": 0}:
        %s
    time.sleep(1000)
"""


def test_one_failure_ends_all_and_is_named_with_its_traceback(tmp_path):
    before = psutil.Process().children(recursive=True)  # such as the resource tracker of multiprocessing
    log = io.StringIO()
    with pytest.raises(WorkFailed) as caught:
        run_local_cluster(pools(FAIL % "{}['lost']", 3), tmp_path, log=log)
    assert caught.value.message == "Replica workerpool1-0 failed with exit code 1: KeyError: 'lost'."
    assert caught.value.traceback.startswith("Traceback (most recent call last)")
    assert caught.value.traceback.endswith("KeyError: 'lost'")
    assert psutil.Process().children(recursive=True) == before


def test_a_killed_replica_is_named_with_its_signal(tmp_path):
    with pytest.raises(WorkFailed, match=r"workerpool1-0 was killed by SIGKILL"):
        run_local_cluster(pools(FAIL % "os.kill(os.getpid(), 9)", 2), tmp_path, restarts=NEVER, log=io.StringIO())


def test_a_users_mistake_in_a_replica_comes_back_as_itself(tmp_path):
    code = FAIL % "from slipway.core.errors import *; report(UserError('Bad.', setting='a.b', value=3)); sys.exit(1)"
    with pytest.raises(UserError) as caught:
        run_local_cluster(pools(code, 2), tmp_path, log=io.StringIO())
    assert (caught.value.setting, caught.value.value) == ("a.b", 3)


def test_replicas_that_end_with_different_weights_have_failed(tmp_path):
    code = 'import os; print("weights checksum " + ("%s" * 64))'
    run_local_cluster(pools(code % "a", 2), tmp_path, log=io.StringIO())
    differing = [{**pool, **pools(code % letter, 1)[0]} for pool, letter in zip(pools("", 2), "ab", strict=True)]
    with pytest.raises(WorkFailed, match="workerpool0-0 aaaaaaaaaaaa, workerpool1-0 bbbbbbbbbbbb"):
        run_local_cluster(differing, tmp_path, log=io.StringIO())


STOPS = 12


@pytest.mark.slow
def test_a_stop_at_any_moment_ends_the_step(tmp_path):
    seed = random.randrange(2**31)
    print(f"seed {seed}")
    chance = random.Random(seed)
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    for _ in range(STOPS):
        step = subprocess.Popen(
            [sys.executable, "-c", PARENT % "pass"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE
        )
        assert step.stdout is not None
        step.stdout.readline()  # the first replica runs
        time.sleep(chance.random() * 0.1)
        children = psutil.Process(step.pid).children(recursive=True)
        step.terminate()
        assert step.wait(timeout=180) == 143
        step.stdout.close()
        assert not psutil.wait_procs(children, timeout=180)[1]


PARENT = """
import sys, textwrap
from pathlib import Path
from slipway.components.step import step
from slipway.components.train.local_cluster import run_local_cluster
from slipway.core import supervision
supervision.GRACE_SECONDS = 2
code = "import time, signal; %s; print('ready', flush=True); time.sleep(1000)"
spec = {"machine_spec": {}, "container_spec": {"command": ["python", "-c", code]}}
with step("train"):
    run_local_cluster([{**spec, "replica_count": 1}, {**spec, "replica_count": 1}], Path("."))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("replica", ["pass", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_nothing_is_left_running_when_the_step_is_stopped(tmp_path, number, replica):
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    step = subprocess.Popen(
        [sys.executable, "-c", PARENT % replica], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    assert step.stdout is not None
    ready = [step.stdout.readline(), step.stdout.readline()]
    assert all("ready" in line for line in ready)
    children = psutil.Process(step.pid).children(recursive=True)
    assert len(children) == 2
    step.send_signal(number)
    assert step.wait(timeout=180) == (143 if number == signal.SIGTERM else -signal.SIGKILL)
    _, alive = psutil.wait_procs(children, timeout=180)
    assert not alive


@pytest.mark.long
def test_the_report_of_a_rehearsals_last_step_ends_all_replicas(tmp_path, monkeypatch):
    code = """
        import time
        from slipway import training
        if not training.cluster().is_chief:
            time.sleep(1000)
        for step in range(1, 6):
            training.report(step, loss=1)
        training.report(6, kind="validation", loss=1)
    """
    log = io.StringIO()
    monkeypatch.setenv("SLIPWAY_REHEARSAL_STEPS", "3")
    assert run_local_cluster(pools(code, 2), tmp_path, restarts=NEVER, log=log) == []
    assert "[workerpool0-0] rehearsal ended after the report of step 3" in log.getvalue()
    assert rehearsed_steps(str(tmp_path)) == {"rehearsed_steps": 3}
    monkeypatch.setenv("SLIPWAY_REHEARSAL_STEPS", "6")
    run_local_cluster(pools(code, 1), tmp_path, restarts=NEVER, log=log)
    assert rehearsed_steps(str(tmp_path)) == {"rehearsed_steps": None}, "the program ran to its end"
