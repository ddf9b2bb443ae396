"""JobService: hyperparameter tuning jobs, whose trials are custom jobs with other arguments."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.protobuf import empty_pb2
from google.rpc import status_pb2

from slipway.core.atomic import json_lines
from tests.fakes.errors import ServiceError
from tests.fakes.logging import Log
from tests.fakes.vertex.jobs import ENDED, JobService, State
from tests.fakes.vertex.script import Failure, StepScript
from tests.fakes.vertex.shapes import (
    check_act_as,
    check_display_name,
    check_key,
    check_labels,
    check_network,
    check_object,
    invalid,
    project_of,
    resource_of,
)
from tests.fakes.vertex.studies import argument_of, check_study, draw, is_below_median
from tests.fakes.vertex.work import ScriptedWork, Work
from tests.fakes.vertex.worker_pools import check_worker_pools
from tests.fakes.world import World

Trial = vertex.Trial
RUNNING = (Trial.State.ACTIVE, Trial.State.STOPPING)
# "Maximum number of trials in a study: 1,000": https://cloud.google.com/ai-platform/optimizer/docs/quotas
MAX_TRIALS = 1000


class TuningService:
    """Tuning jobs by name. A stand-alone job advances when it is polled; a pipeline's job, when the pipeline is.

    Trials run in the containers of `jobs`. Without these, they end after a poll, and `objective` returns the metric of
    a trial by its values, None for one that fails.
    """

    def __init__(self, world: World, region: str, log: Log, jobs: JobService) -> None:
        self.world = world
        self.region = region
        self.jobs: dict[str, vertex.HyperparameterTuningJob] = {}
        self.objective: Callable[[Mapping[str, Any]], float | None] = lambda _values: 0.9
        self._log = log
        self._custom = jobs
        self.dice = random.Random(0)
        self._callers: dict[str, str] = {}
        self._of_pipelines: set[str] = set()
        self._files = tempfile.TemporaryDirectory(prefix="hypertune")

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "CreateHyperparameterTuningJob": (vertex.CreateHyperparameterTuningJobRequest, self._create),
            "GetHyperparameterTuningJob": (vertex.GetHyperparameterTuningJobRequest, self._get),
            "CancelHyperparameterTuningJob": (vertex.CancelHyperparameterTuningJobRequest, self._cancel),
        }

    def create(
        self, parent: str, job: vertex.HyperparameterTuningJob, caller: str, *, of_pipeline: bool = False
    ) -> vertex.HyperparameterTuningJob:
        """Validate a job as the service does, and start it."""
        project = project_of(self.world, parent, self.region)
        self.world.require(caller, "aiplatform.hyperparameterTuningJobs.create", f"projects/{project.id}")
        check_display_name(job.display_name)
        check_labels(job.labels)
        check_key(self.world, project, job.encryption_spec.kms_key_name, self.region)
        check_study(job.study_spec)
        if not 0 < job.max_trial_count <= MAX_TRIALS or job.parallel_trial_count < 1 or job.max_failed_trial_count < 0:
            raise invalid(f"max_trial_count must be 1 to {MAX_TRIALS}, and parallel_trial_count at least 1.")
        spec = job.trial_job_spec
        check_worker_pools(spec, self.region)
        check_network(spec.network)
        if spec.base_output_directory.output_uri_prefix:
            check_object(spec.base_output_directory.output_uri_prefix, "base_output_directory")
        if spec.service_account:
            check_act_as(self.world, project, caller, spec.service_account)
        with self.world.lock:
            made = vertex.HyperparameterTuningJob(job)
            number = self.world.number()
            made.name = f"projects/{project.number}/locations/{self.region}/hyperparameterTuningJobs/{number}"
            made.create_time = made.update_time = datetime.now(UTC)
            made.state = State.JOB_STATE_PENDING
            made.trials = []
            self.jobs[made.name] = made
            self._callers[made.name] = caller
            if of_pipeline:
                self._of_pipelines.add(made.name)
            self.world.writes["hyperparameterTuningJob"] += 1
        return made

    def advance(self, name: str) -> vertex.HyperparameterTuningJob:
        """Advance a job and its trials by one poll."""
        with self.world.lock:
            job = self.jobs[name]
            if job.state in ENDED:
                return job
            if job.state == State.JOB_STATE_PENDING:
                job.state, job.start_time = State.JOB_STATE_RUNNING, datetime.now(UTC).replace(microsecond=0)
            for trial in job.trials:
                if trial.state in RUNNING:
                    self._advance_trial(job, trial)
            running = [trial for trial in job.trials if trial.state in RUNNING]
            if job.state == State.JOB_STATE_CANCELLING:
                self._stop(running)
                if not running:
                    self._end(job, State.JOB_STATE_CANCELLED, 1, "The job was cancelled.")
                return job
            failed = [trial for trial in job.trials if trial.state == Trial.State.INFEASIBLE]
            # "The number of failed Trials that need to be seen before failing the HyperparameterTuningJob."
            if job.max_failed_trial_count and len(failed) >= job.max_failed_trial_count:
                self._stop(running)
                if not running:
                    why = failed[0].infeasible_reason
                    self._end(job, State.JOB_STATE_FAILED, 9, f"{len(failed)} trials failed; the first one: {why}")
                return job
            try:
                while len(running) < job.parallel_trial_count and self._continues(job):
                    running.append(self._start(job))
            except ServiceError as error:  # such as an exceeded quota
                self._stop(running)
                self._end(job, State.JOB_STATE_FAILED, 8, error.message)
                return job
            if not running:
                self._end(job, State.JOB_STATE_SUCCEEDED)
            return job

    def _continues(self, job: vertex.HyperparameterTuningJob) -> bool:
        """Return whether another trial starts: "If the specified time or duration has passed, stop the study"."""
        limit = job.study_spec.study_stopping_config.maximum_runtime_constraint.max_duration
        is_late = bool(limit) and datetime.now(UTC) - job.create_time > limit
        return len(job.trials) < job.max_trial_count and not is_late

    def _start(self, job: vertex.HyperparameterTuningJob) -> vertex.Trial:
        identity = str(len(job.trials) + 1)
        values = dict(draw(job.study_spec.parameters, self.dice))
        spec = vertex.CustomJobSpec(job.trial_job_spec)
        if base := spec.base_output_directory.output_uri_prefix.rstrip("/"):
            # CustomJobSpec: "a subdirectory with name as the trial id under its parent's baseOutputDirectory".
            spec.base_output_directory.output_uri_prefix = f"{base}/{identity}"
        told = {"CLOUD_ML_TRIAL_ID": identity, "CLOUD_ML_HP_METRIC_FILE": str(self._file(job.name, identity))}
        for pool in spec.worker_pool_specs:
            pool.container_spec.args = [
                *pool.container_spec.args,
                *(argument_of(name, value) for name, value in values.items()),
            ]
            pool.container_spec.env = [
                *pool.container_spec.env,
                *(vertex.EnvVar(name=name, value=value) for name, value in told.items()),
            ]
        custom = vertex.CustomJob(display_name=f"{job.display_name}-{identity}", job_spec=spec)
        parent = job.name.partition("/hyperparameterTuningJobs/")[0]
        containers = self._custom.containers
        work: Work = containers.custom_job() if containers else self._scripted(job, identity, values)
        trial = vertex.Trial(
            name=f"{job.name}/trials/{identity}",
            id=identity,
            state=Trial.State.ACTIVE,
            # Numbers are floats, also of INTEGER parameters, as recorded in 2021 (UJ11 of vertex-ai-samples).
            parameters=[
                {"parameter_id": name, "value": value if isinstance(value, str) else float(value)}
                for name, value in values.items()
            ],
            start_time=datetime.now(UTC),
        )
        made = self._custom.create(parent, custom, self._callers[job.name], work, of_pipeline=True)
        self._log.trials[made.name] = (job.name, identity)
        trial.custom_job = made.name
        job.trials.append(trial)
        return job.trials[-1]

    def _scripted(self, job: vertex.HyperparameterTuningJob, identity: str, values: Mapping[str, Any]) -> Work:
        value = self.objective(values)
        if value is not None:
            file = self._file(job.name, identity)
            file.parent.mkdir(parents=True)
            entry = {"global_step": "1", job.study_spec.metrics[0].metric_id: str(value), "trial": identity}
            file.write_text(json.dumps(entry) + "\n")
        return ScriptedWork(StepScript(failure=Failure() if value is None else None), self._log)

    def _file(self, job: str, trial: str) -> Path:
        """Return the file of a trial's metric, which is in its container on the real service."""
        return Path(self._files.name) / job.rpartition("/")[2] / trial / "output.metrics"

    def _advance_trial(self, job: vertex.HyperparameterTuningJob, trial: vertex.Trial) -> None:
        followed = self._custom.advance(trial.custom_job)
        self._measure(job, trial)
        if followed.state not in ENDED:
            completed = [other for other in job.trials if other.state == Trial.State.SUCCEEDED]
            if trial.state == Trial.State.ACTIVE and is_below_median(job.study_spec, trial, completed):
                trial.state = Trial.State.STOPPING
                self._custom.cancel(trial.custom_job)
            return
        trial.end_time = datetime.now(UTC).replace(microsecond=0)
        failed = followed.state != State.JOB_STATE_SUCCEEDED and trial.state != Trial.State.STOPPING
        if failed or not trial.measurements:
            trial.state = Trial.State.INFEASIBLE
            trial.infeasible_reason = followed.error.message or "The trial has reported no metric."
            return
        trial.state = Trial.State.SUCCEEDED  # also of one that was stopped early, which may have no model
        # "MEASUREMENT_SELECTION_TYPE_UNSPECIFIED: Will be treated as LAST_MEASUREMENT."
        best = job.study_spec.measurement_selection_type.name == "BEST_MEASUREMENT"
        sign = -1 if job.study_spec.metrics[0].goal.name == "MINIMIZE" else 1
        found = list(trial.measurements)
        trial.final_measurement = max(found, key=lambda one: sign * one.metrics[0].value) if best else found[-1]

    def _measure(self, job: vertex.HyperparameterTuningJob, trial: vertex.Trial) -> None:
        """Read the metric from the file in hypertune's format."""
        file = self._file(job.name, trial.id)
        metric = job.study_spec.metrics[0].metric_id
        entries = [line for line in json_lines(file.read_bytes()) if metric in line] if file.is_file() else []
        elapsed = datetime.now(UTC) - trial.start_time
        for entry in entries[len(trial.measurements) :]:
            trial.measurements.append(
                vertex.Measurement(
                    elapsed_duration=timedelta(seconds=elapsed.total_seconds()),
                    step_count=int(entry["global_step"]),
                    metrics=[{"metric_id": metric, "value": float(entry[metric])}],
                )
            )

    def _stop(self, trials: list[vertex.Trial]) -> None:
        for trial in trials:
            if trial.state == Trial.State.ACTIVE:
                trial.state = Trial.State.STOPPING
                self._custom.cancel(trial.custom_job)

    def _end(self, job: vertex.HyperparameterTuningJob, state: State, code: int = 0, message: str = "") -> None:
        job.state, job.update_time = state, datetime.now(UTC)
        job.end_time = job.update_time.replace(microsecond=0)
        if code:
            job.error = status_pb2.Status(code=code, message=message)
            self._log.write_job(job.name, "service", {"severity": "ERROR", "message": message})

    def _create(self, request: vertex.CreateHyperparameterTuningJobRequest, caller: str) -> Any:
        return self.create(request.parent, request.hyperparameter_tuning_job, caller)

    def _get(self, request: vertex.GetHyperparameterTuningJobRequest, caller: str) -> Any:
        job = self._named(request.name, caller, "aiplatform.hyperparameterTuningJobs.get")
        return job if job.name in self._of_pipelines else self.advance(job.name)

    def _cancel(self, request: vertex.CancelHyperparameterTuningJobRequest, caller: str) -> Any:
        job = self._named(request.name, caller, "aiplatform.hyperparameterTuningJobs.cancel")
        if job.state in ENDED:
            raise ServiceError(412, f"HyperparameterTuningJob {job.name} has ended and cannot be cancelled.")
        job.state = State.JOB_STATE_CANCELLING
        return empty_pb2.Empty()

    def _named(self, name: str, caller: str, permission: str) -> vertex.HyperparameterTuningJob:
        _, full = resource_of(self.world, self.region, name, "hyperparameterTuningJobs", caller, permission)
        if full not in self.jobs:
            raise ServiceError(404, f"The HyperparameterTuningJob does not exist: {name}")
        return self.jobs[full]
