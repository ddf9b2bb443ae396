"""The pipeline for Kubeflow Pipelines.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.pipeline_channel import PipelineArtifactChannel, PipelineParameterChannel

from slipway import steps
from slipway.components.notify.component import notify
from slipway.components.notify.settings import ExitTask
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.register_model.registry import RegisterSettings
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.kubeflow import KubeflowSettings
from slipway.pipelines.config.resources import StepResources, resources_of
from slipway.pipelines.parameters import Channels, with_parameters
from slipway.pipelines.pipeline import training_steps
from slipway.pipelines.platforms.base import Champion, Platform
from slipway.pipelines.platforms.kubeflow.checks import settings_of
from slipway.pipelines.platforms.kubeflow.server import Server
from slipway.pipelines.table import Role, Task

# The tasks to which the limits of `kubeflow.cpu` and `kubeflow.memory` apply.
WORKING = ("prepare-data", "train", "evaluate")


class KubeflowPlatform(Platform):
    """Containers of one image on a Kubernetes cluster. Training is one container, with the GPUs that it requests."""

    def __init__(self, settings: KubeflowSettings) -> None:
        self.settings = settings
        self.registers = settings.registers

    def image(self, role: Role) -> str:  # noqa: ARG002
        return self.settings.image

    def configure(self, task: dsl.PipelineTask, row: Task) -> dsl.PipelineTask:
        super().configure(task, row)
        pod = self._pod(task)
        if self.settings.run_as_user is not None:
            # The platform spec has no fsGroup, with which Kubernetes would make a volume writable for a group.
            pod["securityContext"] = {"runAsUser": str(self.settings.run_as_user)}
        if self.settings.image_pull_secrets:
            pod["imagePullSecret"] = [{"secretName": name} for name in self.settings.image_pull_secrets]
        if self.settings.volume:
            # Old servers read only the first of the two names of the claim.
            name = self.settings.volume
            claim = {"constant": name, "pvcNameParameter": {"runtimeValue": {"constant": name}}}
            pod["pvcMount"] = [{**claim, "mountPath": self.settings.folder}]
        common = StepResources(cpu=self.settings.cpu, memory=self.settings.memory) if row.name in WORKING else None
        own = resources_of(row.name, self.settings.steps, "kubeflow")
        if cpu := (own and own.cpu) or (common and common.cpu):
            task.set_cpu_limit(str(cpu))
        if memory := (own and own.memory) or (common and common.memory):
            task.set_memory_limit(memory)
        return task

    def exit_tasks(self, config: RunConfig, run_id: str | PipelineParameterChannel) -> list[dsl.PipelineTask]:
        if config.notify is None:
            return []
        about = ExitTask(notify=config.notify, name=config.name, hardware=config.hardware, where="Kubeflow")
        page = Server(self.settings).page(dsl.PIPELINE_JOB_ID_PLACEHOLDER)
        task = self.add(notify, settings=about.model_dump_json(), run=run_id, page=page)
        if variable := config.notify.variable:
            keys = [{"secretKey": variable, "envVar": variable}]
            self._pod(task)["secretAsEnv"] = [{"secretName": self.settings.secret, "keyToEnv": keys}]
        return [task]

    def data(self, data: DataSettings) -> DataSettings:
        return data.model_copy(update={"store": self.settings.place(data.store)})

    def registry(self, config: RunConfig) -> RegisterSettings:
        return config.register_.model_copy(update={"registry": self.settings.place(config.register_.registry)})

    def train(
        self,
        config: RunConfig,
        worker_pool_specs: PipelineParameterChannel,
        dataset: PipelineArtifactChannel,
        output: str | PipelineParameterChannel,
        access: dsl.PipelineTask | None,
    ) -> dsl.PipelineTask:
        task = super().train(config, worker_pool_specs, dataset, output, access)
        devices = config.parsed_hardware.accelerators_per_replica
        if devices:
            task.set_accelerator_type(self.settings.accelerator).set_accelerator_limit(devices)
        if self.settings.node_selector:
            self._pod(task)["nodeSelector"] = {"labels": self.settings.node_selector}
        if self.settings.tolerations:
            self._pod(task)["tolerations"] = [
                taint.model_dump(exclude_defaults=True) | {"operator": taint.operator}
                for taint in self.settings.tolerations
            ]
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


def pipeline(config: RunConfig) -> BaseComponent:
    """Return the pipeline for Kubeflow.

    Its parameters are the run's id, its base output directory and those of the configuration.

    Raises:
        UserError: The configuration has no kubeflow section, or Kubeflow cannot run it.
    """
    platform = KubeflowPlatform(settings_of(config))

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.title}")
    @with_parameters(config)
    def training(run_id: str, output: str, parameters: Channels) -> None:
        with platform.notifying(config, run_id):
            training_steps(config, platform, run_id, output, platform.find_champion(config), parameters)

    return training
