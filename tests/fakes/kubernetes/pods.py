"""The kubelets: each bound pod runs as a process group, with the environment of a container in a cluster.

A process shares this machine with the others, so the paths and host names of a pod are replaced in its command, its
arguments and its environment: the path of a volume by the claim's folder, and a pod's host name by 127.0.0.1, with a
free port in place of each port.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from slipway.core.exit_codes import status_of
from slipway.core.parent_death import dying_with_parent
from tests.fakes.kubernetes.nodes import Surroundings
from tests.fakes.kubernetes.store import JOBS, PODS, ApiError, Object, Store, now, set_condition
from tests.ports import free_port

GRACE_SECONDS = 30
ROOT = Path(__file__).parents[3]
# Of this process's variables, those that stand for what an image has, or limit the load of this machine.
IMAGE_VARIABLES = ("PATH", "HOME", "LANG", "OMP_NUM_THREADS", "TF_CPP_MIN_LOG_LEVEL", "CUDA_VISIBLE_DEVICES")


@dataclass
class Container:
    """A pod's process with its output so far; `ended` when it has a `code`."""

    process: subprocess.Popen[str]
    started: str
    lines: list[tuple[str, str]] = field(default_factory=list)
    code: int | None = None
    reason: str = ""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def end(self, code: int) -> None:
        with self.changed:
            self.code = code
            self.changed.notify_all()


