"""A TrainJob that has to wait, is refused by the cluster, or is lost: what the step says and does, and what is left."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Callable

import pytest

from slipway.components.step import WorkFailed
from slipway.components.train.trainjob import manifest, retries
from slipway.core.errors import UserError
from tests.components.train.trainjob.conftest import Step, meanwhile, pools, started
from tests.fakes.kubernetes.nodes import Node
from tests.fakes.kubernetes.store import JOBSETS, ROLES, TRAINJOBS, Object, has_condition

L4 = {"cloud.google.com/gke-accelerator": "nvidia-l4"}
GPU = Node("gpu", L4, {"nvidia.com/gpu": "present"}, {"cpu": "8", "nvidia.com/gpu": "2"})


def after(step: Step, text: str, work: Callable[[], object]) -> None:
    """Do something in the background once the step has said a text."""

    def wait() -> None:
        step.cluster.wait(lambda: text in step.log.getvalue())
        work()

    meanwhile(wait)


def test_a_trainjob_in_a_queue_of_kueue_says_so_until_it_is_admitted(step: Step) -> None:
    step.grant()
    step.cluster.installed.add("kueue")
    after(step, "waits in the queue team: TrainJob is suspended", lambda: step.cluster.queues.add("team"))
    assert step.run(pools("print('trained')", 2), queue="team", priority_class="high") == []
    assert step.log.getvalue().count("] trained") == 2
    step.cluster.wait(lambda: not step.cluster.left())


@pytest.mark.parametrize(
    ("settings", "said", "fix"),
    [
        (
            {"node_selector": L4, "resources": {"nvidia.com/gpu": "1"}},
            "workerpool0-0 (and 1 more) is waiting: 0/2 nodes are available: 2 node(s) didn't match Pod's node",
            lambda step: step.cluster.around.nodes.append(Node("gpu", L4, allocatable={"nvidia.com/gpu": "2"})),
        ),
        (
            {"node_selector": L4},
            "node(s) had untolerated taint {nvidia.com/gpu: present}",
            lambda step: GPU.taints.clear(),
        ),
        (
            {"priority_class": "high"},
            "no PriorityClass with name high was found",
            lambda step: step.cluster.around.priorities.add("high"),
        ),
        (
            {"service_account": "trainer"},
            'serviceaccount "trainer" not found',
            lambda step: step.cluster.around.accounts.add("trainer"),
        ),
        (
            {},
            'workerpool0-0 (and 1 more) is waiting: Pulling image "slipway:1"',
            lambda step: step.cluster.around.pulling.clear(),
        ),
    ],
)
def test_a_trainjob_whose_pods_cannot_start_says_why_and_trains_once_they_can(
    step: Step, settings: dict, said: str, fix: Callable[[Step], object]
) -> None:
    step.grant()
    if "taint" in said:
        GPU.taints["nvidia.com/gpu"] = "present"
        step.cluster.around.nodes.append(GPU)
    if "Pulling" in said:
        step.cluster.around.pulling.add("slipway:1")
    after(step, said, lambda: fix(step))
    assert step.run(pools("print('trained')", 2), **settings) == []
    assert step.log.getvalue().count(said) <= 2
    step.cluster.wait(lambda: not step.cluster.left())


def in_the_first_try(code: str) -> str:
    """Return a program that runs `code` in a replica's first try and does nothing in others."""
    begin = """
        import os, signal, sys, time
        from pathlib import Path
        tries = Path(os.environ["AIP_CHECKPOINT_DIR"]).parent / f"tries-{os.environ['HOSTNAME']}"
        if tries.exists():
            sys.exit()
        tries.touch()
    """
    return textwrap.dedent(begin) + textwrap.dedent(code)


def test_a_trainjob_of_which_a_node_is_drained_starts_again(step: Step) -> None:
    step.grant()
    code = in_the_first_try("""
        print("trained", flush=True)
        time.sleep(1000)
    """)

    def drain() -> None:
        step.cluster.wait(lambda: step.log.getvalue().count("] trained") == 2)
        step.cluster.delete_pod(step.running("workerpool1-0-0"))

    meanwhile(drain)
    (restart,) = step.run(pools(code, 2))
    assert restart.reason == "was stopped by SIGTERM"
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_replica_that_the_operator_stops_after_a_failure_is_not_the_cause(step: Step) -> None:
    step.grant()
    code = in_the_first_try("""
        def stop(*_):
            print("asked to stop: ended at step 7", flush=True)
            sys.exit(143)

        signal.signal(signal.SIGTERM, stop)
        print("trained", flush=True)
        time.sleep(1000)
    """)

    def kill() -> None:
        step.cluster.wait(lambda: step.log.getvalue().count("] trained") == 2)
        step.cluster.kubelets.kill(step.running("workerpool1-0-0"))

    meanwhile(kill)
    (restart,) = step.run(pools(code, 2))
    assert "[workerpool0-0] asked to stop" in step.log.getvalue()
    assert (restart.replica, restart.reason) == ("workerpool1-0", "was killed by SIGKILL")
    step.cluster.wait(lambda: not step.cluster.left())


