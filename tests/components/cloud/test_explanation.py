"""What explains a failed job: the service's words, and how the failed replica's program ended; other lines never."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from google.cloud import aiplatform_v1 as vertex
from google.rpc import status_pb2

from slipway.components.cloud import explanation
from slipway.components.cloud.explanation import Explanation
from slipway.components.cloud.known_errors.table import KNOWN_ERRORS
from slipway.components.cloud.logs import LogLine
from slipway.components.cloud.tracebacks import TRACEBACK
from tests.fidelity.error_sentences import PROGRAMS, SERVICES

JOB = "projects/1/locations/europe-west4/customJobs/7"
EXITED = "The replica {replica} exited with a non-zero status of {status}. To find out more about why your job exited "
EXITED += "please check the logs: https://console.example/x"
FACTS: dict[str, str | None] = {"project": "p", "region": "europe-west4", "account": "runner@p.iam.gserviceaccount.com"}
LOGS_FIX = "slipway logs run-1 --step train"
MISTAKE = [TRACEBACK, '  File "/app/demand.py", line 61, in <module>', "    train(rows)", "KeyError: 'store_id'"]
Logs = Mapping[str, Sequence[str]]


class Reader:
    """Reads the lines that a test has written."""

    logs: ClassVar[Logs] = {}

    def __init__(self, _connection: object) -> None:
        pass

    def read(self, _jobs: Sequence[str]) -> list[LogLine]:
        now = datetime.now(UTC)
        return [LogLine(now, "7", name, "INFO", text) for name, lines in self.logs.items() for text in lines]


def explained(
    monkeypatch: pytest.MonkeyPatch, message: str, logs: Logs, facts: Mapping[str, str | None] = FACTS, **job: Any
) -> Explanation:
    """Return the explanation of a run whose training job failed with a message of the service, and these logs."""
    monkeypatch.setattr(explanation, "LogReader", Reader)
    monkeypatch.setattr(Reader, "logs", logs)
    failed = vertex.CustomJob(name=JOB, **{"state": vertex.JobState.JOB_STATE_FAILED, **job})
    failed.error = status_pb2.Status(code=3, message=message)
    resource = {"resources": [{"resourceType": "CustomJob", "resourceUri": f"https://x/v1/{JOB}"}]}
    task = vertex.PipelineTaskDetail(task_name="train", state="FAILED", end_time=datetime.now(UTC))
    task.execution = vertex.Execution(metadata={"gcp_resources": "", "output:gcp_resources": json.dumps(resource)})
    pipeline = vertex.PipelineJob(job_detail=vertex.PipelineJobDetail(task_details=[task]))
    connection = SimpleNamespace(jobs=SimpleNamespace(get_custom_job=lambda name: failed), storage=None)
    return explanation.explain(connection, pipeline, "run-1", facts, lambda name: name)  # type: ignore[arg-type]


def exited(status: int = 1, replica: str = "workerpool0-0") -> str:
    return EXITED.format(status=status, replica=replica)


def ended(text: str) -> list[str]:
    """Return the log of a program that an exception ended."""
    return ["starting", TRACEBACK, '  File "/app/task.py", line 8, in <module>', "    train()", *text.splitlines()]


ROWS = {row.name: row for row in KNOWN_ERRORS}
ALL = [(name, text) for name, _, text in PROGRAMS]


@pytest.mark.parametrize(("name", "text"), ALL, ids=[f"{name} {n}" for n, (name, _) in enumerate(ALL)])
def test_what_ended_the_failed_replica_is_explained_with_its_fix(monkeypatch, name: str, text: str):
    lines = text.splitlines() if ROWS[name].said_by == "line" else ended(text)
    found = explained(monkeypatch, exited(), {"workerpool0-0": lines, "workerpool1-0": ["waiting"]})
    assert "exited with" not in found.message
    assert found.fix != LOGS_FIX
    assert not found.moves
    assert "{" not in found.message + str(found.fix)
    quoted = explained(monkeypatch, f"{exited()[:60]} Termination reason: Error. \n" + "\n".join(ended(text)[1:]), {})
    if ROWS[name].said_by != "line":  # a traceback that only the service quotes
        assert quoted.message == found.message


SENTENCES = [*((name, text) for name, _, text in SERVICES), *ALL]


@pytest.mark.parametrize(("name", "text"), SENTENCES, ids=[f"{name} {n}" for n, (name, _) in enumerate(SENTENCES)])
def test_the_same_words_in_a_programs_text_explain_nothing(monkeypatch, name: str, text: str):
    """A message that was handled, a value that is printed, an exception's own text: none is what ended the job."""
    line = " ".join(text.split())
    for lines in (
        [f"INFO retrying after {line}", *MISTAKE],
        [f"2026-11-28 10:00:00,000 WARNING {line}", *MISTAKE],
        [f"features: PRICE, {line}", *MISTAKE],
        ended(f"ValueError: cannot parse {line!r}"),
        ended(f"ValueError: {line}"),
        ended(f"RuntimeError: bad row:\n{text}"),
        [*ended(text), "continuing with half of the batch", *MISTAKE],
        [*text.splitlines(), *MISTAKE],
        [f"error: {line}"],
    ):
        if lines[-1] == f"ValueError: {line}" and line.startswith("ValueError: "):
            continue
        found = explained(monkeypatch, exited(), {"workerpool0-0": lines})
        assert (found.fix, found.moves) == (LOGS_FIX, ()), lines
        assert found.message == "The replica workerpool0-0 exited with a non-zero status of 1."
    other = explained(monkeypatch, exited(), {"workerpool0-0": MISTAKE, "workerpool1-0": ended(text)})
    assert other.fix == LOGS_FIX, "of a replica that the service does not name"


