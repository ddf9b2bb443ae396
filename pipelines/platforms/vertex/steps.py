"""The pipeline for Vertex AI Pipelines.

kfp reads a pipeline's annotations as objects, so they are not postponed here.
"""

import functools
from collections.abc import Callable

from google_cloud_pipeline_components.utils import container_component_dumps
from google_cloud_pipeline_components.v1.custom_job import (
    CustomTrainingJobOp,
    create_custom_training_job_from_component,
)
from google_cloud_pipeline_components.v1.vertex_notification_email import VertexNotificationEmailOp
from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.pipeline_channel import PipelineArtifactChannel, PipelineParameterChannel

from slipway import steps
from slipway.components.build_image.component import build_image
from slipway.components.deploy.settings import DeploySettings
from slipway.components.deploy.steps import deploy_model
from slipway.components.notify.component import notify
from slipway.components.notify.settings import ExitTask, NotifySettings
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.register_model.vertex.steps import find_champion, register_version
from slipway.components.setup_access.component import setup_access
from slipway.components.train.tuning import SearchSettings
from slipway.components.train.vertex.search import TRIALS
from slipway.components.train.vertex.steps import collect_model
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.resources import VertexStepResources, resources_of
from slipway.pipelines.hardware.quotas import step_machine
from slipway.pipelines.parameters import Channels, with_parameters
from slipway.pipelines.pipeline import training_steps
from slipway.pipelines.platforms.steps import Champion, PlatformSteps
from slipway.pipelines.platforms.vertex.access import access_settings, uses_dataflow, with_dataflow
from slipway.pipelines.platforms.vertex.endpoints.files import FILES
from slipway.pipelines.platforms.vertex.facts import console_url, facts_of, serving_container
from slipway.pipelines.platforms.vertex.images import Images
from slipway.pipelines.platforms.vertex.search import request
from slipway.pipelines.platforms.vertex.settings import VertexSettings, vertex_of
from slipway.pipelines.step import Role, Task
from slipway.pipelines.table import STEPS, TASKS


