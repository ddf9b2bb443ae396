"""Each step's op on Vertex AI Pipelines, and the pipeline that they make.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

from collections.abc import Callable
from typing import Any

from google_cloud_pipeline_components.types.artifact_types import UnmanagedContainerModel
from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from google_cloud_pipeline_components.v1.model import ModelUploadOp
from kfp import dsl

from components.build_image.component import build_image
from components.evaluate.component import evaluate
from components.plan_training.component import plan_training
from components.prepare_data.component import prepare_data
from components.train.component import collect_model
from pipelines.config import RunConfig, VertexSettings, no_place_on_vertex
from pipelines.images import Images
from pipelines.training import training_steps
from trainer.errors import UserError


class VertexPlatform:
    """Containers on Vertex AI; training is a custom job with the hardware's worker pools."""

    registers = True

    def __init__(self, settings: VertexSettings, images: Images) -> None:
        self.settings = settings
        self.images = images

    @property
    def output(self) -> str:
        """The training job's base output directory; the job's name is filled in when the pipeline runs."""
        return f"{self.settings.bucket}/runs/{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}"

    def build_image(self, config: RunConfig) -> Any:  # noqa: ARG002
        build = self.images.build
        if build is None:
            return None
        task = self._in_image(build_image)(
            request=build.request.model_dump_json(),
            source=build.source.model_dump_json(),
            settings=build.settings.model_dump_json(),
        )
        # A cached answer would not notice that the image is gone.
        return task.set_caching_options(False).output

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
            image=image or self.images.trainer,
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
            **config.parsed_hardware.scheduling(),
        ).set_display_name("train")
        return self._in_image(collect_model)(job=job.outputs["gcp_resources"], output=output)

    def evaluate(self, config: RunConfig, model: Any, dataset: Any, champion: Any) -> Any:
        return self._in_image(evaluate)(
            settings=config.evaluate.model_dump_json(), model=model, dataset=dataset, champion=champion
        )

    def register_model(self, config: RunConfig, trained: Any, evaluation: Any, run_id: Any, champion: Any) -> Any:  # noqa: ARG002
        if self.settings.serving_image is None:
            raise UserError(
                "A registered model needs an image that serves it.",
                setting="vertex.serving_image",
                value=None,
                allowed="an image that serves a SavedModel, by digest or by a tag that is never moved",
                mend="--set vertex.serving_image=IMAGE",
            )
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
        """A step's component, to run in the steps' image."""
        return dsl.component(component.python_func, base_image=self.images.steps, install_kfp_package=False)


def pipeline(config: RunConfig, images: Images) -> Any:
    """The pipeline for Vertex AI, its containers those of `images`; its parameter is the champion to beat.

    Raises:
        UserError: The configuration does not say where on Vertex AI.
    """
    if config.vertex is None:
        raise no_place_on_vertex()
    platform = VertexPlatform(config.vertex, images)

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.model.builder} on {config.data.source}")
    def training(champion: str = "") -> None:
        training_steps(config, platform, dsl.PIPELINE_JOB_NAME_PLACEHOLDER, platform.output, champion)

    return training
