"""Each step's op on Vertex AI Pipelines, and the pipeline that they make.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google_cloud_pipeline_components.v1.custom_job import CustomTrainingJobOp
from kfp import dsl

from slipway.components.build_image.component import build_image
from slipway.components.evaluate.component import evaluate
from slipway.components.plan_training.component import plan_training
from slipway.components.prepare_data.component import prepare_data
from slipway.components.register_model.component import find_champion, register_version
from slipway.components.register_model.registration import NONE_ASKED
from slipway.components.setup_access.component import setup_access
from slipway.components.train.component import collect_model
from slipway.pipelines.config.config import RunConfig, VertexSettings, vertex_of
from slipway.pipelines.images.images import Images
from slipway.pipelines.pipeline import plan_arguments, training_steps
from slipway.pipelines.platforms.vertex.access import access_settings
from slipway.pipelines.platforms.vertex.submission import serving_image_of


class VertexPlatform:
    """Containers on Vertex AI; training is a custom job with the hardware's worker pools."""

    registers = True

    def __init__(self, settings: VertexSettings, images: Images) -> None:
        self.settings = settings
        self.images = images

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

    def setup_access(self, config: RunConfig) -> Any:
        task = self._in_image(setup_access)(
            settings=access_settings(config).model_dump_json(), grant=self.settings.access == "grant"
        )
        # What was granted yesterday may have been taken away since.
        return task.set_caching_options(False)

    def prepare_data(self, config: RunConfig) -> Any:
        data = config.data
        if not data.store.startswith("gs://"):
            data = data.model_copy(update={"store": f"{self.settings.bucket}/datasets"})
        return self._in_image(prepare_data)(settings=data.model_dump_json(), replicas=config.readers)

    def plan_training(self, config: RunConfig, dataset: Any, image: Any) -> Any:
        return self._in_image(plan_training)(
            **plan_arguments(config),
            image=image or self.images.trainer,
            memory=0,
            dataset=dataset,
        )

    def train(self, config: RunConfig, worker_pool_specs: Any, dataset: Any, output: Any) -> Any:  # noqa: ARG002
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
        return self._in_image(evaluate, self.images.evaluation)(
            settings=config.evaluate.model_dump_json(), model=model, dataset=dataset, champion=champion.uri
        )

    def find_champion(self, config: RunConfig) -> "Champion":
        """The version to beat, looked up when the pipeline runs: the one that is champion by then, not now."""
        if config.evaluate.champion == "none":
            return Champion("", NONE_ASKED)
        task = self._in_image(find_champion)(place=self._place, model_name=config.model_name)
        # Its inputs stay the same while the champion changes: an earlier answer would be stale.
        task.set_caching_options(enable_caching=False)
        return Champion(task.outputs["uri"], task.outputs["version"])

    def register_model(self, config: RunConfig, trained: Any, evaluation: Any, run_id: Any, champion: Any) -> Any:
        candidate = {
            "model": config.model_name,
            "serving_image": serving_image_of(self.settings),
            "labels": self.settings.labels,
            "encryption_key": self.settings.encryption_key,
        }
        return self._in_image(register_version)(
            place=self._place,
            candidate=json.dumps(candidate),
            run_id=run_id,
            job=dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
            verdict=evaluation.outputs["Output"],
            champion=champion.version,
            model=trained.outputs["model"],
            metrics=evaluation.outputs["metrics"],
        )

    @property
    def _place(self) -> str:
        """What a step makes its Connection of, as JSON."""
        where = {"project": self.settings.project, "region": self.settings.region, "endpoints": self.settings.endpoints}
        return json.dumps(where)

    def _in_image(self, component: Any, image: str = "") -> Callable[..., Any]:
        """A step's component, to run in `image` or in the steps' image, and again where it fails."""
        packed = dsl.component(component.python_func, base_image=image or self.images.steps, install_kfp_package=False)

        def task(**arguments: Any) -> Any:
            made = packed(**arguments)
            if self.settings.retries:
                made.set_retry(self.settings.retries, backoff_duration="30s", backoff_factor=2.0)
            return made

        return task


@dataclass(frozen=True)
class Champion:
    """The version to beat: where its files are, and its resource name ("" for none yet, "none" for none asked)."""

    uri: Any
    version: Any


def pipeline(config: RunConfig, images: Images, run_id: str | None = None) -> Any:
    """The pipeline for Vertex AI. It has no parameters: a run by hand and a scheduled one are the same.

    Args:
        config: The run's configuration.
        images: What its containers run.
        run_id: The run to go on with, whose output directory is kept; without it, each job's own name.

    Raises:
        UserError: The configuration does not say where on Vertex AI.
    """
    platform = VertexPlatform(vertex_of(config), images)
    run: Any = run_id or dsl.PIPELINE_JOB_NAME_PLACEHOLDER

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.title}")
    def training() -> None:
        champion = platform.find_champion(config)
        training_steps(config, platform, run, f"{platform.settings.bucket}/runs/{run}", champion)

    return training
