"""A Kubeflow run's tasks as processes, each of which is a pod on a fake cluster.

kfp resolves their arguments and outputs, as it does locally. The volume's path is that of the claim's folder here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from kfp.local import executor_input_utils, executor_output_utils, io, placeholder_utils
from kfp.local.orchestrator.orchestrator_utils import OrchestratorUtils
from kfp.pipeline_spec.pipeline_spec_pb2 import ComponentSpec, ExecutorInput, PipelineSpec, PipelineTaskSpec

from slipway.core.values import whole_numbers
from tests.fakes.kubernetes.server import FakeKubernetes
from tests.fakes.kubernetes.store import Object

ROOT = Path(__file__).parents[2]
TAIL = 2000


@dataclass
class Process:
    """A running task: its process, its pod, and what kfp told it."""

    process: subprocess.Popen[bytes]
    pod: Object
    given: ExecutorInput
    log: Path


@dataclass
class Run:
    """The tasks of a run by name, each with the name of the group that it is in, and the values by group."""

    name: str
    executors: dict[str, Any]
    tasks: dict[str, tuple[str, PipelineTaskSpec, ComponentSpec]] = field(default_factory=dict)
    stores: dict[str, io.IOStore] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)


class KubeflowSteps:
    """Runs the tasks of all runs; logs and artifacts are in `folder`."""

    def __init__(self, cluster: FakeKubernetes, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self._runs: dict[str, Run] = {}

    def add(self, run_id: str, name: str, specification: PipelineSpec, values: dict[str, Any]) -> None:
        """Prepare a run with the values of its parameters."""
        executors = json_format.MessageToDict(specification.deployment_spec)["executors"]
        run = self._runs[run_id] = Run(name, executors)
        run.stores[""] = store = io.IOStore()
        for parameter, declared in specification.root.input_definitions.parameters.items():
            default = json_format.MessageToDict(declared.default_value)
            store.put_parent_input(parameter, values.get(parameter, default))

        def walk(dag: Any, group: str) -> None:
            for task, spec in dag.tasks.items():
                component = specification.components[spec.component_ref.name]
                run.tasks[task] = (group, spec, component)
                walk(component.dag, task)

        walk(specification.root.dag, "")

    def start(self, run_id: str, task: str) -> None:
        """Start a task; a group of tasks only passes its inputs on."""
        run = self._runs[run_id]
        group, spec, component = run.tasks[task]
        arguments = OrchestratorUtils.make_task_arguments(spec.inputs, run.stores[group])
        if component.HasField("dag"):
            run.stores[task] = io.IOStore()
            for name, value in arguments.items():
                run.stores[task].put_parent_input(name, value)
            return
        place = self._folder / run.name / task
        given = executor_input_utils.construct_executor_input(
            component, arguments, str(place), block_input_artifact=False
        )
        values = whole_numbers(executor_input_utils.executor_input_to_dict(given, component))
        container = run.executors[component.executor_label]["container"]
        command = placeholder_utils.replace_placeholders(
            [*container.get("command", []), *container.get("args", [])],
            values,
            pipeline_resource_name=run.name,
            task_resource_name=task,
            pipeline_root=str(self._folder),
            unique_pipeline_id=run_id,
        )
        place.mkdir(parents=True, exist_ok=True)
        pod = self.cluster.add_step(f"{run.name}-{task}")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **self.cluster.step_environment(pod)}
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, cwd=place, start_new_session=True
            )
        run.processes[task] = Process(process, pod, given, place / "log")

    def has_ended(self, run_id: str, task: str) -> bool:
        running = self._runs[run_id].processes.get(task)
        return running is None or running.process.poll() is not None

    def finish(self, run_id: str, task: str) -> str | None:
        """Keep the outputs of a task that has ended; return the end of its log if it failed."""
        run = self._runs[run_id]
        running = run.processes.get(task)
        if running is None:
            return None
        code = running.process.wait()
        self.cluster.end_step(running.pod, "Failed" if code else "Succeeded")
        if code:
            return f"exit code {code}: {running.log.read_text()[-TAIL:]}"
        group, _, component = run.tasks[task]
        for name, value in executor_output_utils.get_outputs_for_task(running.given, component).items():
            run.stores[group].put_task_output(task, name, value)
        return None

    def _last(self, task: str) -> Process | None:
        return list(self._runs.values())[-1].processes.get(task)

    def log(self, task: str) -> str:
        """Return the output of a task of the last run; "" if it has not started."""
        started = self._last(task)
        return started.log.read_text() if started else ""

    def kill(self, task: str) -> None:
        """Kill all processes of a task's pod."""
        started = self._last(task)
        assert started is not None
        os.killpg(started.process.pid, signal.SIGKILL)

    def stop(self, run_id: str) -> None:
        """Send SIGTERM to a run's tasks, as a terminated run does, and wait for their end."""
        running = [task.process for task in self._runs[run_id].processes.values() if task.process.poll() is None]
        for process in running:
            process.terminate()
        for process in running:
            process.wait()

    def stop_all(self) -> None:
        for run_id in self._runs:
            self.stop(run_id)
