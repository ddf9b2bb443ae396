"""What goes wrong on the service's side is explained on the terminal, with its fix: injected through the fakes.

What the doctor would find first is left to go wrong: --no-check.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.fakes.errors import ServiceError
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.ready import AGENTS, BUCKET, REPOSITORY, RUNNER, make_region_ready, take_away
from tests.fakes.vertex.script import Failure
from tests.pipelines.platforms.vertex.conftest import Slipway

RUN = ("run", "-c", "run.yaml", "--target", "vertex", "--hardware", "l4x4*2")
TRAIN = "custom-training-job"
METRIC = "aiplatform.googleapis.com/custom_model_training_nvidia_l4_gpus"
CPUS = "aiplatform.googleapis.com/custom_model_training_cpus"

Damage = Callable[[FakeGoogle], None]


def first_job(google: FakeGoogle) -> None:
    for email in AGENTS:
        google.world.accounts.pop(email)


def no_quota(google: FakeGoogle) -> None:
    google.world.quotas[(PROJECT, REGION, METRIC)] = 0


def no_cpus(google: FakeGoogle) -> None:
    google.world.quotas[(PROJECT, REGION, CPUS)] = 3


def no_account(google: FakeGoogle) -> None:
    google.world.accounts.pop(RUNNER)


def no_api(google: FakeGoogle) -> None:
    google.world.projects[PROJECT].services.discard("aiplatform.googleapis.com")


def no_bucket_rights(google: FakeGoogle) -> None:
    take_away(google, f"buckets/{BUCKET}", "roles/storage.objectUser")


def no_pull_rights(google: FakeGoogle) -> None:
    take_away(google, REPOSITORY, "roles/artifactregistry.reader")


def refused(sentence: str) -> Damage:
    """Reject the training job when it is created."""

    def damage(google: FakeGoogle) -> None:
        google.region.pipelines.script[TRAIN].refused = ServiceError(400, sentence)

    return damage


def job_says(sentence: str) -> Damage:
    """Let the training job fail with a message of the service."""

    def damage(google: FakeGoogle) -> None:
        google.region.pipelines.script[TRAIN].failure = Failure(sentence)

    return damage


def log_says(*lines: str) -> Damage:
    """Let the training job fail with the reason in a replica's log."""

    def damage(google: FakeGoogle) -> None:
        step = google.region.pipelines.script[TRAIN]
        step.failure = Failure()
        step.logs = {"workerpool0-0": ["starting", *lines]}

    return damage


TPU_AGENT = f"service-{NUMBER}@cloud-tpu.iam.gserviceaccount.com"


@pytest.mark.parametrize(
    ("damage", "step", "sentence", "fix"),
    [
        (first_job, None, "it is the project's first job", "slipway setup --apply"),
        (no_account, None, f"The account {RUNNER} does not exist", f"add-iam-policy-binding {RUNNER}"),
        (no_api, None, "is not enabled in the project", "slipway setup --apply"),
        (no_bucket_rights, None, f"may not use the bucket {BUCKET}", f"gs://{BUCKET} --member=serviceAccount:{RUNNER}"),
        (
            no_pull_rights,
            "setup_access prepare_data evaluate",
            f"may not pull the image from {REPOSITORY}",
            "artifactregistry.reader",
        ),
        (
            no_cpus,
            "setup_access prepare_data evaluate",
            f"too little quota in {REGION} for this run: {CPUS}.",
            f"quotas?project={PROJECT}",
        ),
        (no_quota, "train", f"too little quota in {REGION} for this run: {METRIC}", f"quotas?project={PROJECT}"),
        (
            refused('Accelerator "NVIDIA_TESLA_K80" is not supported for machine type "n1-standard-4"'),
            "train",
            "n1-standard-4 does not support the accelerator NVIDIA_TESLA_K80",
            "slipway hardware",
        ),
        (
            refused("Both `accelerator_type` and `accelerator_count` should be specified or none."),
            "train",
            "without its count",
            "--hardware l4x4",
        ),
        (refused("Machine type g9-standard-4 is not supported."), "train", "g9-standard-4", "slipway hardware"),
        (refused("Chief spec replica count cannot be greater than 1."), "train", "the chief", "'cpu*4'"),
        (refused("URI pattern must be gs://bucket/object"), "train", "of the form gs://bucket/object", "vertex.bucket"),
        (
            job_says(f"Resources are insufficient in region: {REGION}. Try a different region or use a different acc"),
            "train",
            f"no free machines of this kind in {REGION}",
            "--set vertex.regions.REGION.bucket=gs://BUCKET",
        ),
        (
            job_says("Replicas low on memory: workerpool0. Specify a machine with larger memory and try again."),
            "train",
            "workerpool0 ran out of memory.",
            "--set train.batch_size",
        ),
        (
            log_says(
                "Traceback (most recent call last):",
                '  File "/app/task.py", line 8, in <module>',
                "tensorflow.python.framework.errors_impl.PermissionDeniedError: Error executing an HTTP request: HTTP "
                f"response code 403 with body '{TPU_AGENT} does not have storage.objects.list access to the bucket.",
            ),
            "train",
            "it lacks storage.objects.list",
            f"gs://{BUCKET} --member=serviceAccount:{TPU_AGENT}",
        ),
        (
            log_says(
                "Traceback (most recent call last):",
                '  File "/app/task.py", line 8, in <module>',
                "OSError: [Errno 28] No space left on device",
            ),
            "train",
            "The boot disk of the replica is full.",
            "--hardware 'l4x4*2+disk=200'",
        ),
    ],
)
def test_a_known_error_is_one_sentence_with_a_fix(
    ready_google: FakeGoogle,
    workspace: Path,
    slipway: Slipway,
    damage: Damage,
    step: str | None,
    sentence: str,
    fix: str,
):
    damage(ready_google)
    result = slipway(*RUN, "--no-check")
    assert result.exit_code == (1 if step else 2), result.output
    assert sentence.lower() in result.output.lower()
    assert fix in result.output
    if step is None:  # refused when it was submitted
        assert not any((workspace / "runs").iterdir())
        return
    error = json.loads((workspace / "runs" / "latest" / "run.json").read_text())["error"]
    assert error["step"] in step.split()
    explained = slipway("explain").output
    assert sentence in explained
    assert fix in explained


