"""Checks of a project's quotas."""

from __future__ import annotations

from slipway.components.cloud.retries import retried
from slipway.core.errors import UserError
from slipway.pipelines.doctor.check import Context, NotApplicableError
from slipway.pipelines.doctor.project import Project
from slipway.pipelines.hardware import Hardware
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.placement import nearest_region

PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"
UNLIMITED = -1


def hardware_quota(context: Context) -> str:
    """The project's quota in the run's region is enough for the chosen hardware."""
    project = context.project
    hardware = context.config.parsed_hardware
    region = project.vertex.region
    metric, needed = hardware.quota_metric, hardware.quota_needed
    if metric is None or needed is None:
        raise NotApplicableError(f"no quota is known for {hardware}")
    limits = project.limits(metric)
    if limits is None:
        raise NotApplicableError(f"the project lists no {metric}")
    limit = _limit(limits, region)
    if limit == UNLIMITED or limit >= needed:
        return f"{_amount(limit)} of {metric} in {region}, {needed} needed"
    others = _others(project, hardware, limits, needed)
    near = nearest_region(region, others) if others else None
    ask = f"request {needed} at {PAGE.format(project=project.vertex.project)}"
    raise UserError(
        f"{hardware} needs {needed} of {metric}, but the project's limit in {region} is {limit}.",
        setting="hardware",
        value=str(hardware),
        allowed=f"a region with enough: {', '.join(others)}" if others else "no region has enough quota yet",
        nearest=near,
        fix=f"--set vertex.region={near} with a bucket there, or {ask}" if near else ask,
    )


def _others(project: Project, hardware: Hardware, limits: dict[str, int], needed: int) -> list[str]:
    """Return the other regions that have the hardware and enough quota for it."""
    regions = hardware.regions if hardware.regions is not None else load().regions()
    have = {region: _limit(limits, region) for region in regions if region != project.vertex.region}
    return [region for region, limit in have.items() if limit == UNLIMITED or limit >= needed]


def schedule_quota(context: Context) -> str:
    """The project's quota allows another schedule in the region."""
    project = context.project
    region = project.vertex.region
    metrics = [metric for metric in project.quotas() if "schedule" in metric.partition("/")[2]]
    limits = {metric: _limit(project.quotas()[metric], region) for metric in metrics}
    bounded = {metric: limit for metric, limit in limits.items() if limit != UNLIMITED}
    if not bounded:
        raise NotApplicableError("the project lists no quota for schedules")
    metric, limit = min(bounded.items(), key=lambda item: item[1])
    connection = project.connection
    request = {"parent": connection.parent, "filter": 'state="ACTIVE"'}
    active = retried(lambda: sum(1 for _ in connection.schedules.list_schedules(request)))
    if active >= limit:
        raise UserError(
            f"{active} schedules are active in {region}; the limit of {metric} is {limit}.",
            fix=f"slipway schedule pause NAME, or request more at {PAGE.format(project=project.vertex.project)}",
        )
    return f"{active} of {limit} active in {region}"


def _limit(limits: dict[str, int], region: str) -> int:
    return limits.get(region, limits.get("", 0))


def _amount(limit: int) -> str:
    return "no limit" if limit == UNLIMITED else str(limit)
