"""The base class of how a platform adds the tasks of the pipeline's steps."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from slipway import steps
from slipway.components.register_model.registration import NONE_ASKED
from slipway.core.values import JsonObject
from slipway.pipelines.step import Role, Task
from slipway.pipelines.table import STEPS, TASKS

if TYPE_CHECKING:
    from kfp.dsl import PipelineTask
    from kfp.dsl.pipeline_channel import PipelineArtifactChannel, PipelineParameterChannel

    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.register_model.registry import RegisterSettings
    from slipway.pipelines.config.config import RunConfig
    from slipway.trainer.config import TrainSettings

    # A value that is known when the pipeline is compiled, or only when it runs.
    Text: TypeAlias = str | PipelineParameterChannel


@dataclass(frozen=True)
class Champion:
    """The registered model to beat: the folder or gs:// URI of its files, and what registering compares with.

    Both are "" if there is no champion yet, and "none" if no comparison was requested.
    """

    uri: Text = NONE_ASKED
    version: Text = NONE_ASKED


class PlatformSteps(ABC):
    """How one platform runs the steps. The methods here are for platforms whose storage and registry are folders.

    Attributes:
        last: The step after which the pipeline ends, if it is a part of one; see `slipway run --only`.
        registers: Whether promoted models are registered.
        compares: Whether a run that trains only if the data have drifted finds that out; otherwise, it did before.
        metric: Metric that the trials of a search report; "" if the training is no search.
        memory: Memory in bytes to which the plan reduces the batch size; 0 for no limit.
        arguments: Arguments of steps that no setting has, by step; see `RunRecord`.
    """

    last: str | None = None
    registers: bool = True
    compares: bool = True
    metric: str = ""
    memory: int = 0
    arguments: Mapping[str, JsonObject] = {}

    def includes(self, step: str) -> bool:
        """Return whether the pipeline, which may be a part of one, has this step: it is not after `last`."""
        order = list(STEPS)
        return self.last is None or order.index(step) <= order.index(self.last)

    @abstractmethod
    def image(self, role: Role) -> str:
        """Return the container image of a task, "" for processes on this machine."""

    def place(self, row: Task) -> steps.Place:
        """Return where a task runs: its container image, or a function that returns the component to run instead."""
        return self.image(row.image)

    def configure(self, task: PipelineTask, row: Task) -> PipelineTask:  # noqa: ARG002
        """Apply the options of a task's row in the table, and the platform's own; return the task.

        The servers' caches are off for all tasks. They never expire, do not see what is in the source of the data, and
        could return another run's model: their keys contain the values of inputs, but Google does not document whether
        `{{$.pipeline_job_name}}` in a value is replaced before (Kubeflow Pipelines' driver replaces it only if the
        value is nothing else). Source: cloud.google.com/vertex-ai/docs/pipelines/configure-caching.
        """
        return task.set_caching_options(False)

    def add(
        self, step: Callable[..., PipelineTask] | BaseComponent, *arguments: object, **options: object
    ) -> PipelineTask:
        """Add a task to the pipeline, in the image and with the options of its row in the table.

        Args:
            step: A function of `slipway.steps`, or a component, which has only keyword arguments.
            arguments: Its positional arguments.
            options: Its keyword arguments, without `image`.
        """
        if isinstance(step, BaseComponent):
            row = TASKS[step.name]
            task = steps.on_image(step, self.place(row))(*arguments, **options)
        else:
            row = TASKS[step.__name__.replace("_", "-")]
            options |= self.arguments.get(step.__name__, {})
            task = step(*arguments, **options, image=self.place(row))
        return self.configure(task, row)

    @contextlib.contextmanager
    def notifying(self, config: RunConfig, run_id: Text) -> Iterator[None]:
        """Add the tasks that notify of the outcome of the tasks that are added inside this context."""
        first, *remaining = self.exit_tasks(config, run_id) or [None]
        if first is None:
            yield
            return
        with dsl.ExitHandler(first, name="steps") as group:
            yield
        for task in remaining:
            # What ExitHandler makes of its task; a pipeline can have one ExitHandler at a time.
            task.after(group).ignore_upstream_failure()

    def exit_tasks(self, config: RunConfig, run_id: Text) -> list[PipelineTask]:  # noqa: ARG002
        """Add the tasks that run after all others and notify of their outcome; none if nobody is notified."""
        return []

    def build_image(self) -> Text:
        """Return the container image that the replicas run, built by the run if it has to be."""
        return self.image("trainer")

    def setup_access(self, config: RunConfig) -> PipelineTask | None:  # noqa: ARG002
        """Add the task that checks permissions; None if the platform needs none."""
        return None

    def data(self, data: DataSettings) -> DataSettings:
        """Return the settings of the data to prepare with the store for this platform."""
        return data

    def preparing_starts_machines(self, config: RunConfig) -> bool:
        """Return whether preparing the data may start other machines than the step's."""
        return config.prepared is not None and config.prepared.beam is not None

    def readers(self, config: RunConfig) -> int:
        """Return the number of processes that read the data set."""
        return config.readers

    def training(self, config: RunConfig) -> TrainSettings:
        """Return the settings of the training with the program to run on this platform."""
        return config.train

    def trained_on(self, config: RunConfig) -> dict[str, Any]:  # noqa: ARG002
        """Return the options of `slipway.steps.train` that say on what the replicas run; none for processes."""
        return {}

    def evaluates(self, config: RunConfig) -> bool:  # noqa: ARG002
        """Return whether the trained model is evaluated."""
        return True

    def registry(self, config: RunConfig) -> RegisterSettings:
        """Return the registry's settings with its place on this platform."""
        return config.register_

    def train(
        self,
        config: RunConfig,
        worker_pool_specs: PipelineParameterChannel,
        dataset: PipelineArtifactChannel,
        output: Text,
        access: PipelineTask | None,
    ) -> PipelineTask:
        """Add the training, which starts after `access`; return the task with the outputs `model` and `metrics`."""
        task = self.add(
            steps.train,
            worker_pool_specs,
            dataset,
            output=output,
            restarts=config.train.restarts,
            **self.trained_on(config),
        )
        return task if access is None else task.after(access)

    def register_model(
        self,
        config: RunConfig,
        model: PipelineArtifactChannel,
        evaluation: PipelineTask,
        run_id: Text,
        champion: Champion,
    ) -> PipelineTask:
        """Add the registration of a promoted model."""
        return self.add(
            steps.register_model,
            model,
            evaluation.outputs["metrics"],
            evaluation.outputs["Output"],
            model_name=config.model_name,
            run_id=run_id,
            settings=self.registry(config),
            champion=champion.version,
            serve_module=config.serve.module,
        )

    def deploy(self, config: RunConfig, registered: PipelineTask) -> PipelineTask | None:  # noqa: ARG002
        """Add the deployment of the registered model; None if there is none, as on platforms without endpoints."""
        return None