def test_a_programs_own_words_do_not_move_a_run(ready_google: FakeGoogle, workspace: Path, slipway: Slipway):
    """A column named STOCKOUT is not Google's word for machines that are not free."""
    second = make_region_ready(ready_google, "us-central1")
    values = yaml.safe_load((workspace / "run.yaml").read_text())
    values["vertex"]["regions"] = {"us-central1": second}
    (workspace / "run.yaml").write_text(yaml.safe_dump(values, sort_keys=False))
    damage = log_says(
        "INFO features: PRICE, PROMO, STOCKOUT, WEEKDAY",
        "Resources are insufficient in region: europe-west4. Try a different region",
        "Traceback (most recent call last):",
        '  File "/app/demand.py", line 61, in <module>',
        "KeyError: 'store_id'",
    )
    damage(ready_google)
    result = slipway(*RUN, "--no-check")
    assert result.exit_code == 1
    assert "moving from" not in result.output
    assert len(ready_google.region.pipelines.jobs) == 1
    explained = slipway("explain").output
    assert "The replica workerpool0-0 exited with a non-zero status of 1." in explained
    assert "KeyError: 'store_id'" in explained
    assert "no free" not in explained


@pytest.mark.parametrize("damage", [no_account, no_api, no_bucket_rights, no_pull_rights, no_quota])
def test_a_failed_check_refuses_the_run_before_submission(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway, damage: Damage
):
    damage(ready_google)
    result = slipway(*RUN)
    assert result.exit_code == 2, result.output
    assert "fix:      " in result.output
    assert not (workspace / "runs").exists()
    assert not ready_google.region.pipelines.jobs


TRACED = (
    "The replica workerpool1-1 exited with a non-zero status of 1. Termination reason: Error. \nTraceback (most recent "
    'call last):\n  [...]\n  File "/app/task.py", line 8, in train\n    raise ValueError("loss is nan")\n'
    "ValueError: loss is nan\nTo find out more about why your job exited please check the logs: https://console.example/x"
)


def test_a_traceback_in_the_services_message_is_shown_as_one(
    ready_google: FakeGoogle, workspace: Path, slipway: Slipway
) -> None:
    """Source (reported): GoogleCloudPlatform/vertex-ai-samples#1504, with the end of the traceback in the message."""
    step = ready_google.region.pipelines.script[TRAIN]
    step.failure = Failure(TRACED)
    step.logs = {"workerpool0-0": ["starting"]}
    assert slipway(*RUN, "--no-check").exit_code == 1
    explained = slipway("explain").output.splitlines()
    assert explained[0].endswith("exited with a non-zero status of 1. Termination reason: Error.")
    assert [line.strip() for line in explained if "Traceback" in line or "ValueError" in line] == [
        "Traceback (most recent call last):",
        'raise ValueError("loss is nan")',
        "ValueError: loss is nan",
    ]
    assert "console.example" not in "\n".join(explained)