@pytest.mark.parametrize("name", [row.name for row in KNOWN_ERRORS if row.moves])
def test_only_the_services_own_words_move_a_run(monkeypatch, name: str):
    """Words that move a run, in the service's message, in its log, and where it quotes the program."""
    text = next(sentence for said, _, sentence in SERVICES if said == name)
    assert explained(monkeypatch, text, {}).moves == ROWS[name].moves
    if ROWS[name].said_by == "service":
        assert explained(monkeypatch, "Job failed.", {"service": ["Job is running.", text]}).moves == ROWS[name].moves
    quoting = f"Termination reason: Error. \n{TRACEBACK}\n  [...]\nValueError: {text}"
    for message, logs in (
        (f"{exited()[:60]} {quoting}", {}),
        (exited(), {"service": [*f"{exited()[:60]} {quoting}".splitlines(), "Job failed."]}),
        (exited(), {"workerpool0-0": [text, *MISTAKE]}),
        ("Job failed.", {"workerpool0-0": [text, *MISTAKE]}),
        (f"{exited()[:60]} Termination reason: Error. {text}", {}),
    ):
        assert explained(monkeypatch, message, logs).moves == (), (message, logs)


def test_an_earlier_try_of_the_service_is_not_why_the_program_failed(monkeypatch):
    """The job's log has all tries: GoogleCloudPlatform/t5x-on-vertex-ai#2."""
    logs = {"service": ["Internal error occurred for the current attempt.", "Job failed."], "workerpool0-0": MISTAKE}
    found = explained(monkeypatch, exited(), logs)
    assert (found.fix, found.moves) == (LOGS_FIX, ())
    assert str(found.traceback).endswith("KeyError: 'store_id'")


CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 10.00 GiB. GPU 0 has a total capacity of 40.00 GiB "
    "of which 1.12 GiB is free. Including non-PyTorch memory, this process has 38.00 GiB memory in use."
)
HBM = (
    "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
    "space hbm. Used 49.34G of 32.00G hbm. Exceeded hbm capacity by 17.34G."
)
XLA = "jaxlib._jax.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."


@pytest.mark.parametrize(
    ("text", "batch", "fix"),
    [
        (
            CUDA,
            ("train.batch_size", "256"),
            "at most about 213 of 256 fit by these numbers: --set train.batch_size=128",
        ),
        (HBM, ("--batch-size", "64"), "about 41 of 64 fit by these numbers: --batch-size 32 in train.arguments"),
        (XLA, ("train.batch_size", "64"), "a smaller batch: --set train.batch_size=32;"),
        (XLA, (None, None), "a smaller batch: --set train.batch_size=N, or the option of the custom program"),
    ],
)
def test_without_memory_the_batch_that_fits_is_named(monkeypatch, text: str, batch: tuple[str | None, ...], fix: str):
    facts = {**FACTS, "batch_option": batch[0], "batch": batch[1]}
    assert fix in str(explained(monkeypatch, exited(), {"workerpool0-0": ended(text)}, facts).fix)


