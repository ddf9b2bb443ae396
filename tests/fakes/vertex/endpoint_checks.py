"""The service's validation of endpoints and of what is deployed on them, with its error messages.

Sources: the comments of endpoint.proto and endpoint_service.proto, which are the docstrings of
google.cloud.aiplatform_v1.types, and, for machines, https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/
configure-compute. Messages without a source are not documented.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from google.cloud import aiplatform_v1 as vertex

from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.platforms.vertex.endpoints.machines import MACHINES, SERVING_PREFIX
from tests.fakes.errors import ServiceError
from tests.fakes.vertex.shapes import check_act_as, check_display_name, check_key, check_labels, check_network, invalid
from tests.fakes.vertex.worker_pools import check_demand
from tests.fakes.world import Project, World

# CreateEndpointRequest.endpoint_id
ENDPOINT_ID = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?|[1-9][0-9]{0,8}")
# DeployedModel.id
DEPLOYED_ID = re.compile(r"[0-9]{1,10}")
ALL_TRAFFIC = 100
# In DeployModelRequest.traffic_split, the model that is being deployed.
NEW = "0"
# ModelContainerSpec.deployment_timeout: "Limit for deployment timeout is 2 hours."
LONGEST_DEPLOYMENT = 7200
# Choose an endpoint type: "Configurable up to 1 hour" on dedicated endpoints.
LONGEST_INFERENCE = 3600
UPDATABLE = ("display_name", "description", "labels", "traffic_split")
MUTABLE = (
    "dedicated_resources.min_replica_count",
    "dedicated_resources.max_replica_count",
    "dedicated_resources.required_replica_count",
    "dedicated_resources.autoscaling_metric_specs",
    "disable_container_logging",
)
METRICS = tuple(
    f"aiplatform.googleapis.com/prediction/online/{name}"
    for name in ("cpu/utilization", "accelerator/duty_cycle", "request_count")
)

# "Machine types" on the page above, besides those without accelerators: vCPUs, and a machine's accelerators.
_GPU_MACHINES = {
    **{f"a2-highgpu-{n}g": (12 * n, "NVIDIA_TESLA_A100", n) for n in (1, 2, 4, 8)},
    "a2-megagpu-16g": (96, "NVIDIA_TESLA_A100", 16),
    **{f"a2-ultragpu-{n}g": (12 * n, "NVIDIA_A100_80GB", n) for n in (1, 2, 4, 8)},
    **{f"a3-highgpu-{n}g": (26 * n, "NVIDIA_H100_80GB", n) for n in (1, 2, 4, 8)},
    "a3-edgegpu-8g": (208, "NVIDIA_H100_80GB", 8),
    "a3-ultragpu-8g": (224, "NVIDIA_H200_141GB", 8),
    "a4-highgpu-8g": (224, "NVIDIA_B200", 8),
    **{f"g2-standard-{n}": (n, "NVIDIA_L4", {24: 2, 48: 4, 96: 8}.get(n, 1)) for n in (4, 8, 12, 16, 24, 32, 48, 96)},
    **{f"g4-standard-{48 * n}": (48 * n, "NVIDIA_RTX_PRO_6000", n) for n in (1, 2, 4, 8)},
}
CORES = MACHINES | {name: cores for name, (cores, _, _) in _GPU_MACHINES.items()}
# "Optional GPU accelerators": counts on N1 machines of up to 8, of 16 and of 32 vCPUs.
_OPTIONAL_GPUS = {
    "NVIDIA_TESLA_P100": ((1, 2, 4), (1, 2, 4), (2, 4)),
    "NVIDIA_TESLA_V100": ((1, 2, 4, 8), (2, 4, 8), (4, 8)),
    "NVIDIA_TESLA_P4": ((1, 2, 4), (1, 2, 4), (2, 4)),
    "NVIDIA_TESLA_T4": ((1, 2, 4), (1, 2, 4), (2, 4)),
}


def failed_precondition(message: str) -> ServiceError:
    """Return a FAILED_PRECONDITION error, whose HTTP status is 400."""
    return ServiceError(400, message, "FAILED_PRECONDITION")


def check_endpoint(world: World, project: Project, endpoint: vertex.Endpoint, region: str) -> None:
    """Check a new endpoint."""
    check_display_name(endpoint.display_name)
    check_labels(endpoint.labels)
    check_key(world, project, endpoint.encryption_spec.kms_key_name, region)
    check_network(endpoint.network)
    private = endpoint.private_service_connect_config.enable_private_service_connect
    if endpoint.network and (private or endpoint.enable_private_service_connect):
        raise invalid("Only one of the fields, network or private_service_connect_config, can be set.")
    if endpoint.network and endpoint.dedicated_endpoint_enabled:
        raise invalid("A dedicated endpoint cannot be peered with a network.")
    check_traffic(endpoint.traffic_split, ())
    check_inference_timeout(endpoint)


def check_inference_timeout(endpoint: vertex.Endpoint) -> None:
    """Check the time-out of requests, which can be chosen for dedicated endpoints only.

    Source: https://cloud.google.com/vertex-ai/docs/predictions/choose-endpoint-type, "Inference timeout".
    """
    seconds = endpoint.client_connection_config.inference_timeout.total_seconds()
    if seconds and not (endpoint.dedicated_endpoint_enabled and 0 < seconds <= LONGEST_INFERENCE):
        raise invalid(
            "client_connection_config.inference_timeout can be set on dedicated endpoints only, to at most "
            f"{LONGEST_INFERENCE} seconds."
        )


def check_traffic(split: Mapping[str, int], deployed: Collection[str]) -> None:
    """Check that a traffic split is empty or adds up to 100, and names models that are deployed.

    Source: Endpoint.traffic_split; the message about ids is quoted in GoogleCloudPlatform/java-docs-samples#8475.
    """
    unknown = [name for name in split if name not in deployed]
    if unknown:
        raise invalid(f"The following DeployedModel ID(s) [{', '.join(unknown)}] do not exist.")
    if any(share < 0 or share > ALL_TRAFFIC for share in split.values()):
        raise invalid("The traffic percentage values must be between 0 and 100.")
    if split and sum(split.values()) != ALL_TRAFFIC:
        raise invalid(f"The traffic percentage values must add up to 100, got {sum(split.values())}.")


def check_deployed_model(
    world: World, project: Project, caller: str, deployed: vertex.DeployedModel, model: vertex.Model, region: str
) -> None:
    """Check a model that is to be deployed, apart from its id."""
    if deployed.display_name:
        check_display_name(deployed.display_name)
    if not model.container_spec.image_uri:
        raise failed_precondition(f"Model {model.name} has no container_spec and cannot be deployed.")
    kind = vertex.DeployedModel.pb(deployed).WhichOneof("prediction_resources")
    if kind is None:
        raise invalid("One of dedicated_resources, automatic_resources and shared_resources must be specified.")
    if kind != "dedicated_resources":
        # Model.supported_deployment_resources_types; of custom models, it is DEDICATED_RESOURCES.
        raise failed_precondition(f"'{kind}' is not supported for Model {model.name}.")
    check_resources(deployed.dedicated_resources, region)
    if deployed.service_account:
        check_act_as(world, project, caller, deployed.service_account)


def check_resources(resources: vertex.DedicatedResources, region: str) -> None:
    """Check machine, accelerators and numbers of replicas. Source: DedicatedResources in machine_resources.proto."""
    check_replicas(resources)
    check_machine(resources.machine_spec, region)
    for spec in resources.autoscaling_metric_specs:
        if spec.metric_name not in METRICS or not 0 <= spec.target <= 100:
            raise invalid(f"Invalid autoscaling metric {spec.metric_name!r} with target {spec.target}.")


def check_replicas(resources: vertex.DedicatedResources) -> None:
    """Check numbers of replicas."""
    least, most = resources.min_replica_count, resources.max_replica_count
    if least < 1:
        raise invalid("min_replica_count must be greater than or equal to 1.")
    if most and most < least:
        raise invalid(f"max_replica_count {most} must be greater than or equal to min_replica_count {least}.")
    if resources.required_replica_count > least:
        raise invalid("required_replica_count must be less than or equal to min_replica_count.")


def check_machine(spec: vertex.MachineSpec, region: str) -> None:
    """Check a machine type and its accelerators, of online or batch prediction."""
    name, kind, count = spec.machine_type, spec.accelerator_type.name, spec.accelerator_count
    kind = "" if kind == "ACCELERATOR_TYPE_UNSPECIFIED" else kind
    if name not in CORES:
        raise invalid(f"Machine type {name} is not supported.")
    if bool(kind) != bool(count):
        raise invalid("Both `accelerator_type` and `accelerator_count` should be specified or none.")
    if name in _GPU_MACHINES:
        _, built_in, number = _GPU_MACHINES[name]
        if not kind:
            raise invalid(f'Machine type "{name}" must be used with accelerators.')
        fits = (kind, count) == (built_in, number)
    else:
        size = 0 if CORES[name] <= 8 else 1 if CORES[name] == 16 else 2
        counts = _OPTIONAL_GPUS.get(kind, ((), (), ()))[size] if name.startswith("n1-") else ()
        fits = not kind or count in counts
    if not fits:
        raise invalid(f'Accelerator "{kind}" is not supported for machine type "{name}"')
    row = load().accelerator(kind) if kind else None
    if row is not None and row.regions and region not in row.regions:
        raise invalid(f"Accelerator {row.title} is not available in region {region}.")


def check_quota(
    world: World, wanted: vertex.DeployedModel, project: str, region: str, others: Iterable[vertex.DeployedModel]
) -> None:
    """Raise the service's error if a deployed model exceeds `world.quotas`, with `others` that have their part."""
    held = sum((demand(one) for one in others), Counter[str]())
    check_demand(world, demand(wanted), held, project, region)


def demand(deployed: vertex.DeployedModel) -> Counter[str]:
    """Return what a deployed model is charged for by quota metric.

    "You will be charged for (max_replica_count * number of cores in the selected machine type) and (max_replica_count *
    number of GPUs per replica in the selected machine type)": DedicatedResources.max_replica_count. The metrics are
    custom_model_serving_cpus, …_nvidia_l4_gpus and …_preemptible_nvidia_h100_gpus (notebooks of vertex-ai-samples).
    That other families have their own, as in training, is an assumption.
    """
    resources = deployed.dedicated_resources
    machine = resources.machine_spec
    replicas = max(resources.max_replica_count, resources.min_replica_count)
    family = load().cpu_quotas.get(machine.machine_type.partition("-")[0], "cpus")
    prefix = SERVING_PREFIX + "preemptible_" * resources.spot
    taken = Counter({prefix + ("cpus" if resources.spot else family): CORES[machine.machine_type] * replicas})
    row = load().accelerator(machine.accelerator_type.name) if machine.accelerator_type else None
    if row is not None and row.quota:
        taken[prefix + row.quota] += machine.accelerator_count * replicas
    return taken
