"""Reject configurations that Kubeflow cannot run, before submitting."""

from __future__ import annotations

from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.kubeflow import KubeflowSettings
from slipway.pipelines.hardware.choice import Hardware, base_text


def settings_of(config: RunConfig) -> KubeflowSettings:
    """Return the kubeflow section, after checking that Kubeflow can run the configuration.

    Raises:
        UserError: The section is missing, or the hardware is not supported on Kubeflow.
    """
    if config.kubeflow is None:
        raise UserError(
            "The configuration has no kubeflow section.",
            setting="kubeflow",
            value=None,
            allowed="host, image, and volume or pipeline_root; see docs/kubeflow.md",
            fix="add a section kubeflow: with these keys to the configuration",
        )
    check_hardware(config.parsed_hardware)
    return config.kubeflow


def check_hardware(hardware: Hardware) -> None:
    """Raise UserError for hardware that is not one container on the GPUs of one node.

    Kubeflow Pipelines has no jobs of several replicas.
    """
    base = base_text(hardware.accelerator_row, hardware.count, hardware.topology)
    if hardware.is_tpu:
        problem, near = "TPU training is not supported on Kubeflow.", "cpu"
    elif hardware.replicas > 1:
        problem = (
            f"Training on Kubeflow is one container, but this hardware has {hardware.replicas} replicas, which "
            "Kubeflow Pipelines does not support."
        )
        near = base
    elif str(hardware) != base:
        problem = (
            "Machine types, Spot, disks, reservations and time limits exist only on Vertex AI. On Kubeflow, "
            "kubeflow.node_selector, cpu and memory choose the nodes and limit what a step uses of them."
        )
        near = base
    else:
        return
    raise UserError(
        problem,
        setting="hardware",
        value=str(hardware),
        allowed="cpu, or one replica's GPUs, such as gpux2, t4x1 or a100x8",
        nearest=near,
        fix=f"--hardware {near}, or --target vertex",
    )