class VertexSteps(PlatformSteps):
    """Containers on Vertex AI; training is a custom job with the hardware's worker pools.

    If the resumed run is `trained`, no job is created: the model is in the run's output directory.
    """

    def __init__(
        self, settings: VertexSettings, images: Images, *, trained: bool, search: SearchSettings | None = None
    ) -> None:
        self.settings = settings
        self.images = images
        self.trained = trained
        self.compares = not trained and search is None
        self.search = search
        self.metric = search.metric if search else ""

    def image(self, role: Role) -> str:
        return {"steps": self.images.steps, "trainer": self.images.trainer, "evaluation": self.images.evaluation}[role]

    def configure(self, task: dsl.PipelineTask, row: Task) -> dsl.PipelineTask:
        super().configure(task, row)
        resources = resources_of(row.name, self.settings.steps, "vertex")
        if resources is not None and not resources.needs_custom_job:
            if resources.cpu is not None:
                task.set_cpu_limit(str(resources.cpu))
            if resources.memory_gb is not None:
                task.set_memory_limit(f"{resources.memory_gb}G")
        if row.retried and self.settings.retries:
            task.set_retry(self.settings.retries, backoff_duration="30s", backoff_factor=2.0)
        return task

    def place(self, row: Task) -> steps.Place:
        resources = resources_of(row.name, self.settings.steps, "vertex")
        if resources is None or not resources.needs_custom_job:
            return super().place(row)
        return functools.partial(self._custom_job, self.image(row.image), resources)

    def _custom_job(
        self, image: str, resources: VertexStepResources, component: BaseComponent
    ) -> Callable[..., dsl.PipelineTask]:
        """Return a component as one that runs in a custom job, on the requested machine and disk."""
        return create_custom_training_job_from_component(
            steps.on_image(component, image),
            machine_type=step_machine(resources.cpus, resources.memory_gb).name,
            boot_disk_size_gb=resources.disk_gb,
            service_account=self.settings.service_account or "",
            network=self.settings.network or "",
            encryption_spec_key_name=self.settings.encryption_key or "",
            labels=self.settings.labels,
            # Without a value here, the launcher's payload would have placeholders that nothing replaces.
            reserved_ip_ranges=[],
            psc_interface_config={},
        )

    def exit_tasks(self, config: RunConfig, run_id: str | PipelineParameterChannel) -> list[dsl.PipelineTask]:
        """Add Google's task for e-mail, and Slipway's for the other channels."""
        settings = config.section(NotifySettings)
        tasks = []
        if settings and (settings.webhook or settings.topic):
            about = ExitTask(
                notify=settings,
                name=config.name,
                hardware=str(config.training_hardware),
                where="Vertex AI",
                endpoints=self.settings.endpoints,
                region=self.settings.region,
                facts=facts_of(config),
                steps={task.name: step.name for step in STEPS.values() for task in step.tasks_on("vertex")},
            )
            page = console_url(config, dsl.PIPELINE_JOB_NAME_PLACEHOLDER)
            tasks.append(self.add(notify, settings=about.model_dump_json(), run=run_id, page=page))
        if settings and settings.email:
            mail = VertexNotificationEmailOp(recipients=settings.email)
            tasks.append(self.configure(mail, TASKS["vertex-pipelines-notification-email"]))
        return tasks

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

    def preparing_starts_machines(self, config: RunConfig) -> bool:
        resources = self.settings.steps.get("prepare_data")
        return super().preparing_starts_machines(config) or (resources is not None and resources.needs_custom_job)

    def data(self, data: DataSettings) -> DataSettings:
        if not data.store.startswith("gs://"):
            data = data.model_copy(update={"store": f"{self.settings.bucket}/datasets"})
        if data.source.startswith("bigquery:"):
            data = self.settings.reading(data)
        return with_dataflow(self.settings, data, self.images.beam) if uses_dataflow(data) else data

    def train(
        self,
        config: RunConfig,
        worker_pool_specs: PipelineParameterChannel,
        dataset: PipelineArtifactChannel,
        output: str | PipelineParameterChannel,
        access: dsl.PipelineTask | None,
    ) -> dsl.PipelineTask:
        if self.search is not None:
            return self._tuned(config, self.search, worker_pool_specs, dataset, output, access)
        if self.trained:
            return self.add(collect_model, "", output, dataset)
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
            **_scheduling(config),
        ).set_display_name("train")
        self.configure(job, TASKS["custom-training-job"])
        if access is not None:
            job.after(access)
        return self.add(collect_model, job.outputs["gcp_resources"], output, dataset)

    def _tuned(
        self,
        config: RunConfig,
        search: SearchSettings,
        worker_pool_specs: PipelineParameterChannel,
        dataset: PipelineArtifactChannel,
        output: str | PipelineParameterChannel,
        access: dsl.PipelineTask | None,
    ) -> dsl.PipelineTask:
        """Add the search, whose best trial's model is collected. Each attempt of a run has trials of its own."""
        if self.trained:
            return self.add(collect_model, "", output, dataset, connection=self._connection)
        job = _tuning_job(config, self.settings, search)(
            worker_pool_specs=worker_pool_specs,
            base_output_directory=f"{output}/{TRIALS}/{dsl.PIPELINE_JOB_NAME_PLACEHOLDER}",
            project=self.settings.project,
            location=self.settings.region,
        ).set_display_name("train")
        self.configure(job, TASKS["hyperparameter-tuning-job"])
        if access is not None:
            job.after(access)
        return self.add(collect_model, job.outputs["gcp_resources"], output, dataset, connection=self._connection)

    def find_champion(self, config: RunConfig) -> Champion:
        """Return the champion at the time of the run, not of the compilation."""
        if config.evaluate.champion == "none":
            return Champion("")
        task = self.add(find_champion, self._connection, config.model_name)
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
            register_version,
            model,
            evaluation.outputs["metrics"],
            evaluation.outputs["Output"],
            connection=self._connection,
            model_name=config.model_name,
            container=serving_container(config, self.images),
            run_id=run_id,
            job=dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
            labels=self.settings.labels,
            encryption_key=self.settings.encryption_key,
            champion=champion.version,
        )

    def deploy(self, config: RunConfig, registered: dsl.PipelineTask) -> dsl.PipelineTask | None:
        settings = config.section(DeploySettings)
        if settings is None:
            return None
        deployment = FILES.read_one(settings.endpoint).deployment
        artifact = registered.outputs["registered"]
        return self.add(deploy_model, artifact, connection=self._connection, deployment=deployment)

    @property
    def _connection(self) -> dict[str, object]:
        return {"project": self.settings.project, "region": self.settings.region, "endpoints": self.settings.endpoints}


