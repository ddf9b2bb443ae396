"""Checks of what Google lets a project have."""

from __future__ import annotations

from slipway.components.cloud.retries import retried
from slipway.core.errors import UserError
from slipway.pipelines.doctor.check import NotConcernedError, Subject
from slipway.pipelines.doctor.vertex import CloudCheck
from slipway.pipelines.hardware import Hardware
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.placement import nearest_region

PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"
UNLIMITED = -1


class HardwareQuota(CloudCheck):
    """The project may have as much of the hardware as was chosen, in the run's region."""

    name = "quota"
    of_run = True

    def look(self, subject: Subject) -> str:
        hardware = subject.config.parsed_hardware
        region = self.view.vertex.region
        metric, needed = hardware.quota_metric, hardware.quota_needed
        if metric is None or needed is None:
            raise NotConcernedError(f"no quota is known for {hardware}")
        limits = self.view.limits(metric)
        if limits is None:
            raise NotConcernedError(f"the project lists no {metric}")
        limit = _limit(limits, region)
        if limit == UNLIMITED or limit >= needed:
            return f"{_amount(limit)} of {metric} in {region}, {needed} needed"
        others = self._others(hardware, limits, needed)
        near = nearest_region(region, others) if others else None
        ask = f"ask for {needed} at {PAGE.format(project=self.view.vertex.project)}"
        raise UserError(
            f"{hardware} takes {needed} of {metric}, and the project may have {limit} in {region}.",
            setting="hardware",
            value=str(hardware),
            allowed=f"a region with enough: {', '.join(others)}"
            if others
            else "no region of the catalogue has enough yet",
            nearest=near,
            fix=f"--set vertex.region={near} with a bucket there, or {ask}" if near else ask,
        )

    def _others(self, hardware: Hardware, limits: dict[str, int], needed: int) -> list[str]:
        """The other regions of the catalogue that have the hardware and quota enough, with how much."""
        regions = hardware.regions if hardware.regions is not None else load().regions()
        have = {region: _limit(limits, region) for region in regions if region != self.view.vertex.region}
        return [region for region, limit in have.items() if limit == UNLIMITED or limit >= needed]


class ScheduleQuota(CloudCheck):
    """Another schedule may be made in the region."""

    name = "schedule quota"
    of_run = False

    def look(self, subject: Subject) -> str:  # noqa: ARG002
        region = self.view.vertex.region
        metrics = [metric for metric in self.view.quotas() if "schedule" in metric.partition("/")[2]]
        limits = {metric: _limit(self.view.quotas()[metric], region) for metric in metrics}
        bounded = {metric: limit for metric, limit in limits.items() if limit != UNLIMITED}
        if not bounded:
            raise NotConcernedError("the project lists no quota of schedules")
        metric, limit = min(bounded.items(), key=lambda item: item[1])
        connection = self.view.connection
        request = {"parent": connection.parent, "filter": 'state="ACTIVE"'}
        active = retried(lambda: sum(1 for _ in connection.schedules.list_schedules(request)))
        if active >= limit:
            raise UserError(
                f"{active} schedules are active in {region}, and {metric} allows {limit}.",
                fix=f"slipway schedule pause NAME, or ask for more at {PAGE.format(project=self.view.vertex.project)}",
            )
        return f"{active} of {limit} active in {region}"


def _limit(limits: dict[str, int], region: str) -> int:
    return limits.get(region, limits.get("", 0))


def _amount(limit: int) -> str:
    return "no limit" if limit == UNLIMITED else str(limit)
