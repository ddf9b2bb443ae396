"""Reject configurations that Kubeflow cannot run, before submitting."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, no_section
from slipway.pipelines.hardware.choice import Hardware
from slipway.pipelines.platforms.kubeflow.settings import KubeflowSettings
from slipway.pipelines.platforms.kubeflow.training import uses_train_job
from slipway.trainer.config import TrainSettings


def settings_of(config: RunConfig) -> KubeflowSettings:
    """Return the kubeflow section, after checking that Kubeflow can run the configuration.

    Raises:
        UserError: The section is missing, or the hardware is not supported on Kubeflow.
    """
    settings = config.section(KubeflowSettings)
    if settings is None:
        fix = "add a section kubeflow: with these keys to the configuration"
        raise no_section("kubeflow", "host, image, and volume or pipeline_root; see docs/kubeflow.md", fix)
    check_hardware(config.training_hardware, settings)
    return settings


def check_hardware(hardware: Hardware, settings: KubeflowSettings) -> None:
    """Raise UserError for hardware that the cluster's nodes cannot be, or that the settings do not select."""
    row = hardware.accelerator_row
    base = hardware.base
    plain = base if not hardware.is_tpu or "@" not in str(hardware) else f"{base}@{hardware.machine}"
    near = plain + (f"*{hardware.replicas}" if hardware.replicas > 1 else "")
    if hardware.is_tpu and (row is None or row.gke is None or hardware.topology is None):
        problem, near = "On Kubeflow, TPUs are slices with a topology, as GKE has them.", "tpu-v5e-2x4"
    elif str(hardware) != near:
        problem = (
            "Machine types, Spot, disks, reservations and time limits exist only on Vertex AI. On Kubeflow, "
            "kubeflow.node_selector, cpu and memory choose the nodes and limit what a step uses of them."
        )
    else:
        _check_gpu_labels(hardware, settings)
        check_volume(hardware, settings)
        return
    raise UserError(
        problem,
        setting="hardware",
        value=str(hardware),
        allowed="cpu*2, l4x4*2, tpu-v5e-2x4, or any GPUs of the cluster, such as gpux2",
        nearest=near,
        fix=f"--hardware '{near}', or --target vertex",
    )


def _check_gpu_labels(hardware: Hardware, settings: KubeflowSettings) -> None:
    """Raise UserError if nothing selects nodes with the kind of GPU."""
    row = hardware.accelerator_row
    if row is None or row.is_tpu or row.status == "here" or settings.node_selector:
        return
    any_gpu = str(hardware).replace(hardware.base, f"gpux{hardware.count}")
    if settings.gpu_labels is None:
        raise UserError(
            f"Nothing selects nodes with {row.title}: by default, a GPU of the cluster is any GPU.",
            setting="kubeflow.gpu_labels",
            value=None,
            allowed="gke; nvidia, with NVIDIA's GPU feature discovery; or kubeflow.node_selector",
            fix=f"--set kubeflow.gpu_labels=gke, or --hardware '{any_gpu}'",
        )
    if settings.gpu_labels == "nvidia" and row.product is None:
        raise UserError(
            f"The label nvidia.com/gpu.product of {row.title} is not known.",
            setting="hardware",
            value=str(hardware),
            fix=f"--hardware '{any_gpu}', and the nodes' label in kubeflow.node_selector",
        )


def check_volume(hardware: Hardware, settings: KubeflowSettings, *, searches: bool = False) -> None:
    """Raise UserError if a TrainJob trains, and no volume is configured."""
    if settings.volume is not None or not uses_train_job(settings, hardware, searches=searches):
        return
    subject = f"{hardware.hosts} pods train" if hardware.hosts > 1 else "a TrainJob trains"
    subject = "The trials of a search are TrainJobs" if searches else f"With {hardware}, {subject}"
    raise UserError(
        f"{subject}, which read the data set and write checkpoints on a volume, and none is configured.",
        setting="kubeflow.volume",
        value=None,
        allowed="a PersistentVolumeClaim with the access mode ReadWriteMany",
        fix="--set kubeflow.volume=CLAIM",
    )


def check_program(train: TrainSettings) -> None:
    """Raise UserError for a program in an image of its own."""
    if train.image is not None:
        raise UserError(
            "Training on Kubeflow runs in kubeflow.image, which contains Slipway's steps, too.",
            setting="train.image",
            value=train.image,
            allowed="train.module or train.command, with the program and its packages in kubeflow.image",
            fix="remove train.image, and build kubeflow.image from it",
        )
