"""Each step's op on Vertex AI Pipelines, and the pipeline that they make.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

from collections.abc import Callable
from typing import Any

from google_cloud_pipeline_components.types.artifact_types import UnmanagedContainerModel
from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from google_cloud_pipeline_components.v1.model import ModelUploadOp
from kfp import dsl

from components.evaluate.component import evaluate
from components.plan_training.component import plan_training
from components.prepare_data.component import prepare_data
from components.train.component import collect_model
from pipelines.config import RunConfig, VertexSettings, no_place_on_vertex
from pipelines.training import training_steps


class VertexPlatform:
    """Containers of one image on Vertex AI; training is a custom job with the hardware's worker pools."""

    registers = True

    def __init__(self, settings: VertexSettings) -> None:
        self.settings = settings

    @property
    def output(self) -> str:
        """The training job's base output directory; the job's name is filled in when the pipeline runs."""
        return f"{self.settings.bucket}/runs/{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}"

    def build_image(self, config: RunConfig) -> Any:  # noqa: ARG002
        return None

    def setup_access(self, config: RunConfig) -> Any:  # noqa: ARG002
        return None

    def prepare_data(self, config: RunConfig) -> Any:
        data = config.data
        if not data.store.startswith("gs://"):
            data = data.model_copy(update={"store": f"{self.settings.bucket}/datasets"})
        return self._in_image(prepare_data)(settings=data.model_dump_json(), replicas=config.parsed_hardware.replicas)

    def plan_training(self, config: RunConfig, dataset: Any, image: Any) -> Any:
        return self._in_image(plan_training)(
            pools=config.parsed_hardware.worker_pools(),
            devices=config.parsed_hardware.accelerators_per_replica,
            model=config.model.model_dump_json(),
            train=config.train.model_dump_json(exclude_none=True),
            image=image or self.settings.image,
            memory=0,
            dataset=dataset,
        )

    def train(self, config: RunConfig, worker_pool_specs: Any, output: Any) -> Any:
        job = CustomTrainingJobOp(
            display_name=config.name,
            project=self.settings.project,
            location=self.settings.region,
            worker_pool_specs=worker_pool_specs,
            base_output_directory=output,
            service_account=self.settings.service_account or "",
            network=self.settings.network or "",
            encryption_spec_key_name=self.settings.encryption_key or "",
            labels=self.settings.labels,
            # Replicas that train together can only start again together.
            **{"restart_job_on_worker_restart": config.parsed_hardware.replicas > 1},
            **config.parsed_hardware.scheduling(),
        ).set_display_name("train")
        return self._in_image(collect_model)(job=job.outputs["gcp_resources"], output=output)

    def evaluate(self, config: RunConfig, model: Any, dataset: Any, champion: Any) -> Any:
        return self._in_image(evaluate)(
            settings=config.evaluate.model_dump_json(), model=model, dataset=dataset, champion=champion
        )

    def register_model(self, config: RunConfig, trained: Any, evaluation: Any, run_id: Any, champion: Any) -> Any:  # noqa: ARG002
        # ModelUploadOp takes its serving container from an artifact of this type only.
        servable = dsl.importer(
            artifact_uri=trained.outputs["Output"],
            artifact_class=UnmanagedContainerModel,
            metadata={"containerSpec": {"imageUri": self.settings.serving_image}},
        )
        return ModelUploadOp(
            project=self.settings.project,
            location=self.settings.region,
            display_name=config.model_name,
            unmanaged_container_model=servable.outputs["artifact"],
            encryption_spec_key_name=self.settings.encryption_key or "",
            labels=self.settings.labels,
        )

    def _in_image(self, component: Any) -> Callable[..., Any]:
        """A step's component, to run in this platform's image."""
        return dsl.component(component.python_func, base_image=self.settings.image, install_kfp_package=False)


def pipeline(config: RunConfig) -> Any:
    """The pipeline for Vertex AI; its parameter is the champion to beat.

    Raises:
        UserError: The configuration does not say where on Vertex AI.
    """
    if config.vertex is None:
        raise no_place_on_vertex()
    platform = VertexPlatform(config.vertex)

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.model.builder} on {config.data.source}")
    def training(champion: str = "") -> None:
        training_steps(config, platform, dsl.PIPELINE_JOB_NAME_PLACEHOLDER, platform.output, champion)

    return training