def pipeline(
    config: RunConfig,
    images: Images,
    run_id: str | None = None,
    defaults: RunConfig | None = None,
    *,
    trained: bool = False,
    search: SearchSettings | None = None,
) -> BaseComponent:
    """Return the pipeline for Vertex AI. Its parameters are those of the configuration.

    Args:
        config: The run's configuration.
        images: The images of its containers.
        run_id: The run to resume, whose output directory is kept; by default, each job has its own.
        defaults: The configuration with the default values of the parameters; by default, `config`.
        trained: Whether an earlier attempt of that run finished the training.
        search: How to search, if the training is a search.

    Raises:
        UserError: The configuration has no vertex section.
    """
    platform = VertexSteps(vertex_of(config), images, trained=trained, search=search)
    run = run_id or dsl.PIPELINE_JOB_NAME_PLACEHOLDER

    @dsl.pipeline(name=config.name, description=f"Slipway: {config.title}")
    @with_parameters(config, defaults)
    def training(parameters: Channels) -> None:
        with platform.notifying(config, run):
            champion = platform.find_champion(config)
            training_steps(config, platform, run, f"{platform.settings.bucket}/runs/{run}", champion, parameters)

    return training


def _scheduling(config: RunConfig) -> JsonObject:
    """Return a job's Scheduling: replicas, or the hosts of a TPU slice, that train together restart together."""
    hardware = config.training_hardware
    return {"restart_job_on_worker_restart": hardware.hosts > 1, **hardware.scheduling()}


def _tuning_job(config: RunConfig, settings: VertexSettings, search: SearchSettings) -> BaseComponent:
    """Return a component that creates a search by GCPC's launcher.

    GCPC's own component has neither scheduling nor early stopping nor labels.
    """
    # Imports Google's SDK, which takes longer than everything else here.
    from google_cloud_pipeline_components.v1.hyperparameter_tuning_job import HyperparameterTuningJobRunOp

    launcher = HyperparameterTuningJobRunOp.component_spec.implementation.container
    scheduling = _scheduling(config)

    @dsl.container_component
    def hyperparameter_tuning_job(
        worker_pool_specs: list,  # type: ignore[type-arg]
        base_output_directory: str,
        project: str,
        location: str,
        gcp_resources: dsl.OutputPath(str),  # type: ignore[valid-type]
    ) -> dsl.ContainerSpec:
        job = {
            "worker_pool_specs": worker_pool_specs,
            "scheduling": scheduling,
            "base_output_directory": {"output_uri_prefix": base_output_directory},
            "service_account": settings.service_account or "",
            "network": settings.network or "",
        }
        payload = {
            **request(config, search, job),
            "labels": settings.labels,
            "encryption_spec": {"kms_key_name": settings.encryption_key or ""},
        }
        arguments = {"--project": project, "--location": location, "--gcp_resources": gcp_resources}
        return dsl.ContainerSpec(
            image=launcher.image,
            command=launcher.command,
            args=[
                "--type",
                "HyperparameterTuningJob",
                "--payload",
                container_component_dumps(payload),
                *(part for option in arguments.items() for part in option),
            ],
        )

    component: BaseComponent = hyperparameter_tuning_job
    return component
