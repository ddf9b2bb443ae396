"""The launcher of custom training programs: what a program is told, and the status with which its replica ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from slipway.core.supervision import Ports
from slipway.trainer.distributed.accelerators import Accelerators
from slipway.trainer.distributed.cluster import Cluster, Task
from slipway.trainer.launch import own_gpus

# Writes the variables that it was started with to a file of its rank, and then does as its argument says.
PROGRAM = """
import json, os, pathlib, socket, sys, time
told = dict.fromkeys(["TF_CONFIG"]) | dict(os.environ)
pathlib.Path("told." + os.environ["RANK"]).write_text(json.dumps(told | {"arguments": sys.argv[1:]}))
print("it runs", flush=True)
exec(sys.argv[1])
"""
# Serves on the port of torchrun's variables without SO_REUSEPORT, as the store of torch.distributed does.
MEET = """
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if os.environ["RANK"] == "0":
    server = socket.create_server(address)
    for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
        server.accept()
else:
    for _ in range(2000):
        try:
            socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    else:
        sys.exit("nobody is there")
"""
Launch = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def launch(tmp_path: Path):
    """Start a replica whose program executes `code`; all of them end with the test."""
    (tmp_path / "program.py").write_text(PROGRAM)
    started = []

    def start(code: str, *options: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "slipway.trainer.launch", *options, "program", code, "--epochs", "3"]
        pipe = subprocess.PIPE
        variables = {**os.environ, **environment}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def two():
    """The environments of the two replicas of a job."""
    with Ports(2) as ports:
        first, second = (f"127.0.0.1:{port}" for port in ports)
        pools = {"workerpool0": [first], "workerpool1": [second]}
        tasks = {"chief": [first], "worker": [second]}
        yield [
            {
                "CLUSTER_SPEC": json.dumps({"cluster": pools, "task": {"type": pool, "index": 0}}),
                "TF_CONFIG": json.dumps({"cluster": tasks, "task": {"type": kind, "index": 0}}),
                "SLIPWAY_LOCAL_CLUSTER": "1",
            }
            for pool, kind in (("workerpool0", "chief"), ("workerpool1", "worker"))
        ]


def told(folder: Path) -> list[dict[str, str]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("told.*"))]


def test_a_program_on_two_replicas_has_torchruns_variables_beside_tf_config(launch, two, tmp_path):
    replicas = [launch(MEET, **environment) for environment in two]
    outputs = [replica.communicate(timeout=120) for replica in replicas]
    assert [replica.returncode for replica in replicas] == [0, 0], outputs
    found = told(tmp_path)
    assert [each["RANK"] for each in found] == ["0", "1"]
    assert {each["WORLD_SIZE"] for each in found} == {"2"}
    # As torchrun sets them on two machines of one process each, where their training will be.
    assert {(each["LOCAL_RANK"], each["LOCAL_WORLD_SIZE"], each["GROUP_WORLD_SIZE"]) for each in found} == {
        ("0", "1", "2")
    }
    assert [(each["GROUP_RANK"], each["ROLE_RANK"], each["NODE_RANK"]) for each in found] == [("0",) * 3, ("1",) * 3]
    assert {each["TORCHELASTIC_RUN_ID"] for each in found} == {"none"}
    addresses = {f"{each['MASTER_ADDR']}:{each['MASTER_PORT']}" for each in found}
    assert addresses == set(json.loads(two[0]["TF_CONFIG"])["cluster"]["chief"])
    assert [each["TF_CONFIG"] for each in found] == [environment["TF_CONFIG"] for environment in two]
    assert found[0]["arguments"] == [MEET, "--epochs", "3"]


@pytest.mark.parametrize(("code", "joined"), [("pass", False), (f"{MEET}\ntime.sleep(1)", True)])
def test_replicas_that_do_not_join_each_other_are_reported(launch, two, tmp_path, code, joined):
    events = tmp_path / "events"
    replicas = [launch(code, **environment, SLIPWAY_EVENTS=str(events)) for environment in two]
    outputs = [replica.communicate(timeout=120) for replica in replicas]
    assert [replica.returncode for replica in replicas] == [0, 0], outputs
    messages = [each["text"] for line in events.read_text().splitlines() if "text" in (each := json.loads(line))]
    assert any("2 replicas ran, and none joined the other" in each for each in messages) is not joined


@pytest.mark.parametrize(
    ("kind", "count", "visible", "rank", "own"),
    [
        ("gpu", 4, None, 1, "2,3"),
        ("gpu", 2, "GPU-a,GPU-b", 1, "GPU-b"),
        ("gpu", 2, "GPU-a,GPU-b", 0, "GPU-a"),
        ("gpu", 1, None, 1, None),  # both use it
        ("cpu", 0, None, 1, None),
    ],
)
def test_replicas_on_one_machine_see_different_gpus(
    kind: str, count: int, visible: str | None, rank: int, own: str | None
) -> None:
    tasks = tuple(Task("worker", index, f"127.0.0.1:{index}") for index in range(2))
    cluster = Cluster(tasks, rank, "TF_CONFIG", Accelerators(kind, count, "the test"), rank, 2)
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert own_gpus(environment, cluster).get("CUDA_VISIBLE_DEVICES") == own
    assert own_gpus(environment, replace(cluster, local_rank=0, on_this_machine=1)) == {}


def test_arguments_name_the_runs_own_folders(launch, tmp_path):
    (tmp_path / "program.py").write_text("import sys; print(sys.argv[1:])")
    run = launch("--job-dir=$(AIP_MODEL_DIR)/x", AIP_MODEL_DIR="/run/model")
    output, errors = run.communicate(timeout=180)
    assert "['--job-dir=/run/model/x', '--epochs', '3']" in output, errors


def test_a_process_per_device_replaces_the_replicas_own_variables(launch, two, tmp_path):
    options = ("--processes", "per_device")
    replicas = [launch(MEET, *options, SLIPWAY_VIRTUAL_DEVICES="2", **environment) for environment in two]
    outputs = [replica.communicate(timeout=120) for replica in replicas]
    assert [replica.returncode for replica in replicas] == [0, 0], outputs
    assert outputs[0][0].count("it runs") == 2
    found = told(tmp_path)
    assert [each["RANK"] for each in found] == ["0", "1", "2", "3"]
    assert [(each["GROUP_RANK"], each["LOCAL_RANK"]) for each in found] == [
        ("0", "0"),
        ("0", "1"),
        ("1", "0"),
        ("1", "1"),
    ]
    assert {(each["WORLD_SIZE"], each["LOCAL_WORLD_SIZE"], each["TF_CONFIG"]) for each in found} == {("4", "2", None)}


def test_one_replica_needs_no_cluster(launch, tmp_path):
    assert launch(MEET, "--processes", "2").wait(timeout=120) == 0
    assert [(each["RANK"], each["WORLD_SIZE"]) for each in told(tmp_path)] == [("0", "2"), ("1", "2")]


# Fails after the other replica's program has.
FAIL_LATER = """
while not pathlib.Path("told.1").exists():
    time.sleep(0.05)
