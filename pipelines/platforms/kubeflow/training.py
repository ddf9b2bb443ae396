"""Where a run trains on the cluster: in the step's own pod or on the pods of a TrainJob, on which nodes, with what."""

from __future__ import annotations

from slipway.components.train.trainjob.manifest import TrainJobSettings
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.resources import StepResources
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.platforms.kubeflow.settings import KubeflowSettings

# https://docs.cloud.google.com/kubernetes-engine/docs/how-to/tpus and …/how-to/gpus
TPU_RESOURCE = "google.com/tpu"
TPU_LABEL, TOPOLOGY_LABEL = "cloud.google.com/gke-tpu-accelerator", "cloud.google.com/gke-tpu-topology"
GPU_LABEL = "cloud.google.com/gke-accelerator"
# https://github.com/NVIDIA/k8s-device-plugin/blob/main/docs/gpu-feature-discovery/README.md
PRODUCT_LABEL = "nvidia.com/gpu.product"


def uses_train_job(settings: KubeflowSettings, hardware: Hardware, *, searches: bool = False) -> bool:
    """Return whether a TrainJob trains; otherwise the pod of the step train does.

    Only a TrainJob has several pods, waits in a queue of Kueue, and has a priority. Each trial of a search has one.
    """
    return searches or hardware.hosts > 1 or hardware.is_tpu or bool(settings.queue or settings.priority_class)


def train_job_settings(
    config: RunConfig, settings: KubeflowSettings, *, searches: bool = False
) -> TrainJobSettings | None:
    """Return what the pods of the run's TrainJob have; None if the step's pod trains."""
    hardware = config.training_hardware
    if not uses_train_job(settings, hardware, searches=searches):
        return None
    assert settings.volume is not None  # as check_volume has checked
    return TrainJobSettings(
        volume=settings.volume,
        folder=settings.folder,
        resources=_limits(settings, hardware),
        node_selector=node_selector(settings, hardware),
        tolerations=tolerations(settings),
        image_pull_secrets=settings.image_pull_secrets,
        service_account=settings.service_account,
        run_as_user=settings.run_as_user,
        queue=settings.queue,
        priority_class=settings.priority_class,
    )


def node_selector(settings: KubeflowSettings, hardware: Hardware) -> dict[str, str]:
    """Return the labels of the nodes that train: those of the hardware, and the configured ones."""
    row = hardware.accelerator_row
    labels: dict[str, str] = {}
    if row is None:
        pass
    elif row.is_tpu and row.gke and hardware.topology:
        labels = {TPU_LABEL: row.gke, TOPOLOGY_LABEL: hardware.topology}
    elif settings.gpu_labels == "gke" and row.type:
        labels = {GPU_LABEL: row.type.lower().replace("_", "-")}
    elif settings.gpu_labels == "nvidia" and row.product:
        labels = {PRODUCT_LABEL: row.product}
    return labels | settings.node_selector


def tolerations(settings: KubeflowSettings) -> list[dict[str, str | int]]:
    """Return the tolerations as a pod's specification has them."""
    return [taint.model_dump(exclude_defaults=True) | {"operator": taint.operator} for taint in settings.tolerations]


def limits_of(settings: KubeflowSettings, step: str) -> StepResources:
    """Return the limits of a working step: its own, else those of all steps."""
    step_limits = settings.steps.get(step) or StepResources()
    return StepResources(cpu=step_limits.cpu or settings.cpu, memory=step_limits.memory or settings.memory)


def _limits(settings: KubeflowSettings, hardware: Hardware) -> dict[str, str]:
    limits = limits_of(settings, "train")
    resources = {} if limits.cpu is None else {"cpu": str(limits.cpu)}
    if limits.memory is not None:
        resources["memory"] = limits.memory
    if hardware.is_tpu:
        resources[TPU_RESOURCE] = str(hardware.chips // hardware.machines_per_replica)
    elif hardware.accelerators_per_replica:
        resources[settings.accelerator] = str(hardware.accelerators_per_replica)
    return resources
