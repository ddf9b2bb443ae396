"""The pipeline for Kubeflow Pipelines.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

import math
from typing import Any

from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.pipeline_channel import PipelineArtifactChannel, PipelineParameterChannel

from slipway import steps
from slipway.components.notify.component import notify
from slipway.components.notify.settings import ExitTask, NotifySettings
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.register_model.registry import RegisterSettings
from slipway.components.train.trainjob.backend import TrainJobs
from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.components.train.tuning import SearchSettings
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.kubernetes import quantity
from slipway.pipelines.config.resources import StepResources, resources_of
from slipway.pipelines.parameters import Channels, with_parameters
from slipway.pipelines.pipeline import training_steps
from slipway.pipelines.platforms.kubeflow.checks import settings_of
from slipway.pipelines.platforms.kubeflow.server import Server
from slipway.pipelines.platforms.kubeflow.settings import SHARED_MEMORY, SHARED_MEMORY_PATH, KubeflowSettings
from slipway.pipelines.platforms.kubeflow.training import limits_of, node_selector, tolerations, train_job_settings
from slipway.pipelines.platforms.steps import Champion, PlatformSteps
from slipway.pipelines.step import Role, Task
from slipway.pipelines.table import step_of

# The tasks to which the limits of `kubeflow.cpu` and `kubeflow.memory` apply.
WORKING = ("prepare-data", "train", "evaluate")


class KubeflowSteps(PlatformSteps):
    """Containers of one image on a Kubernetes cluster.

    Training is one container with the GPUs that it requests, or starts a TrainJob and waits for it.
    """

    def __init__(
        self, settings: KubeflowSettings, train_job: TrainJobSettings | None, search: SearchSettings | None = None
    ) -> None:
        self.settings = settings
        self.registers, self.compares = settings.registers, search is None
        self._train_job, self._search = train_job, search

    def image(self, role: Role) -> str:  # noqa: ARG002
        return self.settings.image

    def configure(self, task: dsl.PipelineTask, row: Task) -> dsl.PipelineTask:
        super().configure(task, row)
        pod = self._pod(task)
        if self.settings.run_as_user is not None:
            # The platform spec has no fsGroup, with which Kubernetes would make a volume writable for a group.
            pod["securityContext"] = {"runAsUser": str(self.settings.run_as_user)}
            if self.settings.run_as_user:  # what the Pod Security Standard "restricted" demands besides the server's
                pod["securityContext"]["runAsNonRoot"] = True
        if self.settings.image_pull_secrets:
            pod["imagePullSecret"] = [{"secretName": name} for name in self.settings.image_pull_secrets]
        if self.settings.volume:
            # Old servers read only the first of the two names of the claim.
            name = self.settings.volume
            claim = {"constant": name, "pvcNameParameter": {"runtimeValue": {"constant": name}}}
            pod["pvcMount"] = [{**claim, "mountPath": self.settings.folder}]
        limits = self._limits(row)
        if limits.cpu is not None:
            task.set_cpu_limit(str(limits.cpu))
        if limits.memory is not None:
            # kfp knows neither k nor fractions.
            bytes_only = {"k", "."} & set(limits.memory)
            task.set_memory_limit(str(math.ceil(quantity(limits.memory))) if bytes_only else limits.memory)
        return task

    def _limits(self, row: Task) -> StepResources:
        """Return a task's limits; those of the training are the TrainJob's, if there is one."""
        if row.name == "train" and self._train_job is not None:
            return StepResources()
        if row.name in WORKING:
            return limits_of(self.settings, str(step_of(row.name)))
        return resources_of(row.name, self.settings.steps, "kubeflow") or StepResources()

    def exit_tasks(self, config: RunConfig, run_id: str | PipelineParameterChannel) -> list[dsl.PipelineTask]:
        notified = config.section(NotifySettings)
        if notified is None:
            return []
        about = ExitTask(notify=notified, name=config.name, hardware=str(config.training_hardware), where="Kubeflow")
        page = Server(self.settings).page(dsl.PIPELINE_JOB_ID_PLACEHOLDER)
        task = self.add(notify, settings=about.model_dump_json(), run=run_id, page=page)
        if variable := notified.variable:
            keys = [{"secretKey": variable, "envVar": variable}]
            self._pod(task)["secretAsEnv"] = [{"secretName": self.settings.secret, "keyToEnv": keys}]
        return [task]

    def data(self, data: DataSettings) -> DataSettings:
        return data.model_copy(update={"store": self.settings.place(data.store)})

    def registry(self, config: RunConfig) -> RegisterSettings:
        return config.register_.model_copy(update={"registry": self.settings.place(config.register_.registry)})

    def trained_on(self, config: RunConfig) -> dict[str, Any]:  # noqa: ARG002
        return {} if self._train_job is None else {"backend": TrainJobs(pods=self._train_job, search=self._search)}

    def train(
        self,
        config: RunConfig,
        worker_pool_specs: PipelineParameterChannel,
        dataset: PipelineArtifactChannel,
        output: str | PipelineParameterChannel,
        access: dsl.PipelineTask | None,
    ) -> dsl.PipelineTask:
        task = super().train(config, worker_pool_specs, dataset, output, access)
        if self._train_job is not None:  # its pods train, not the step
            return task
        devices = config.training_hardware.accelerators_per_replica
        if devices:
            task.set_accelerator_type(self.settings.accelerator).set_accelerator_limit(devices)
        if devices > 1:  # their processes exchange tensors there; the container's own has 64 MiB
            shared = {"volumeName": SHARED_MEMORY, "mountPath": SHARED_MEMORY_PATH, "medium": "Memory"}
            self._pod(task)["emptyDirMounts"] = [shared]
        if labels := node_selector(self.settings, config.training_hardware):
            self._pod(task)["nodeSelector"] = {"labels": labels}
        if self.settings.tolerations:
            self._pod(task)["tolerations"] = tolerations(self.settings)
        return task

    def find_champion(self, config: RunConfig) -> Champion:
        """Return the champion at the time of the run; none if no model is registered or compared."""
        if not self.registers or config.evaluate.champion == "none":
            return Champion()
        registry = self.registry(config).registry
        folder = self.add(steps.find_champion_folder, registry, config.model_name).output
        return Champion(folder, folder)

    @staticmethod
    def _pod(task: dsl.PipelineTask) -> JsonObject:
        """Return a task's KubernetesExecutorConfig as JSON, which kfp writes into the platform spec.

        Its fields: kubernetes_platform/proto/kubernetes_executor_config.proto in kubeflow/pipelines.
        """
        settings: JsonObject = task.platform_config.setdefault("kubernetes", {})
        return settings


def pipeline(config: RunConfig, search: SearchSettings | None = None) -> BaseComponent:
    """Return the pipeline for Kubeflow, whose training is a search if `search` is given.

    Its parameters are the run's id, its base output directory and those of the configuration.

    Raises:
        UserError: The configuration has no kubeflow section, or Kubeflow cannot run it.
    """
    settings = settings_of(config)
    train_job = train_job_settings(config, settings, searches=search is not None)
    platform = KubeflowSteps(settings, train_job, search)

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.title}")
    @with_parameters(config)
    def training(run_id: str, output: str, parameters: Channels) -> None:
        with platform.notifying(config, run_id):
            training_steps(config, platform, run_id, output, platform.find_champion(config), parameters)

    return training
