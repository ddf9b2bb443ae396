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
    """Raise UserError for hardware that a task of Kubeflow Pipelines cannot have.

    A cluster has no custom jobs: training is one container, on GPUs that a node has.
    """
    base = base_text(hardware.accelerator_row, hardware.count, hardware.topology)
    if hardware.is_tpu:
        problem, near = "TPU training is not supported on Kubeflow.", "cpu"
    elif hardware.replicas > 1:
        problem = (
            f"On Kubeflow, training is one container, and this hardware is {hardware.replicas} replicas: "
            "Kubeflow Pipelines has no jobs of several."
        )
        near = base
    elif str(hardware) != base:
        problem = (
            "On Kubeflow, the cluster chooses the machine: machine types, Spot, disks, reservations and times are "
            "Vertex AI's. kubeflow.node_selector, cpu and memory say which nodes and how much of them."
        )
        near = base
    else:
        return
    raise UserError(
        problem,
        setting="hardware",
        value=str(hardware),
        allowed="cpu, or one replica's GPUs, such as t4x1 or a100x8",
        nearest=near,
        fix=f"--hardware {near}, or --target vertex",
    )
