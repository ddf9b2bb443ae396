"""A command that ends while it creates a job: what exists and costs money is found, and nothing is created twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import DeadlineExceeded

from slipway.pipelines.runs import record as runs
from tests.fakes.errors import ServiceError
from tests.fakes.google import FakeGoogle
from tests.pipelines.platforms.vertex.conftest import Slipway

pytestmark = pytest.mark.slow
RUN = ("run", "-c", "run.yaml", "--target", "vertex")
Ends = Callable[[BaseException], Callable[[], Any]]


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Ends:
    """Let the next submission end with an error while its request is on the way; returns what lets it arrive."""
    from slipway.pipelines.platforms.vertex import submission

    def let(error: BaseException) -> Callable[[], Any]:
        sent = submission.submit
        late: list[tuple[Any, ...]] = []

        def submit(*given: Any, requesting: Callable[[], None], **_: Any) -> None:
            requesting()
            late.append(given)
            monkeypatch.setattr(submission, "submit", sent)
            raise error

        monkeypatch.setattr(submission, "submit", submit)
        return lambda: sent(*late.pop())

    return let


def no_answer() -> BaseException:
    from slipway.pipelines.platforms.vertex.submission import UnansweredError

    error = UnansweredError()
    error.__cause__ = DeadlineExceeded("Deadline Exceeded")
    return error


def let_no_request_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    from slipway.pipelines.platforms.vertex import run

    for module in (runs, run):
        monkeypatch.setattr(module, "CREATION_TIME", timedelta(0))


def states(google: FakeGoogle) -> list[str]:
    return [job.state.name.removeprefix("PIPELINE_STATE_") for job in google.region.pipelines.jobs.values()]


def test_an_interrupted_run_is_found_and_cancelled(ready_google: FakeGoogle, slipway: Slipway, ends: Ends) -> None:
    arrive = ends(KeyboardInterrupt())
    interrupted = slipway(*RUN)
    assert interrupted.exit_code == 130
    assert "may have been submitted" in interrupted.output
    assert "watch:  slipway status --follow" in interrupted.output
    assert "stop:   slipway cancel" in interrupted.output
    for command in (("list",), ("status",), ("explain",)):
        assert "is being submitted: Vertex AI does not have it, but the request" in slipway(*command).output
    arrive()
    assert "is being submitted" not in slipway("status").output
    assert slipway("cancel").output.endswith(": cancelled\n")
    assert states(ready_google) == ["CANCELLED"]


def test_a_cancel_waits_for_the_request(
    ready_google: FakeGoogle, slipway: Slipway, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipway.pipelines.platforms.vertex import run

    arrive = ends(KeyboardInterrupt())
    slipway(*RUN)
    waits = iter([lambda: None, arrive])
    monkeypatch.setattr(run, "pause", lambda: next(waits, lambda: None)())
    assert slipway("cancel").output.endswith(": cancelled\n")
    assert states(ready_google) == ["CANCELLED"]


def test_a_request_that_never_arrives_is_final_after_two_answers(
    ready_google: FakeGoogle, slipway: Slipway, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(KeyboardInterrupt())
    slipway(*RUN)
    let_no_request_arrive(monkeypatch)
    before = ready_google.faults.calls["PipelineService.GetPipelineJob"]
    assert "it was never submitted" in slipway("status").output
    assert ready_google.faults.calls["PipelineService.GetPipelineJob"] == before + 2
    assert slipway("run", "--resume", "latest").exit_code == 0
    assert [name.rpartition("/")[2] for name in ready_google.region.pipelines.jobs] == [runs.find("latest").run_id]


def test_a_run_whose_request_had_no_answer_is_watched(
    ready_google: FakeGoogle, slipway: Slipway, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipway.pipelines.platforms.vertex import run

    arrive = ends(no_answer())
    waits = iter([lambda: None, arrive])
    monkeypatch.setattr(run, "pause", lambda: next(waits, lambda: None)())
    result = slipway(*RUN)
    assert result.exit_code == 0, result.output
    assert ", being submitted" in result.output
    assert "Waiting for it." in result.output
    assert states(ready_google) == ["SUCCEEDED"]


def test_of_a_run_that_is_interrupted_before_its_request_nothing_remains(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway, monkeypatch: pytest.MonkeyPatch
) -> None:
    from slipway.pipelines.platforms.vertex import submission

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    ready_google.region.pipelines.script["evaluate"].refused = ServiceError(403, "The caller does not have permission")
    assert slipway(*RUN).exit_code == 1
    before = json.loads(slipway("list", "--json").output)
    monkeypatch.setattr(submission, "compile_pipeline", interrupt)
    for command in (RUN, ("run", "--resume", "latest")):
        result = slipway(*command)
        assert (result.exit_code, "may have been submitted" in result.output) == (130, False)
        assert json.loads(slipway("list", "--json").output) == before