def test_one_of_a_replicas_processes_is_explained_not_its_launcher(monkeypatch):
    """Torch names the process in front of each line; torchrun ends with an exception of its own."""
    lines = [f"[rank{n}]: {line}" for n, text in ((1, XLA), (0, "KeyError: 1")) for line in ended(text)[1:]]
    lines += ended("torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n=====\ntrain.py FAILED")
    found = explained(monkeypatch, exited(), {"workerpool0-0": lines})
    assert found.message == "The batch does not fit into the accelerator's memory."
    assert str(found.traceback).splitlines()[-1] == "[rank0]: KeyError: 1"


def test_the_direct_cause_of_the_last_exception_explains_it(monkeypatch):
    cause = [*ended(CUDA)[1:], "", "The above exception was the direct cause of the following exception:", ""]
    raised = ended("RuntimeError: step 12 failed")[1:]
    assert "GPU's memory" in explained(monkeypatch, exited(), {"workerpool0-0": [*cause, *raised]}).message
    handled = [*ended(CUDA)[1:], "", "During handling of the above exception, another exception occurred:", "", *raised]
    assert explained(monkeypatch, exited(), {"workerpool0-0": handled}).fix == LOGS_FIX


def test_an_exception_that_was_handled_long_before_the_end_explains_nothing(monkeypatch):
    steps = [f"step {number}" for number in range(300)]
    assert explained(monkeypatch, exited(), {"workerpool0-0": [*ended(CUDA), *steps]}).fix == LOGS_FIX
    few = explained(monkeypatch, exited(), {"workerpool0-0": [*ended(CUDA), *steps[:9]]})
    assert few.message == "The batch does not fit into the GPU's memory."


def test_a_signal_ended_the_program_not_an_exception_that_it_logged_before(monkeypatch):
    found = explained(monkeypatch, exited(137), {"workerpool0-0": [*ended(CUDA), "continuing with half of the batch"]})
    assert found.message.startswith("The replica workerpool0-0 was killed (SIGKILL)")


def test_a_search_that_was_cancelled_elsewhere_is_named_as_that(monkeypatch):
    name = "projects/1/locations/l/hyperparameterTuningJobs/3"
    search = vertex.HyperparameterTuningJob(name=name, state=vertex.JobState.JOB_STATE_CANCELLED)
    connection = SimpleNamespace(jobs=SimpleNamespace(get_hyperparameter_tuning_job=lambda name: search))
    monkeypatch.setattr(explanation, "LogReader", Reader)
    job = explanation._failed_job(connection, [name], "run-1", FACTS)  # type: ignore[arg-type]
    assert job is not None
    assert job.stopped is not None
    assert job.stopped[0].endswith("not by Slipway: in the console, or by gcloud.")


def test_a_trial_is_explained_by_its_own_lines(monkeypatch):
    """The log of a search has those of all trials."""
    trials = [vertex.Trial(id="1", state="SUCCEEDED"), vertex.Trial(id="2", state="INFEASIBLE", custom_job=JOB)]
    search = vertex.HyperparameterTuningJob(name="searches/3", trials=trials)
    job = vertex.CustomJob(name=JOB, error=status_pb2.Status(message="it failed"))
    jobs = SimpleNamespace(get_hyperparameter_tuning_job=lambda name: search, get_custom_job=lambda name: job)
    now = datetime.now(UTC)
    lines = [LogLine(now, "3", "workerpool0-0", "INFO", f"of trial {trial}", trial) for trial in "12"]
    reader = SimpleNamespace(read=lambda _jobs: lines)
    connection: Any = SimpleNamespace(jobs=jobs)
    failed = explanation._failed_trial(connection, reader, "searches/3", "run-1", FACTS)  # type: ignore[arg-type]
    assert failed is not None
    assert [line.text for line in failed.lines] == ["of trial 2"]
    assert (failed.message, failed.trial) == ("it failed", "2")


