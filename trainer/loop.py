"""The engine-independent training loop: steps, epochs, validation, checkpoints, stages, signals."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slipway.core import events, idle
from slipway.core.formatting import number
from slipway.core.manifest import TaskName
from slipway.trainer import hyperparameters
from slipway.trainer.checkpoint.best import BestWeights
from slipway.trainer.checkpoint.resume import Progress
from slipway.trainer.checkpoint.saver import Saver
from slipway.trainer.checkpoint.saving import Saving
from slipway.trainer.checkpoint.store import Checkpoints
from slipway.trainer.config import JobConfig
from slipway.trainer.data.inputs import Evaluation, TrainingData
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.distributed.rendezvous import Watch
from slipway.trainer.distributed.signals import ASKED_TO_STOP, Stopped, StopRequest
from slipway.trainer.engines.base import Engine, OutOfMemory, Work
from slipway.trainer.failures import check_finite, check_measured, too_large
from slipway.trainer.metrics import spent
from slipway.trainer.metrics.attempt import Attempt
from slipway.trainer.metrics.history import Metrics
from slipway.trainer.metrics.report import PROGRESS_SECONDS, StepReport
from slipway.trainer.metrics.speed import Speed
from slipway.trainer.plan import ends_epoch, stage_of
from slipway.trainer.stopping import Stopping
from slipway.trainer.tasks import TASKS, in_words

# Maximum duration of an engine call; longer calls run fewer steps than `steps_per_call`. Progress, checkpoints and stop
# requests wait for the end of a call.
CALL_SECONDS = 1.0

logger = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Trainer:
    """Trains from the step of `progress` to the plan's last step.

    Attributes:
        metrics: The history; None on all replicas but the chief.
        best: Stores the best weights if those are to be exported.
        attempt: The seconds of this process by activity, which are those of the training loop while it runs.
        spent: The seconds of the training by activity.
        waits: The seconds that each replica has waited for input.
    """

    job: JobConfig
    task: TaskName = "classification"
    cluster: Cluster
    engine: Engine
    training_data: TrainingData
    validation_data: Evaluation | None
    checkpoints: Checkpoints
    identity: Mapping[str, object]
    metrics: Metrics | None
    stop: StopRequest
    progress: Progress
    best: BestWeights | None = None
    watch: Watch = field(default_factory=lambda: Watch({}))
    attempt: Attempt = field(default_factory=lambda: Attempt(None))
    spent: spent.Spent = field(default_factory=spent.Spent, init=False)
    waits: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        job, metrics, progress = self.job, self.metrics, self.progress
        self._plan = job.plan
        self._metric = TASKS[self.task].metric
        self.saving = Saving(
            settings=job.train.checkpoint, cluster=self.cluster, engine=self.engine, identity=self.identity,
            # The history covers a checkpoint's step before the checkpoint is complete.
            saver=Saver(self.checkpoints, metrics.sync if metrics else None),
            progress=progress, best=self.best, spent=self.spent,
        )  # fmt: skip
        self._stopping = Stopping(
            job=job, cluster=self.cluster, engine=self.engine, metrics=metrics, stop=self.stop, progress=progress,
            best=self.best, spent=self.spent,
        )  # fmt: skip
        self._report = StepReport(job=job, metric=self._metric, metrics=metrics, progress=progress)
        self._profile = Profile(self.engine, job.train.profile_steps if metrics else 0)
        self._stage = stage_of(job.train, job.plan, max(0, progress.step - 1))
        self._stage_work: Work | None = None
        self._is_warm = False
        self._validated_step = 0
        self._validation_seconds = math.inf  # duration of the last validation
        self._waited = 0.0

    def train(self) -> None:
        """Run the remaining steps.

        Raises:
            UserError: The loss is no longer a finite number, or a step does not fit into a device's memory.
            SystemExit: With status 143 after a stop request; a checkpoint is saved first.
        """
        self.attempt.begin_loop(self._step, self.spent)
        with self.stop.deferred():
            try:
                if self._step < self._stage.end:
                    self._tell_stage()
                self._run()
            finally:
                self._profile.close()
                events.phase("saving the last checkpoint")
                if self.metrics:
                    self.metrics.flush()
                self.saving.wait()
                self.attempt.write(spent.CHECKPOINTS, self._step)

    def _run(self) -> None:
        """Run steps, validations and saves. An epoch is saved before its validation, which may take long; a run that
        resumes from the end of an epoch validates it again."""
        while True:
            if ends_epoch(self._plan, self._step) and self._step != self._validated_step:
                self.saving.finish()
                self._validate()
            if self._step == self._plan.steps or self._stopping.ends:
                return
            stop, save, count = self._agree()
            if stop or save:
                self._save()
            if stop:
                self._end_together()
            if self._step == self._stage.end:  # not earlier: a checkpoint of this step has the old stage's optimizer
                self._begin_next_stage()
            self._call(count)
            if ends_epoch(self._plan, self._step) or self.saving.is_due(self._step):
                self._save()

    def _save(self) -> None:
        self.saving.save()
        self.attempt.saved(self._step)

    def _begin_next_stage(self) -> None:
        self.engine.begin(self._step)
        self._stage = stage_of(self.job.train, self._plan, self._step)
        self._stage_work = None
        self._is_warm = False  # the step is compiled anew
        self._tell_stage()

    def _tell_stage(self) -> None:
        stage, count = self._stage, len(self.job.train.stages)
        if count:
            text = f"stage {stage.number + 1} of {count}, to step {stage.end}: training {', '.join(stage.trainable)} "
            text += f"with the learning rate {stage.learning_rate:g}"
            logger.info("%s", text)
            events.message(text)

    def _end_together(self) -> None:
        """Exit together with all replicas once the chief has saved; an early exit would abort the others."""
        who = ASKED_TO_STOP if self.stop.requested else "another replica was asked to stop"
        logger.info("%s: ended at step %d of %d", who, self._step, self._plan.steps)
        self.saving.finish()
        self.saving.wait()
        self.engine.agree([0.0])
        raise Stopped

    @property
    def _step(self) -> int:
        return self.progress.step

    @property
    def _work(self) -> Work:
        if self._stage_work is None:
            self._stage_work = self.engine.work()
        return self._stage_work

    def _agree(self) -> tuple[bool, bool, int]:
        """Agree with all replicas whether to stop or save and how many steps to run; the chief's clock decides."""
        saver = self.saving.saver
        values = [float(self.stop.requested)]
        values += [float(self.saving.is_overdue), float(self._count())] if self.cluster.is_chief else [0.0, 0.0]
        values += [float(saver.is_writing), float(saver.has_failed)]
        values += [self._waited if task is self.cluster.task else 0.0 for task in self.cluster.tasks]
        with self._watched(), self.spent.on(spent.REPLICAS):
            stop, save, count, writing, failed, *waits = self.engine.agree(values)
        self.waits = dict(zip(map(str, self.cluster.tasks), waits, strict=True))
        self.saving.finish_written(writing=writing > 0, failed=failed > 0)
        return stop > 0, save > 0, round(count)

    def _count(self) -> int:
        """Return the steps of the next call: `steps_per_call`, or up to the end of an epoch, stage, save or profile."""
        if not self._is_warm or self._step == self._stage.end:
            return 1
        ends = [self._stage.end, _next_multiple(self._step, self._plan.steps_per_epoch)]
        every = self.job.train.checkpoint.every_steps
        if every is not None:
            ends.append(_next_multiple(self._step, every))
        count = min(self.job.train.steps_per_call, min(ends) - self._step, self._profile.remaining or self._plan.steps)
        rate = self._report.speed.steps_per_second
        return count if rate is None else max(1, min(count, int(rate * CALL_SECONDS)))

    def _call(self, count: int) -> None:
        started, activity = time.perf_counter(), spent.STEPS if self._is_warm else spent.COMPILING
        self.attempt.write(activity, self._step)
        rates = hyperparameters.rates(self.job.train, self._plan, self._step, count)
        if not self._is_warm:
            events.phase("compiling the training step")
        elif self.metrics:
            self._profile.begin(self.metrics.folder)
        try:
            with self._watched():
                metrics = self.engine.run(self.training_data, self._step, rates)
        except OutOfMemory as error:
            raise too_large(error, self.job, self._work.devices) from None
        except Exception:
            self.spent.add(activity, time.perf_counter() - started)
            raise
        seconds, waited = time.perf_counter() - started, metrics.waited or 0.0
        self.spent.add(activity, seconds - waited)
        self.spent.add(spent.INPUT, waited)
        self._waited += waited
        if self._is_warm:
            self._report.speed.add(count, seconds, metrics.waited)
            self._profile.add(count)
        self._is_warm = True
        check_finite(metrics, self._step, self.job)
        self._report.add(metrics, rates, self._work)
        idle.sign(f"step {self._step}")
        self._report.show(metrics)

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        """Notice if the other replicas do not take part; not while one of them may compile the step."""
        return self.watch.step(lambda: self.training_data.waiting.is_on) if self._is_warm else contextlib.nullcontext()

    def _validate(self) -> None:
        """Evaluate the validation split, and log a summary of the epoch."""
        epoch = self._step / self._plan.steps_per_epoch
        speed = self._report.speed.describe(self.job.train.batch_size, self._work)
        line = f"epoch {epoch:.2f}, step {self._step} of {self._plan.steps}"
        line += f", {speed}" if speed else ""
        values: dict[str, float] = {}
        if self.validation_data is not None:
            if self._validation_seconds > PROGRESS_SECONDS:
                self._report.show_phase("validating")
            self.attempt.write(spent.VALIDATION, self._step)
            started = time.monotonic()
            with self.stop.at_once(), self.spent.on(spent.VALIDATION):
                measured = self.engine.evaluate(self.validation_data)
            self._validation_seconds = time.monotonic() - started
            check_measured(measured, self.job)
            values = {"loss": measured.loss, self._metric: measured.metric, **measured.metrics}
            line += ": validation " + ", ".join(f"{in_words(name)} {number(value)}" for name, value in values.items())
            if self.metrics:
                self.metrics.write("validation", self._step, epoch, **values)
            self._stopping.select(measured)
        logger.info("%s", line)
        self._stopping.call_function(values)
        self._validated_step = self._step
        self._report.speed = Speed()


class Profile:
    """Profiles the first `steps` steps that are not compiled anew."""

    def __init__(self, engine: Engine, steps: int) -> None:
        self._engine, self.remaining = engine, steps
        self._stack = contextlib.ExitStack()
        self._is_on = False

    def begin(self, folder: Path) -> None:
        """Begin to profile, unless it has begun or all steps are profiled."""
        if self.remaining and not self._is_on:
            self._stack.enter_context(self._engine.profile(folder))
            self._is_on = True

    def add(self, steps: int) -> None:
        """Count steps, and end after the last one."""
        if self._is_on:
            self.remaining -= steps
            if not self.remaining:
                self.close()

    def close(self) -> None:
        """Write the profile."""
        self._stack.close()
        self._is_on = False


def _next_multiple(step: int, of: int) -> int:
    return (step // of + 1) * of