def test_a_trainjob_that_someone_deletes_ends_the_step(step: Step) -> None:
    step.grant()

    def delete() -> None:
        step.cluster.wait(lambda: step.running("workerpool0-0-0"))
        (job,) = step.cluster.store.all(TRAINJOBS)
        step.cluster.store.delete(TRAINJOBS, job)

    meanwhile(delete)
    with pytest.raises(WorkFailed, match=r"The TrainJob digits-\S+ was deleted while it was running"):
        step.run(pools("import time; time.sleep(1000)", 2))
    step.cluster.wait(lambda: not step.cluster.left())


def test_the_replicas_of_a_trainjob_end_when_nobody_renews_its_lease(step: Step) -> None:
    """The pod of a step that was killed is kept for a day, and so is its TrainJob: its replicas end by themselves."""
    step.grant()
    step.cluster.kubelets.probe_speed = 600
    process = started(step, "'slipway' and time.sleep(1000)")
    time.sleep(0.5)
    assert step.running("workerpool1-0-0")
    process.kill()
    process.wait()
    step.cluster.end_step(step.pod, "Failed")
    os.utime(step.output / "lease", (time.time() - 700,) * 2)
    step.cluster.wait(lambda: any(has_condition(job, "Failed") for job in step.cluster.store.all(TRAINJOBS)))
    step.cluster.wait(lambda: not (step.running("workerpool0-0-0") or step.running("workerpool1-0-0")))


NEEDED = [
    (number, verb, resource)
    for number, rule in enumerate(manifest.RULES)
    for resource in rule["resources"]
    for verb in rule["verbs"]
]


@pytest.mark.parametrize(("number", "verb", "resource"), NEEDED)
def test_a_trainjob_needs_each_right_of_the_role(
    step: Step, monkeypatch: pytest.MonkeyPatch, number: int, verb: str, resource: str
) -> None:
    for limits in (retries.TRAINING, retries.ENDING):
        monkeypatch.setitem(limits, retries.DENIED, 10.0)
    step.grant()
    (role,) = step.cluster.store.all(ROLES)

    def withdraw(one: Object) -> None:
        rule = one["rules"][number]
        kept = [name for name in rule["resources"] if name != resource]
        less = {**rule, "resources": [resource], "verbs": [one for one in rule["verbs"] if one != verb]}
        one["rules"][number] = {**rule, "resources": kept}
        one["rules"].append(less)

    step.cluster.store.change(ROLES, role, withdraw)
    if resource == "events":
        step.cluster.around.accounts.clear()  # which pods cannot be created, only events tell
    code = """
        import os
        from pathlib import Path
        tried = Path(os.environ["AIP_CHECKPOINT_DIR"]).parent / f"tried-{os.environ['HOSTNAME']}"
        if not tried.exists():
            tried.touch()
            os.kill(os.getpid(), 9)
    """
    refused = rf"{verb} resource \"{resource}\"".replace("/", ".")
    with pytest.raises(UserError, match=refused) as denied:
        step.run(pools(code, 2))
    assert denied.value.fix == "slipway setup --target kubeflow --apply"
    step.cluster.delete_pod(step.pod)
    step.cluster.wait(lambda: not step.cluster.left())


@pytest.mark.parametrize("seed", range(1, 5))  # with 0, the first 17 calls succeed
def test_a_trainjob_trains_while_calls_of_the_api_fail(step: Step, seed: int) -> None:
    """A fifth of the calls fail, half of them after their work is done: there is one TrainJob, and none is left."""
    step.grant()
    step.cluster.faults.seed(seed)
    step.cluster.faults.share = 0.2
    assert step.run(pools("import time; print('trained'); time.sleep(0.5)", 2)) == []
    assert sum(step.cluster.faults.struck.values()) > 0
    assert step.cluster.store.created.count(JOBSETS) == 1
    assert step.log.getvalue().count("] trained") == 2
    step.cluster.wait(lambda: not step.cluster.left())
