"""Each step's op on Kubeflow Pipelines, and the pipeline that they make.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

from collections.abc import Callable
from typing import Any

from kfp import dsl

from slipway.components.evaluate.component import evaluate
from slipway.components.plan_training.component import plan_training
from slipway.components.prepare_data.component import prepare_data
from slipway.components.register_model.component import find_champion_folder, register_model
from slipway.components.register_model.registration import NONE_ASKED
from slipway.components.train.component import train
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.kubeflow import KubeflowSettings
from slipway.pipelines.pipeline import plan_arguments, training_steps
from slipway.pipelines.platforms.kubeflow.checks import settings_of


class KubeflowPlatform:
    """Containers of one image on a Kubernetes cluster; training is one of them, on the GPUs that it asks for."""

    def __init__(self, settings: KubeflowSettings) -> None:
        self.settings = settings
        self.registers = settings.registers

    def build_image(self, config: RunConfig) -> Any:  # noqa: ARG002
        return None

    def setup_access(self, config: RunConfig) -> Any:  # noqa: ARG002
        return None

    def prepare_data(self, config: RunConfig) -> Any:
        data = config.data.model_copy(update={"store": self.settings.place(config.data.store)})
        task = self._working(prepare_data)(settings=data.model_dump_json(), replicas=config.readers)
        # On a volume the step itself finds a set that is there; the server's cache would not see that one is gone.
        return task.set_caching_options(not self.settings.volume)

    def plan_training(self, config: RunConfig, dataset: Any, image: Any) -> Any:
        return self._task(plan_training)(
            **plan_arguments(config),
            image=image or self.settings.image,
            memory=0,
            dataset=dataset,
        )

    def train(self, config: RunConfig, worker_pool_specs: Any, dataset: Any, output: Any) -> Any:
        task = self._working(train)(
            worker_pool_specs=worker_pool_specs,
            output=output,
            virtual_devices=0,
            restarts=config.train.restarts.model_dump_json(),
            dataset=dataset,
        )
        devices = config.parsed_hardware.accelerators_per_replica
        if devices:
            task.set_accelerator_type(self.settings.accelerator).set_accelerator_limit(devices)
        if self.settings.node_selector:
            self._kubernetes(task)["nodeSelector"] = {"labels": self.settings.node_selector}
        return task

    def evaluate(self, config: RunConfig, model: Any, dataset: Any, champion: Any) -> Any:
        return self._working(evaluate)(
            settings=config.evaluate.model_dump_json(), model=model, dataset=dataset, champion=champion
        )

    def find_champion(self, config: RunConfig) -> Any:
        """The champion's folder, as the run finds it; NONE_ASKED where there is none to look for."""
        if not self.registers or config.evaluate.champion == "none":
            return NONE_ASKED
        registry = self.settings.place(config.register_.registry)
        task = self._task(find_champion_folder)(registry=registry, model_name=config.model_name)
        return task.set_caching_options(False).output

    def register_model(self, config: RunConfig, trained: Any, evaluation: Any, run_id: Any, champion: Any) -> Any:
        register = config.register_.model_copy(update={"registry": self.settings.place(config.register_.registry)})
        return self._task(register_model)(
            settings=register.model_dump_json(),
            model_name=config.model_name,
            run_id=run_id,
            verdict=evaluation.outputs["Output"],
            champion=champion,
            model=trained.outputs["model"],
            metrics=evaluation.outputs["metrics"],
        ).set_caching_options(False)

    def _working(self, component: Any) -> Callable[..., Any]:
        """A step that needs cores and memory."""
        make = self._task(component)

        def task(**arguments: Any) -> Any:
            made = make(**arguments)
            if self.settings.cpu:
                made.set_cpu_limit(self.settings.cpu)
            if self.settings.memory:
                made.set_memory_limit(self.settings.memory)
            return made

        return task

    def _task(self, component: Any) -> Callable[..., Any]:
        """A step's component in this platform's image, with the volume mounted."""
        in_image = dsl.component(component.python_func, base_image=self.settings.image, install_kfp_package=False)

        def task(**arguments: Any) -> Any:
            made = in_image(**arguments)
            if self.settings.volume:
                # Both ways to name the claim, as old servers read the first only.
                name = self.settings.volume
                claim = {"constant": name, "pvcNameParameter": {"runtimeValue": {"constant": name}}}
                self._kubernetes(made)["pvcMount"] = [{**claim, "mountPath": self.settings.folder}]
            return made

        return task

    @staticmethod
    def _kubernetes(task: Any) -> dict[str, Any]:
        """What a task's pod is told: a KubernetesExecutorConfig as JSON, which kfp puts into the platform spec."""
        settings: dict[str, Any] = task.platform_config.setdefault("kubernetes", {})
        return settings


def pipeline(config: RunConfig) -> Any:
    """The pipeline for Kubeflow; its parameters are the run's id and its base output directory.

    Raises:
        UserError: The configuration does not say where, or cannot run on such a cluster.
    """
    platform = KubeflowPlatform(settings_of(config))

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.title}")
    def training(run_id: str, output: str) -> None:
        training_steps(config, platform, run_id, output, platform.find_champion(config))

    return training
