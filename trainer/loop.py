"""The engine-independent training loop: steps, epochs, logging, validation, checkpoints, early stopping, signals."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from slipway.core import events
from slipway.core.formatting import number
from slipway.core.manifest import TaskName
from slipway.trainer import hyperparameters
from slipway.trainer.checkpoint.best import BestWeights, agreed_metric
from slipway.trainer.checkpoint.resume import Interval, Progress, checkpoint_of
from slipway.trainer.checkpoint.saver import Saver
from slipway.trainer.checkpoint.store import Checkpoints
from slipway.trainer.config import JobConfig
from slipway.trainer.data.inputs import Evaluation, TrainingData
from slipway.trainer.distributed.cluster import Cluster
from slipway.trainer.distributed.rendezvous import Watch
from slipway.trainer.distributed.signals import ASKED_TO_STOP, Stopped, StopRequest
from slipway.trainer.engines.base import Engine, Measured, OutOfMemory, StepMetrics, Work
from slipway.trainer.failures import check_finite, check_measured, too_large
from slipway.trainer.metrics import spent
from slipway.trainer.metrics.history import Metrics
from slipway.trainer.metrics.speed import Speed
from slipway.trainer.plan import stage_of
from slipway.trainer.tasks import TASKS, in_words

# Maximum duration of an engine call; longer calls run fewer steps than `steps_per_call`. Progress, checkpoints and stop
# requests wait for the end of a call.
CALL_SECONDS = 1.0
PROGRESS_SECONDS = 0.5
LOG_POINTS_PER_EPOCH = 10
MAX_STEPS_BETWEEN_LOG_POINTS = 100

logger = logging.getLogger(__name__)


class Loop:
    """Training from the step of `progress` to the plan's last step.

    `metrics` is None on all replicas but the chief. `best` stores the best weights if those are to be exported.
    """

    def __init__(
        self,
        job: JobConfig,
        cluster: Cluster,
        engine: Engine,
        training: TrainingData,
        validation: Evaluation | None,
        checkpoints: Checkpoints,
        identity: Mapping[str, object],
        metrics: Metrics | None,
        stop: StopRequest,
        progress: Progress,
        best: BestWeights | None = None,
        task: TaskName = "classification",
        watch: Watch | None = None,
    ) -> None:
        self._job, self._plan, self._cluster = job, job.plan, cluster
        self._engine, self._training, self._validation = engine, training, validation
        # The history covers a checkpoint's step before the checkpoint is complete.
        self._saver = Saver(checkpoints, metrics.sync if metrics else None)
        self._identity, self._metrics = identity, metrics
        self._task_metric = TASKS[task].metric
        self._stop_request, self._progress, self._best = stop, progress, best
        self._watch = watch or Watch({})
        self._profile = contextlib.ExitStack()
        self._to_profile = job.train.profile_steps if metrics else 0  # steps left to profile
        self._profiling = False
        self._warm = False
        self._stage = stage_of(job.train, job.plan, max(0, progress.step - 1))
        self._stage_work: Work | None = None
        self._speed = Speed()
        self._saved_step = progress.step
        self._validated_step = 0
        self._is_ended = False  # by the user's function
        self._saved_at = time.monotonic()
        self._shown_at = -math.inf
        self._validation_seconds = math.inf  # duration of the last validation
        self.spent = spent.Spent()
        self._waited = 0.0
        self.waits: dict[str, float] = {}  # seconds that each replica has waited for input

    def train(self) -> None:
        """Run the remaining steps.

        Raises:
            UserError: The loss is no longer a finite number, or a step does not fit into a device's memory.
            SystemExit: With status 143 after a stop request; a checkpoint is saved first.
        """
        with self._stop_request.deferred():
            try:
                if self._step < self._stage.end:
                    self._tell_stage()
                self._run()
            finally:
                self._profile.close()
                events.phase("saving the last checkpoint")
                if self._metrics:
                    self._metrics.flush()
                with self.spent.on(spent.CHECKPOINTS):
                    self._saver.wait()

    def _run(self) -> None:
        """Run steps, validations and saves. An epoch is saved before its validation, which may take long; a run that
        resumes from the end of an epoch validates it again."""
        while True:
            if self._ends_epoch(self._step) and self._step != self._validated_step:
                self._finish_save()
                self._validate()
            if self._step == self._plan.steps or self._progress.selection.ends(self._job.train) or self._is_ended:
                return
            stop, save, count = self._agree()
            if stop or save:
                self._save()
            if stop:
                self._end_together()
            if self._step == self._stage.end:  # not earlier: a checkpoint of this step has the old stage's optimizer
                self._begin_next_stage()
            self._call(count)
            if self._ends_epoch(self._step) or self._is_saving_step():
                self._save()

    def _begin_next_stage(self) -> None:
        self._engine.begin(self._step)
        self._stage = stage_of(self._job.train, self._plan, self._step)
        self._stage_work = None
        self._warm = False  # the step is compiled anew
        self._tell_stage()

    def _tell_stage(self) -> None:
        stage, count = self._stage, len(self._job.train.stages)
        if count:
            text = f"stage {stage.number + 1} of {count}, to step {stage.end}: training {', '.join(stage.trainable)} "
            text += f"with the learning rate {stage.learning_rate:g}"
            logger.info("%s", text)
            events.message(text)

    def _end_together(self) -> None:
        """Exit together with all replicas once the chief has saved; an early exit would abort the others."""
        who = ASKED_TO_STOP if self._stop_request.requested else "another replica was asked to stop"
        logger.info("%s: ended at step %d of %d", who, self._step, self._plan.steps)
        self._finish_save()
        self._saver.wait()
        self._engine.agree([0.0])
        raise Stopped

    @property
    def _step(self) -> int:
        return self._progress.step

    @property
    def _work(self) -> Work:
        if self._stage_work is None:
            self._stage_work = self._engine.work()
        return self._stage_work

    def _epoch(self) -> float:
        return self._step / self._plan.steps_per_epoch

    def _ends_epoch(self, step: int) -> bool:
        return step % self._plan.steps_per_epoch == 0 or step == self._plan.steps

    def _is_saving_step(self) -> bool:
        every = self._job.train.checkpoint.every_steps
        return every is not None and self._step % every == 0

    def _agree(self) -> tuple[bool, bool, int]:
        """Agree with all replicas whether to stop or save and how many steps to run; the chief's clock decides."""
        every = self._job.train.checkpoint.every_seconds
        due = self._saver.due_again or (every is not None and time.monotonic() - self._saved_at >= every)
        mine = [float(self._stop_request.requested)]
        mine += [float(due), float(self._count())] if self._cluster.is_chief else [0.0, 0.0]
        mine += [float(self._saver.is_writing), float(self._saver.has_failed)]
        mine += [self._waited if task is self._cluster.task else 0.0 for task in self._cluster.tasks]
        with self._watched(), self.spent.on(spent.REPLICAS):
            stop, save, count, writing, failed, *waits = self._engine.agree(mine)
        self.waits = dict(zip(map(str, self._cluster.tasks), waits, strict=True))
        if self._saver.is_unfinished and not writing:
            with self.spent.on(spent.CHECKPOINTS):
                self._saver.finish(failed=failed > 0)
        return stop > 0, save > 0, round(count)

    def _count(self) -> int:
        """Return the steps of the next call: `steps_per_call`, or up to the end of an epoch, stage, save or profile."""
        if not self._warm or self._step == self._stage.end:
            return 1
        ends = [self._stage.end, _next_multiple(self._step, self._plan.steps_per_epoch)]
        every = self._job.train.checkpoint.every_steps
        if every is not None:
            ends.append(_next_multiple(self._step, every))
        count = min(self._job.train.steps_per_call, min(ends) - self._step, self._to_profile or self._plan.steps)
        rate = self._speed.steps_per_second
        return count if rate is None else max(1, min(count, int(rate * CALL_SECONDS)))

    def _call(self, count: int) -> None:
        started = time.perf_counter()
        rates = hyperparameters.rates(self._job.train, self._plan, self._step, count)
        if self._to_profile and self._warm and not self._profiling and self._metrics:
            self._profile.enter_context(self._engine.profile(self._metrics.folder))
            self._profiling = True
        if not self._warm:
            events.phase("compiling the training step")
        try:
            with self._watched():
                metrics = self._engine.run(self._training, self._step, rates)
        except OutOfMemory as error:
            raise too_large(error, self._job, self._work.devices) from None
        seconds, waited = time.perf_counter() - started, metrics.waited or 0.0
        self.spent.add(spent.STEPS if self._warm else spent.COMPILING, seconds - waited)
        self.spent.add(spent.INPUT, waited)
        self._waited += waited
        if self._warm:
            self._speed.add(count, seconds, metrics.waited)
            self._end_profile(count)
        self._warm = True
        check_finite(metrics, self._step, self._job)
        self._log(metrics, rates)
        self._show(metrics)

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        """Notice if the other replicas do not take part; not while one of them may compile the step."""
        return self._watch.step(lambda: self._training.waiting.is_on) if self._warm else contextlib.nullcontext()

    def _end_profile(self, count: int) -> None:
        if self._profiling:
            self._to_profile -= count
            if not self._to_profile:
                self._profile.close()
                self._profiling = False

    def _log(self, metrics: StepMetrics, rates: NDArray[np.float32]) -> None:
        """Count the call's steps, and log metrics at each log point among them."""
        every = max(1, min(self._plan.steps_per_epoch // LOG_POINTS_PER_EPOCH, MAX_STEPS_BETWEEN_LOG_POINTS))
        speed = self._speed.metrics(self._job.train.batch_size, self._work) if self._metrics else {}
        steps = zip(metrics.losses.tolist(), metrics.values.tolist(), rates.tolist(), strict=True)
        for loss, metric, learned_at in steps:
            self._progress.step += 1
            interval, epoch = self._progress.interval, self._progress.epoch
            interval.add(loss, metric)
            epoch.add(loss, metric)
            ends_epoch = self._ends_epoch(self._step)
            if self._step % every and not ends_epoch:
                continue
            if self._metrics:
                values = {**interval.means(self._task_metric), "learning_rate": learned_at, **speed}
                if ends_epoch:
                    values |= {f"epoch_{name}": mean for name, mean in epoch.means(self._task_metric).items()}
                self._metrics.write("train", self._step, self._epoch(), **values)
            self._progress.interval = Interval()
            if self._step % self._plan.steps_per_epoch == 0:  # not at the last step: a longer run may resume from it
                self._progress.epoch = Interval()

    def _show(self, metrics: StepMetrics) -> None:
        now = time.monotonic()
        done = self._step == self._plan.steps
        if not self._metrics or not (done or now - self._shown_at >= PROGRESS_SECONDS):
            return
        self._shown_at = now
        values = {"loss": float(metrics.losses.mean()), self._task_metric: float(metrics.values.mean())}
        rate = self._speed.steps_per_second
        if rate is not None:
            values["steps_per_second"] = rate
        events.progress(self._step, self._plan.steps, "steps", **values)

    def _validate(self) -> None:
        """Evaluate the validation split, and log a summary of the epoch."""
        speed = self._speed.describe(self._job.train.batch_size, self._work)
        line = f"epoch {self._epoch():.2f}, step {self._step} of {self._plan.steps}"
        line += f", {speed}" if speed else ""
        values: dict[str, float] = {}
        if self._validation is not None:
            if self._validation_seconds > PROGRESS_SECONDS:
                events.phase("validating")
                self._shown_at = -math.inf  # so that the progress bar shows the training again
            started = time.monotonic()
            with self._stop_request.at_once(), self.spent.on(spent.VALIDATION):
                measured = self._engine.evaluate(self._validation)
            self._validation_seconds = time.monotonic() - started
            check_measured(measured, self._job)
            values = {"loss": measured.loss, self._task_metric: measured.metric, **measured.metrics}
            line += ": validation " + ", ".join(f"{in_words(name)} {number(value)}" for name, value in values.items())
            if self._metrics:
                self._metrics.write("validation", self._step, self._epoch(), **values)
            self._select(measured)
        logger.info("%s", line)
        if self._job.train.on_epoch_end is not None:
            self._end_epoch(values)
        self._validated_step = self._step
        self._speed = Speed()

    def _end_epoch(self, values: dict[str, float]) -> None:
        """Call the user's function on the chief, which decides for all replicas whether training ends.

        A run that resumes from the end of an epoch calls it again, as it validates again.
        """
        ended = False
        if self._metrics:
            from slipway.trainer.engines import hooks  # imports Keras

            self._metrics.flush()
            with self._stop_request.at_once(), self.spent.on(spent.FUNCTION):
                function = hooks.load(self._job.train, "train.on_epoch_end")
                ended = function(self._epoch(), self._step, dict(values), self._metrics.folder) is True
        (agreed,) = self._engine.agree([float(ended)])
        self._is_ended = agreed > 0
        if self._is_ended and self._metrics and self._step < self._plan.steps:
            text = f"{self._job.train.on_epoch_end} ended the training at step {self._step} of {self._plan.steps}"
            logger.info("%s", text)
            events.message(text)

    def _select(self, measured: Measured) -> None:
        """Update the best weights, and log if training stops early."""
        train, selection = self._job.train, self._progress.selection
        if not train.needs_validation:
            return
        metric = agreed_metric(train, measured, self._engine, self._cluster)
        if selection.take(train, metric, self._step) and self._best:
            with self.spent.on(spent.CHECKPOINTS):
                self._best.keep(self._engine, self._step)
        if selection.ends(train) and self._step < self._plan.steps:
            text = f"stopping early at step {self._step} of {self._plan.steps}: the validation {train.monitor} did not "
            text += f"improve in {selection.waited} validations; "
            if selection.best is None:
                text += "it was never a number"
            else:
                text += f"the best was {number(selection.best)} at step {selection.best_step}"
            logger.info("%s", text)
            if self._metrics:
                events.message(text)

    def _save(self) -> None:
        """Save a checkpoint unless this step is already saved.

        All replicas must call it; the chief writes, or each its part of sharded arrays.
        """
        if self._step == self._saved_step:
            return
        self._finish_save()
        with self.spent.on(spent.CHECKPOINTS):
            checkpoint = checkpoint_of(self._progress, self._engine, self._identity)
            if self._cluster.is_chief or checkpoint.is_sharded:
                self._saver.start(checkpoint)
            if self._best:
                self._best.save_again(self._engine)
        self._saved_step = self._step
        self._saved_at = time.monotonic()

    def _finish_save(self) -> None:
        """Wait until all replicas have written their parts of a checkpoint, and complete it."""
        if not self._saver.is_unfinished:
            return
        with self.spent.on(spent.CHECKPOINTS):
            self._saver.wait()
            (failed,) = self._engine.agree([float(self._saver.has_failed)])
            self._saver.finish(failed=failed > 0)


def _next_multiple(step: int, of: int) -> int:
    return (step // of + 1) * of