@pytest.mark.parametrize(
    ("said", "message"),
    [("", "The pipeline failed outside its steps."), ("The DAG was refused.", "The DAG was refused.")],
)
def test_a_pipeline_that_fails_outside_of_its_steps_is_explained_by_its_error(said: str, message: str):
    pipeline = vertex.PipelineJob(error=status_pb2.Status(message=said))
    connection: Any = SimpleNamespace()
    failure = explanation.explain(connection, pipeline, "run-1", FACTS, lambda name: name)
    assert (failure.step, failure.message, failure.fix) == (None, message, "slipway logs run-1")


def test_a_replica_is_not_taken_for_one_whose_name_begins_like_its(monkeypatch):
    logs = {"workerpool1-1": ["waiting"], "workerpool1-10": ended(CUDA)}
    found = explained(monkeypatch, exited(replica="workerpool1-1"), logs)
    assert found.fix == LOGS_FIX


def test_what_a_service_passes_on_of_another_one_is_shown_without_its_wrapping(monkeypatch):
    text = (
        "com.google.cloud.ai.platform.common.errors.AiPlatformException: code=INVALID_ARGUMENT, message=Nobody knows "
    )
    found = explained(monkeypatch, f"{text}this one., cause=null; Failed to create custom job for the task.", {})
    assert found.message == "Nobody knows this one."


def stopped(monkeypatch, objects: Mapping[str, bytes], ran: timedelta, facts: Mapping[str, str | None]) -> Explanation:
    """Return the explanation of a job with a limit of two hours that was cancelled after it ran for a time."""
    end = datetime.now(UTC).replace(microsecond=0)
    spec = {
        "scheduling": {"timeout": timedelta(hours=2)},
        "base_output_directory": {"output_uri_prefix": "gs://b/runs/run-1"},
    }
    storage = SimpleNamespace(
        bucket=lambda _: SimpleNamespace(blob=lambda name: SimpleNamespace(download_as_bytes=lambda: found(name))),
        list_blobs=lambda _, prefix, max_results: [name for name in objects if name.startswith(prefix)],
    )

    def found(name: str) -> bytes:
        from google.api_core.exceptions import NotFound

        if name not in objects:
            raise NotFound(name)
        return objects[name]

    real = explanation._checkpoint
    monkeypatch.setattr(explanation, "_checkpoint", lambda _, job: real(SimpleNamespace(storage=storage), job))
    return explained(
        monkeypatch,
        "",
        {"workerpool0-0": ["step 1200 of 90000"]},
        facts,
        state=vertex.JobState.JOB_STATE_CANCELLED,
        job_spec=spec,
        start_time=end - ran,
        end_time=end,
    )


@pytest.mark.parametrize(
    ("objects", "hours", "message", "fix"),
    [
        (
            {"runs/run-1/checkpoints/latest": b"step-00001300"},
            2,
            "reached its limit of 2 h",
            "slipway run --resume run-1, which continues from the checkpoint of step 1,300, with another 2 h",
        ),
        (
            {"runs/run-1/checkpoints/epoch-3.pt": b""},
            2,
            "reached its limit of 2 h",
            "slipway run --resume run-1, which continues from what the program has saved in "
            "gs://b/runs/run-1/checkpoints/, with another 2 h",
        ),
        (
            {},
            2,
            "No checkpoint was saved.",
            "slipway run -c runs/run-1/config.yaml --target vertex --hardware 'l4x4+timeout=4h'",
        ),
        (
            {"runs/run-1/checkpoints/latest": b"step-00001300"},
            1,
            "cancelled, but not by Slipway: in the console, or by gcloud.",
            "slipway run --resume run-1, which continues from the checkpoint of step 1,300",
        ),
    ],
)
def test_a_job_that_was_stopped_says_by_whom_and_from_where_it_continues(
    monkeypatch, objects: Mapping[str, bytes], hours: int, message: str, fix: str
):
    """Source (reported): tensorflow/tfx#6223, a job that is cancelled without an error after exactly its limit."""
    found = stopped(monkeypatch, objects, timedelta(hours=hours), {**FACTS, "longer": "l4x4+timeout=4h"})
    assert message in found.message
    assert found.fix == fix
    assert not found.moves