class Kubelets:
    """Starts the pods that are bound to a node, ends deleted ones, and has their logs.

    `service`: the variables of every container, with the address of the API server. `probe_speed`: how much faster
    than real time the periods of probes pass.
    """

    probe_speed = 1.0

    def __init__(self, store: Store, around: Surroundings) -> None:
        self.store = store
        self.service: dict[str, str] = {}
        self._around = around
        self._containers: dict[str, Container] = {}
        self._ending: set[str] = set()
        self._again: set[str] = set()
        self._ports: dict[str, int] = {}
        self._scratch: dict[str, Path] = {}

    def reconcile(self) -> None:
        for pod in self.store.all(PODS):
            uid = pod["metadata"]["uid"]
            if "deletionTimestamp" in pod["metadata"]:
                if uid not in self._ending:
                    self._ending.add(uid)
                    threading.Thread(target=self._terminate, args=(pod,), daemon=True).start()
            elif uid in self._again or (pod["spec"].get("nodeName") and uid not in self._containers):
                self._again.discard(uid)
                self._start(pod)

    def kill(self, pod: Object, reason: str = "Error") -> None:
        """Kill a pod's processes at once (SIGKILL); with the reason OOMKilled, as the kernel does."""
        container = self._containers[pod["metadata"]["uid"]]
        container.reason = reason
        _signal(container, signal.SIGKILL)

    def log(self, pod: Object, *, follow: bool) -> Iterator[tuple[str, str]]:
        """Yield the time and text of each line; with `follow`, until the container ends."""
        container = self._containers.get(pod["metadata"]["uid"])
        name = pod["spec"]["containers"][0]["name"]
        if container is None:
            state = pod["status"].get("containerStatuses", [{}])[0].get("state", {})
            reason = state.get("waiting", {}).get("reason", "ContainerCreating")
            where = f'container "{name}" in pod "{pod["metadata"]["name"]}"'
            raise ApiError(400, f"{where} is waiting to start: {reason}")
        return _lines(container, follow)

    def outputs(self) -> list[str]:
        """Return the last lines of all pods."""
        return [text for container in list(self._containers.values()) for _, text in container.lines[-20:]]

    def stop(self) -> None:
        for container in self._containers.values():
            _signal(container, signal.SIGKILL)
        for container in self._containers.values():
            container.process.wait()
        for folder in self._scratch.values():
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, pod: Object) -> None:
        specification = pod["spec"]
        if len(specification["containers"]) > 1 or specification.get("initContainers"):
            raise NotImplementedError("pods of several containers")
        container = specification["containers"][0]
        uid, name = pod["metadata"]["uid"], container["name"]
        if container["image"] in self._around.pulling:
            # The text and state are the kubelet's: pkg/kubelet/images/image_manager.go, pkg/kubelet/kubelet_pods.go.
            self.store.say(PODS, pod, "Pulling", f'Pulling image "{container["image"]}"', "Normal")
            self._set_state(pod, name, {"waiting": {"reason": "ContainerCreating"}}, "Pending")
            return
        own = self._environment(pod, container)
        folders = self._folders(pod, container)
        command = [_expand(part, own) for part in [*container.get("command", []), *container.get("args", [])]]
        image = {key: os.environ[key] for key in IMAGE_VARIABLES if key in os.environ} | {"PYTHONPATH": str(ROOT)}
        environment = image | {key: self._translate(value, folders) for key, value in own.items()}
        process = subprocess.Popen(
            dying_with_parent(self._program(command, folders)),
            env=environment,
            cwd=container.get("workingDir") or self._scratch_folder(uid, "work"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._containers[uid] = running = Container(process, now())
        self._set_state(pod, name, {"running": {"startedAt": running.started}}, "Running")
        threading.Thread(target=self._watch, args=(pod, name, running), daemon=True).start()
        if probe := container.get("livenessProbe"):
            program = self._program(probe["exec"]["command"], folders)
            threading.Thread(target=self._probe, args=(pod, running, probe, program, environment), daemon=True).start()

    def _probe(
        self, pod: Object, container: Container, probe: Object, program: list[str], environment: dict[str, str]
    ) -> None:
        """Run a liveness probe periodically; end the container after so many failures in a row."""
        failures = 0
        pause = probe.get("initialDelaySeconds", 0)
        while failures < probe.get("failureThreshold", 3):
            with container.changed:
                if container.changed.wait_for(lambda: container.code is not None, pause / self.probe_speed):
                    return
            pause = probe.get("periodSeconds", 10)
            failed = subprocess.run(program, env=environment, capture_output=True, check=False).returncode
            failures = failures + 1 if failed else 0
        name = pod["spec"]["containers"][0]["name"]
        self.store.say(PODS, pod, "Killing", f"Container {name} failed liveness probe, will be restarted", "Normal")
        self._end(container, pod["spec"].get("terminationGracePeriodSeconds", GRACE_SECONDS))

    def _program(self, command: list[str], folders: dict[str, Path]) -> list[str]:
        """Return a command with the paths and addresses of this machine, and this interpreter as Python."""
        program = [self._translate(part, folders) for part in command]
        return [sys.executable, *program[1:]] if program[:1] in (["python"], ["python3"]) else program

    def _watch(self, pod: Object, name: str, container: Container) -> None:
        """Wait for the end of a container's main process, with which all others end, and report it."""
        reader = threading.Thread(target=_read, args=(container,), daemon=True)
        reader.start()
        code = status_of(container.process.wait())
        _signal(container, signal.SIGKILL)
        reader.join()
        reason = container.reason or ("Completed" if code == 0 else "Error")
        ended = {"exitCode": code, "reason": reason, "startedAt": container.started, "finishedAt": now()}
        again = pod["spec"].get("restartPolicy", "Always")
        if (again == "Always" or (again == "OnFailure" and code)) and pod["metadata"]["uid"] not in self._ending:
            count = self._set_state(pod, name, {"waiting": {"reason": "CrashLoopBackOff"}}, "Running", ended)
            container.end(code)
            time.sleep(0.1 * count)
            self._again.add(pod["metadata"]["uid"])  # a process dies with the thread that started it
            return
        self._set_state(pod, name, {"terminated": ended}, "Failed" if code else "Succeeded")
        container.end(code)

    def _terminate(self, pod: Object) -> None:
        """End a deleted pod: SIGTERM to its main process, SIGKILL after the grace period; then delete its object."""
        container = self._containers.get(pod["metadata"]["uid"])
        if container is not None:
            self._end(container, pod["metadata"].get("deletionGracePeriodSeconds", 0))
        self.store.remove(PODS, pod)

    def _end(self, container: Container, seconds: float) -> None:
        """Send SIGTERM to a container's main process, and SIGKILL to all of it after some seconds; wait for its end."""
        with container.changed:
            if container.code is None:
                container.process.terminate()
            container.changed.wait_for(lambda: container.code is not None, seconds)
        _signal(container, signal.SIGKILL)
        with container.changed:
            container.changed.wait_for(lambda: container.code is not None)

    def _set_state(self, pod: Object, name: str, state: Object, phase: str, previous: Object | None = None) -> int:
        """Set a container's state and its pod's phase; return the number of its restarts."""

        def change(one: Object) -> None:
            status = one["status"]
            old = status.get("containerStatuses", [{}])[0]
            made = {"name": name, "state": state, "ready": "running" in state, "image": "", "imageID": ""}
            made["restartCount"] = old.get("restartCount", 0) + (previous is not None)
            if last := ({"terminated": previous} if previous else old.get("lastState")):
                made["lastState"] = last
            status["phase"] = phase
            status.setdefault("startTime", now())
            status["podIP"] = "127.0.0.1"
            status["containerStatuses"] = [made]
            set_condition(status, "Ready", str("running" in state), "", "")

        changed = self.store.change(PODS, pod, change)
        return int(changed["status"]["containerStatuses"][0]["restartCount"]) if changed else 0

    def _environment(self, pod: Object, container: Object) -> dict[str, str]:
        """Return the variables that Kubernetes sets: its service, the host's name, and the container's in order."""
        environment = {**self.service, "HOSTNAME": pod["spec"].get("hostname", pod["metadata"]["name"])}
        if container.get("envFrom"):
            raise NotImplementedError("envFrom of containers")
        for variable in container.get("env", []):
            if "valueFrom" not in variable:
                value = _expand(variable.get("value") or "", environment)
            elif "fieldRef" in variable["valueFrom"]:
                value = _field(pod, variable["valueFrom"]["fieldRef"]["fieldPath"])
            else:
                raise NotImplementedError("variables from secrets and config maps")
            environment[variable["name"]] = value
        return environment

    def _folders(self, pod: Object, container: Object) -> dict[str, Path]:
        """Return the folder on this machine for each path at which the container has a volume."""
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        folders = {}
        for mount in container.get("volumeMounts", []):
            claim = volumes[mount["name"]].get("persistentVolumeClaim", {}).get("claimName")
            here = self._around.claims[claim] if claim else self._scratch_folder(pod["metadata"]["uid"], mount["name"])
            folders[mount["mountPath"].rstrip("/")] = here / mount.get("subPath", "")
        return folders

    def _scratch_folder(self, uid: str, name: str) -> Path:
        if uid not in self._scratch:
            self._scratch[uid] = Path(tempfile.mkdtemp(prefix="pod-", dir=self._around.folder))
        folder = self._scratch[uid] / name
        folder.mkdir(exist_ok=True)
        return folder

    def _translate(self, text: str, folders: dict[str, Path]) -> str:
        for path in sorted(folders, key=len, reverse=True):
            text = re.sub(rf"(?<![\w/.-]){re.escape(path)}(?![\w.-])", str(folders[path]), text)
        for job in self.store.all(JOBS):
            jobset = job["metadata"]["ownerReferences"][0]["uid"]
            domain = re.escape(job["spec"]["template"]["spec"]["subdomain"])
            host = rf"(?<![\w.-])({re.escape(job['metadata']['name'])}-\d+)\.{domain}(?:\.[a-z][a-z0-9.-]*)?(:\d+)?\b"
            text = re.sub(host, lambda it, jobset=jobset: self._address(jobset, it[1], it[2]), text)
        return text

    def _address(self, jobset: str, host: str, port: str | None) -> str:
        if not port:
            return "127.0.0.1"
        key = f"{jobset} {host}{port}"
        if key not in self._ports:
            self._ports[key] = free_port()
        return f"127.0.0.1:{self._ports[key]}"


def _read(container: Container) -> None:
    for line in container.process.stdout or ():
        with container.changed:
            container.lines.append((_timestamp(), line.rstrip("\n")))
            container.changed.notify_all()


def _lines(container: Container, follow: bool) -> Iterator[tuple[str, str]]:
    """Yield the lines of a container so far; with `follow`, until it ends."""
    sent = 0
    ended = not follow
    while True:
        with container.changed:
            if not ended and len(container.lines) == sent:
                container.changed.wait(0.5)
            found, ended = container.lines[sent:], ended or container.code is not None
        yield from found
        sent += len(found)
        if ended and not found:
            return


def _expand(text: str, variables: dict[str, str]) -> str:
    """Replace $(NAME) by a variable that is known, and $$ by $, as Kubernetes does."""
    return re.sub(r"\$\$|\$\(([\w.-]+)\)", lambda it: "$" if it[0] == "$$" else variables.get(it[1], it[0]), text)


def _field(pod: Object, path: str) -> str:
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(pod["metadata"].get(match[1], {}).get(match[2], ""))
    value: object = pod
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return str(value)


def _signal(container: Container, number: int) -> None:
    try:
        os.killpg(container.process.pid, number)
    except ProcessLookupError:
        return


def _timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f") + "000Z"
