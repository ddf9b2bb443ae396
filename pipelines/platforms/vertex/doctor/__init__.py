"""Checks of a run on Vertex AI: its images, project, quotas and endpoint."""

from __future__ import annotations

from slipway.components.cloud.quick_import import SERVICES
from slipway.pipelines.doctor.configuration import cost
from slipway.pipelines.platforms.base import Check
from slipway.pipelines.platforms.vertex import search
from slipway.pipelines.platforms.vertex.doctor import endpoints, quotas, resources

ENDPOINTS = f"{SERVICES}.endpoint_service"
JOBS = (f"{SERVICES}.pipeline_service", f"{SERVICES}.job_service")
STEPS = "slipway.pipelines.platforms.vertex.steps"
SCHEDULES = ("slipway.pipelines.platforms.vertex.schedules.service", f"{SERVICES}.schedule_service")
CHECKS = (
    Check("search", search.check, of_run=True, each="candidate"),
    Check("cost", cost, of_run=True, each="candidate"),
    Check("serving image", resources.serving_image, of_run=True, each="candidate"),
    Check("endpoint", endpoints.deployment, of_run=True, each="candidate"),
    Check("endpoint machine", endpoints.machine, of_run=True),
    Check("credentials", resources.credentials, of_run=True, remote=True),
    Check("project", resources.project_exists, of_run=True, remote=True),
    Check("APIs", resources.apis, of_run=True, remote=True),
    Check("service agents", resources.service_agents, of_run=True, remote=True, each="candidate"),
    Check("own rights", resources.own_rights, of_run=True, remote=True),
    Check("run-as account", resources.run_as_account, of_run=True, remote=True),
    Check("bucket", resources.bucket_place, of_run=True, remote=True, each="candidate"),
    Check("bucket rights", resources.bucket_rights, of_run=True, remote=True, each="candidate"),
    Check("repository", resources.repository, of_run=True, remote=True, each="candidate"),
    Check("builder", resources.builder, remote=True),
    Check("encryption key", resources.encryption_key, of_run=True, remote=True, each="candidate"),
    Check("image", resources.image, of_run=True, remote=True, each="candidate"),
    Check("GPU driver", resources.gpu_driver, of_run=True, remote=True, each="candidate"),
    Check("Dataflow image", resources.dataflow_image, of_run=True, remote=True, each="candidate"),
    Check("roles", resources.roles, remote=True, each="candidate"),
    Check("data disk", resources.data_disk, of_run=True, remote=True),
    Check("quota", quotas.run_quota, of_run=True, remote=True, each="candidate", moves=True, imports=(STEPS,)),
    Check("endpoint quota", endpoints.quota, of_run=True, remote=True, each="candidate", imports=(ENDPOINTS,)),
    Check("schedule quota", quotas.schedule_quota, remote=True),
    Check("schedules", resources.schedules, remote=True, imports=SCHEDULES),
    Check("first job", resources.first_job, remote=True, imports=JOBS),
)
