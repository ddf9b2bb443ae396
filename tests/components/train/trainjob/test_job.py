"""Training by a TrainJob: the replicas' environment, restarts, errors, and that nothing is left on the cluster."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway.components.plan_training.plan import plan_training
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.step import WorkFailed
from slipway.components.train.local_cluster import run_local_cluster
from slipway.components.train.restarts import Restart
from slipway.components.train.trainjob import manifest
from slipway.components.train.trainjob.manifest import LEASE_FILE, TrainJobSettings
from slipway.components.worker_pools import WorkerPool
from slipway.core.errors import ERROR_PREFIX, UserError
from slipway.pipelines.hardware.rules import parse
from slipway.trainer.checkpoint.store import pointed_step
from slipway.trainer.config import ModelSettings, TrainSettings
from tests.components.train.trainjob.conftest import Step, meanwhile, pools, started, weights
from tests.fakes.kubernetes.store import TRAINJOBS


def test_trainjob_replicas_are_told_what_vertex_tells(step: Step) -> None:
    step.grant()
    code = """
        import json, os
        print("told", json.dumps({k: v for k, v in os.environ.items()
            if k in ("TF_CONFIG", "CLUSTER_SPEC") or k.startswith(("AIP_", "SLIPWAY_"))}))
    """
    assert step.run(pools(code)) == []
    lines = [line.partition("] told ") for line in step.log.getvalue().splitlines() if "] told " in line]
    seen = {name.removeprefix("["): json.loads(text) for name, _, text in lines}
    assert set(seen) == {"workerpool0-0", "workerpool1-0", "workerpool1-1"}
    config = json.loads(seen["workerpool1-1"]["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 1}
    assert [len(config["cluster"][kind]) for kind in ("chief", "worker")] == [1, 2]
    assert json.loads(seen["workerpool1-1"]["CLUSTER_SPEC"])["task"] == {"type": "workerpool1", "index": 1}
    assert json.loads(seen["workerpool0-0"]["CLUSTER_SPEC"])["task"] == {"type": "workerpool0", "index": 0}
    assert seen["workerpool1-0"]["AIP_MODEL_DIR"] == f"{step.output}/model"
    step.cluster.wait(lambda: not step.cluster.left())


def digits(volume: Path, engine: str = "tensorflow") -> list[WorkerPool]:
    """Return the plan of a training on two replicas of two devices, with its data set on the volume."""
    prepared = prepare(DataSettings(source="digits", store=str(volume / "datasets")), 4)
    train = {
        "engine": engine,
        "steps": 300,
        "batch_size": 32,
        "augment": {"shift": 1},
        "checkpoint": {"every_steps": 20, "every_seconds": None},
    }
    model = ModelSettings(builder="slipway.trainer.models.digits:build")
    given = TrainSettings.model_validate(train)
    hardware = parse("cpu*2").worker_pools()
    planned = plan_training(hardware, 2, prepared.manifest, prepared.uri, model, given, "slipway:1").worker_pool_specs
    for pool in planned:
        pool["container_spec"]["env"] = [{"name": "SLIPWAY_VIRTUAL_DEVICES", "value": "2"}]
    return planned


def train_here_and_disturbed(step: Step, planned: list[WorkerPool], disturb: Callable[[], object]) -> list[Restart]:
    """Train on this machine, and by a TrainJob that is disturbed: with the same weights; return the restarts."""
    step.grant()
    here = io.StringIO()
    run_local_cluster(planned, step.volume / "here", log=here)
    disturbing = meanwhile(disturb)
    restarts = step.run(planned)
    disturbing.join()
    assert len(weights(here)) == 1
    assert weights(step.log) == weights(here)
    step.cluster.wait(lambda: not step.cluster.left())
    return restarts


def wait_for_checkpoint(step: Step, number: int) -> None:
    step.cluster.wait(lambda: (pointed_step(step.output / "checkpoints") or 0) >= number, 120)


def train_here_and_with_a_killed_pod(step: Step, planned: list[WorkerPool]) -> None:
    """Train on this machine, and by a TrainJob of which a pod is killed: with the same weights."""

    def kill() -> None:
        wait_for_checkpoint(step, 40)
        step.cluster.kubelets.kill(step.running("workerpool1-0-0"))

    (restart,) = train_here_and_disturbed(step, planned, kill)
    assert (restart.replica, restart.reason) == ("workerpool1-0", "was killed by SIGKILL")
    assert restart.step >= 40


@pytest.mark.long
def test_trainjob_of_which_a_pod_is_killed_ends_with_the_weights_of_the_same_layout_here(step: Step) -> None:
    train_here_and_with_a_killed_pod(step, digits(step.volume))
    assert (step.output / "model" / "model.json").is_file()


def test_a_users_error_in_a_trainjob_ends_it_at_once(step: Step) -> None:
    step.grant()
    said = ERROR_PREFIX + json.dumps(UserError("The learning rate is negative.", fix="set it").as_dict())
    code = f"""
        import os, time
        if "workerpool1" in os.environ["CLUSTER_SPEC"].rpartition("task")[2] and os.environ["SLIPWAY_REPLICA"] == "1":
            print({said!r}, flush=True)
            raise SystemExit(1)
        time.sleep(1000)
    """
    with pytest.raises(UserError, match="learning rate is negative"):
        step.run(pools(code))
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_trainjob_whose_storage_was_unavailable_is_tried_again(step: Step) -> None:
    step.grant()
    said = ERROR_PREFIX + json.dumps(UserError("The storage is unavailable: Input/output error.").as_dict())
    code = f"""
        import os, pathlib
        first = pathlib.Path(os.environ["AIP_MODEL_DIR"]).parent / "first"
        if not first.exists():
            first.touch()
            print({said!r}, flush=True)
            raise SystemExit(75)
    """
    (restart,) = step.run(pools(code, 1)[:1])
    assert restart.reason == "failed with exit code 75: The storage is unavailable: Input/output error"


def test_a_trainjob_gives_up_after_as_many_restarts_as_are_allowed(step: Step) -> None:
    step.grant()
    code = """
        import json, os, time
        if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief":
            os.kill(os.getpid(), 9)
        time.sleep(1000)
    """
    with pytest.raises(WorkFailed, match="workerpool0-0 was killed by SIGKILL, for the 3rd time"):
        step.run(pools(code, 2), at_most=2)
    assert step.log.getvalue().count("all start again") == 2
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_stopped_step_deletes_its_trainjob(step: Step) -> None:
    step.grant()
    process = started(step)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=180) == 128 + signal.SIGTERM
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_killed_steps_trainjob_is_deleted_with_its_pod_or_replaced_by_the_next_step(step: Step) -> None:
    step.grant()
    process = started(step)
    process.kill()
    process.wait()
    assert (step.output / LEASE_FILE).is_file()
    step.become(step.cluster.add_step("train-step-2"))
    assert step.run(pools("print('trained')", 2)) == []
    assert "replacing the TrainJob of an earlier attempt" in step.log.getvalue()
    step.cluster.wait(lambda: not step.cluster.left())
    process = started(step)
    process.kill()
    process.wait()
    step.cluster.delete_pod(step.pod)
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_trainjob_without_the_operator_or_the_rights_is_refused_with_the_fix(step: Step) -> None:
    step.grant()
    step.cluster.installed.clear()
    with pytest.raises(UserError, match="Kubeflow Trainer is not installed") as absent:
        step.run(pools("pass"))
    assert "kubectl apply --server-side" in str(absent.value.fix)
    step.cluster.installed.add("trainer")
    step.become(step.cluster.add_step("train-step-2", "default"))
    with pytest.raises(UserError, match="does not allow") as denied:
        step.run(pools("pass"))
    assert denied.value.fix == "slipway setup --target kubeflow --apply"
    assert "could not delete" not in step.log.getvalue()


@pytest.mark.parametrize(("age", "is_alive"), [(0, True), (700, False), (None, False)])
def test_the_probe_of_a_trainjobs_pod_needs_only_a_shell(tmp_path: Path, age: float | None, is_alive: bool) -> None:
    """Without find and grep, an old lease does not stop the pod, but a deleted one does."""
    lease, tools = tmp_path / "lease $(A)", tmp_path / "tools"
    if age is not None:
        lease.touch()
        os.utime(lease, (time.time() - age,) * 2)
    container = manifest._pod(pools("pass")[0], [], str(tmp_path), TrainJobSettings(volume="v", folder="/v"))
    shell, *given = container["containers"][0]["livenessProbe"]["exec"]["command"]
    assert shell == "sh"
    assert not any("$(" in argument for argument in given)  # Kubernetes would replace it
    given[-1] = str(lease)
    tools.mkdir()
    without = {"PATH": str(tools)}
    assert (subprocess.run(["/bin/sh", *given], env=without, check=False, capture_output=True).returncode == 0) is (
        age is not None
    )
    for tool in ("find", "grep"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    assert (subprocess.run(["/bin/sh", *given], env=without, check=False).returncode == 0) is is_alive


def test_each_host_of_a_slice_is_a_pod_of_the_trainjob_with_the_same_cluster(step: Step) -> None:
    step.grant()
    (pool, _) = pools("import os; print('told', os.environ['SLIPWAY_REPLICA'], os.environ['CLUSTER_SPEC'])", 2)
    pool["container_spec"]["env"] = [{"name": "SLIPWAY_HOSTS", "value": "2"}]
    step.run([pool])
    told = sorted(line for line in step.log.getvalue().splitlines() if "told" in line)
    assert [line.split()[:3] for line in told] == [
        ["[workerpool0-0-host0]", "told", "0"],
        ["[workerpool0-0-host1]", "told", "1"],
    ]
    first, second = (json.loads(line.partition(" {")[1] + line.partition(" {")[2]) for line in told)
    assert first == second
    assert len(first["cluster"]["workerpool0"]) == 1


def test_text_with_dollars_reaches_the_replicas_of_a_trainjob_unchanged(step: Step) -> None:
    step.grant()
    (pool, _) = pools("import os, sys; print('told', sys.argv[1], os.environ['PATTERN'])", 2)
    pool["container_spec"]["args"] = ["$(PATTERN)$$x"]
    pool["container_spec"]["env"] = [{"name": "PATTERN", "value": "$(HOME)$"}]
    step.run([pool])
    assert "told $(PATTERN)$$x $(HOME)$" in step.log.getvalue()


def test_a_trainjob_trains_in_a_profile_with_sidecars_that_forbids_root(step: Step) -> None:
    step.grant()
    step.cluster.around.restricted = step.cluster.around.istio = True
    assert step.run(pools("print('trained')", 2), run_as_user=65534) == []
    assert step.log.getvalue().count("] trained") == 2


def test_a_trainjob_that_kueue_suspends_while_it_runs_is_followed_again_once_it_is_admitted(step: Step) -> None:
    step.grant()
    step.cluster.installed.add("kueue")
    step.cluster.queues.add("team")
    code = """
        import os, pathlib, time
        name = os.environ["CLUSTER_SPEC"].rpartition("workerpool")[2][0]
        first = pathlib.Path(os.environ["AIP_MODEL_DIR"]).parent / f"first-{name}"
        if not first.exists():
            first.touch()
            time.sleep(1000)
        print("trained")
    """

    def preempt() -> None:
        step.cluster.wait(lambda: all((step.output / f"first-{number}").exists() for number in (0, 1)))
        step.cluster.queues.clear()
        (job,) = step.cluster.store.all(TRAINJOBS)
        step.cluster.store.change(TRAINJOBS, job, lambda it: it["spec"].update(suspend=True))
        step.cluster.wait(lambda: "waits in the queue team" in step.log.getvalue())
        step.cluster.queues.add("team")

    preempting = meanwhile(preempt)
    assert step.run(pools(code, 2), queue="team") == []
    preempting.join()
    assert step.log.getvalue().count("] trained") == 2
