"""The pipeline for Vertex AI Pipelines.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.pipeline_channel import PipelineArtifactChannel, PipelineParameterChannel

from slipway import steps
from slipway.components.build_image.component import build_image
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.setup_access.component import setup_access
from slipway.pipelines.config.config import RunConfig, VertexSettings, vertex_of
from slipway.pipelines.images.images import Images
from slipway.pipelines.pipeline import training_steps
from slipway.pipelines.platforms.base import Champion, Platform
from slipway.pipelines.platforms.vertex.access import access_settings
from slipway.pipelines.platforms.vertex.submission import serving_image_of
from slipway.pipelines.table import TASKS, Role, Task


class VertexPlatform(Platform):
    """Containers on Vertex AI; training is a custom job with the hardware's worker pools."""

    def __init__(self, settings: VertexSettings, images: Images) -> None:
        self.settings = settings
        self.images = images

    def image(self, role: Role) -> str:
        return {"steps": self.images.steps, "trainer": self.images.trainer, "evaluation": self.images.evaluation}[role]

    def configure(self, task: dsl.PipelineTask, row: Task) -> dsl.PipelineTask:
        super().configure(task, row)
        if row.retried and self.settings.retries:
            task.set_retry(self.settings.retries, backoff_duration="30s", backoff_factor=2.0)
        return task

    def build_image(self) -> str | PipelineParameterChannel:
        build = self.images.build
        if build is None:
            return self.images.trainer
        return self.add(
            build_image,
            request=build.request.model_dump_json(),
            source=build.source.model_dump_json(),
            settings=build.settings.model_dump_json(),
        ).output

    def setup_access(self, config: RunConfig) -> dsl.PipelineTask:
        settings = access_settings(config).model_dump_json()
        return self.add(setup_access, settings=settings, grant=self.settings.access == "grant")

    def data(self, config: RunConfig) -> DataSettings:
        if config.data.store.startswith("gs://"):
            return config.data
        return config.data.model_copy(update={"store": f"{self.settings.bucket}/datasets"})

    def train(
        self,
        config: RunConfig,
        worker_pool_specs: PipelineParameterChannel,
        dataset: PipelineArtifactChannel,  # noqa: ARG002
        output: str | PipelineParameterChannel,
        access: dsl.PipelineTask | None,
    ) -> dsl.PipelineTask:
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
            # Replicas, or the hosts of a TPU slice, that train together can only restart together.
            **{"restart_job_on_worker_restart": config.parsed_hardware.hosts > 1},
            **config.parsed_hardware.scheduling(),
        ).set_display_name("train")
        self.configure(job, TASKS["custom-training-job"])
        if access is not None:
            job.after(access)
        return self.add(steps.collect_model, job.outputs["gcp_resources"], output)

    def find_champion(self, config: RunConfig) -> Champion:
        """Return the champion at the time of the run, not of the compilation."""
        if config.evaluate.champion == "none":
            return Champion("")
        task = self.add(steps.find_champion, self._connection, config.model_name)
        return Champion(task.outputs["uri"], task.outputs["version"])

    def register_model(
        self,
        config: RunConfig,
        model: PipelineArtifactChannel,
        evaluation: dsl.PipelineTask,
        run_id: str | PipelineParameterChannel,
        champion: Champion,
    ) -> dsl.PipelineTask:
        return self.add(
            steps.register_version,
            model,
            evaluation.outputs["metrics"],
            evaluation.outputs["Output"],
            connection=self._connection,
            model_name=config.model_name,
            serving_image=serving_image_of(self.settings, config.train),
            run_id=run_id,
            job=dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
            labels=self.settings.labels,
            encryption_key=self.settings.encryption_key,
            champion=champion.version,
        )

    @property
    def _connection(self) -> dict[str, object]:
        return {"project": self.settings.project, "region": self.settings.region, "endpoints": self.settings.endpoints}


def pipeline(config: RunConfig, images: Images, run_id: str | None = None) -> BaseComponent:
    """Return the pipeline for Vertex AI. It has no parameters: manual and scheduled runs have the same spec.

    Args:
        config: The run's configuration.
        images: The images of its containers.
        run_id: The run to resume, whose output directory is kept; by default, each job has its own.

    Raises:
        UserError: The configuration has no vertex section.
    """
    platform = VertexPlatform(vertex_of(config), images)
    run = run_id or dsl.PIPELINE_JOB_NAME_PLACEHOLDER

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.title}")
    def training() -> None:
        champion = platform.find_champion(config)
        training_steps(config, platform, run, f"{platform.settings.bucket}/runs/{run}", champion)

    return training