time.sleep(2.5)  # less than BLAME_SECONDS after
sys.exit("the connection was closed by the peer")
"""


@pytest.mark.parametrize(
    ("culprit", "status", "consequence"),
    [
        ("os.kill(os.getpid(), 9)", 137, FAIL_LATER),
        ("raise ValueError('mine')", 1, FAIL_LATER),
        ("sys.exit(143)", 143, FAIL_LATER.replace("sys.exit", "os.abort() or ")),
    ],
    ids=["killed", "failed", "stopped, and the other is aborted by its framework"],
)
def test_a_program_that_fails_because_another_replica_is_lost_can_be_restarted(
    launch, two, culprit, status, consequence
):
    replicas = [launch(consequence, **two[0]), launch(culprit, **two[1])]
    outputs = [replica.communicate(timeout=120) for replica in replicas]
    assert [replica.returncode for replica in replicas] == [138, status], outputs
    assert "the program failed because worker 0 at" in outputs[0][0]
    assert ("ValueError: mine" in outputs[1][1]) == (status == 1)


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("pass", "143"),
        ("import signal; signal.signal(15, lambda *_: sys.exit(134))", "134"),
    ],
    ids=["program without a handler", "program that saves"],
)
def test_sigterm_reaches_the_program_and_vertex_ai_tries_again(launch, tmp_path, code, ended):
    spec = {"cluster": {"workerpool0": ["10.0.0.2:2222"]}, "task": {"type": "workerpool0", "index": 0}}
    replica = launch(f"{code}; print('it waits', flush=True); time.sleep(1000)", CLUSTER_SPEC=json.dumps(spec))
    assert replica.stdout is not None
    while replica.stdout.readline() != "it waits\n":
        assert replica.poll() is None
    replica.send_signal(signal.SIGTERM)
    output, _ = replica.communicate(timeout=120)
    assert replica.returncode == 134
    assert f"asked to stop: so was the program, which ended with exit code {ended}" in output
    assert told(tmp_path)[0]["MASTER_ADDR"] == "127.0.0.1"
