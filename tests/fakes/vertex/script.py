"""A test's script for a run: how long each step takes, what it returns, how it fails, what it prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.fakes.vertex.work import Work

EXITED = (
    "The replica {replica} exited with a non-zero status of {status}. To find out more about why your job exited "
    "please check the logs: https://console.cloud.google.com/logs/viewer?project={number}&resource=ml_job%2Fjob_id%2F{job}"
)


@dataclass(frozen=True)
class Failure:
    """How a job fails. {replica}, {status}, {number} and {job} in `message` are replaced."""

    message: str = EXITED
    replica: str = "workerpool0-0"
    status: int = 1
    code: int = 3  # google.rpc.Code.INVALID_ARGUMENT

    def text(self, number: str, job: str) -> str:
        """Return the message for the project with this number."""
        filled = self.message
        for name, value in {"replica": self.replica, "status": self.status, "number": number, "job": job}.items():
            filled = filled.replace(f"{{{name}}}", str(value))
        return filled


@dataclass
class StepScript:
    """One task, by its name in the spec. `looks`: the number of polls before it ends.

    `logs` are lines or entries ({"severity", "message"}) by replica (`workerpool0-0`): one per poll, the rest when the
    task ends. `refused` is the job service's error when the task's job is created. `work` does the step's real work: it
    receives the task's parameters and returns URI and metadata of its artifacts by name. `job` makes what a launcher's
    job does, in place of `looks`, `failure` and `logs`.
    """

    looks: int = 1
    failure: Failure | None = None
    refused: Exception | None = None
    outputs: dict[str, Any] = field(default_factory=dict)
    logs: Mapping[str, list[str | dict[str, Any]]] = field(default_factory=dict)
    work: Callable[[Mapping[str, Any]], Mapping[str, tuple[str, dict[str, Any]]]] | None = None
    job: Callable[[], Work] | None = None


class Script:
    """The steps of future runs: `script["custom-training-job"].failure = Failure(…)`.

    `mails` are the e-mails that Google sent for them: the recipients, and the state of the run.
    """

    def __init__(self) -> None:
        self._steps: dict[str, StepScript] = {}
        self.mails: list[tuple[list[str], str]] = []

    def __getitem__(self, task: str) -> StepScript:
        return self._steps.setdefault(task, StepScript())

    def __setitem__(self, task: str, step: StepScript) -> None:
        self._steps[task] = step
