"""Checks of a project's quotas."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.components.cloud.retries import retried
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.resources import resources_of
from slipway.pipelines.hardware.catalogue import load
from slipway.pipelines.hardware.placement import nearest_region
from slipway.pipelines.hardware.quotas import machine_quotas, step_machine
from slipway.pipelines.platforms.base import Context, NotApplicableError
from slipway.pipelines.platforms.vertex.doctor.project import Project
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.pipelines.table import STEPS

if TYPE_CHECKING:
    from kfp.pipeline_spec.pipeline_spec_pb2 import DagSpec

    from slipway.pipelines.platforms.vertex.images import Images

SERVICE = "aiplatform.googleapis.com/"
PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={project}"
UNLIMITED = -1


@dataclass
class Demand:
    """How much a run draws on a quota at its peak, and the tasks that run at that time."""

    amount: int = 0
    tasks: tuple[str, ...] = ()


def run_quota(context: Context) -> str:
    """The project's quotas in the run's region are enough for the hardware and for the steps that run at one time."""
    project = context.shared(Project)
    hardware = context.config.training_hardware
    region = project.vertex.region
    try:
        demands = peak(context.config, min(search.parallel, search.trials) if (search := context.search) else 1)
    except UserError as error:  # which another check reports
        raise NotApplicableError(f"the pipeline cannot be compiled: {error.message}") from None
    listed = {metric: limits for metric in demands if (limits := project.limits(metric)) is not None}
    if not listed:
        raise NotApplicableError(f"the project lists none of {', '.join(demands)}")
    short = [metric for metric, limits in listed.items() if not _suffices(limits, region, demands[metric])]
    if not short:
        return f"{', '.join(_found(metric, demands[metric], listed[metric], region) for metric in listed)} in {region}"
    regions = hardware.regions if hardware.regions is not None else load().regions()
    sufficient = [
        other
        for other in regions
        if other != region and all(_suffices(limits, other, demands[metric]) for metric, limits in listed.items())
    ]
    near = nearest_region(region, sufficient) if sufficient else None
    needed = " and ".join(f"{demands[metric].amount:,} of {metric}" for metric in short)
    ask = f"request {needed} in {region} at {PAGE.format(project=project.vertex.project)}"
    raise UserError(
        f"The quota in {region} is too small: the run "
        + "; it ".join(_shortfall(metric, demands[metric], listed[metric], region) for metric in short)
        + ".",
        setting="hardware",
        value=str(hardware),
        allowed=f"a region with enough: {', '.join(sufficient)}" if sufficient else "no region has enough quota yet",
        nearest=near,
        fix=f"--set vertex.region={near} with a bucket there, or {ask}" if near else ask,
    )


def peak(config: RunConfig, trials: int = 1) -> dict[str, Demand]:
    """Return a run's largest demand by quota metric, with this many trials of a search at once.

    Tasks run at the same time if they are equally far from the start of the pipeline: a task starts when those that it
    waits for have ended. The training and a step on a larger disk run beside the task that launched them.
    """
    times: dict[int, list[str]] = {}
    for task, time in _times(config).items():
        times.setdefault(time, []).append(task)
    demands: dict[str, Demand] = {}
    for tasks in times.values():
        drawn: Counter[str] = Counter()
        for task in tasks:
            drawn += _drawn(task, config, trials)
        for metric, amount in drawn.items():
            if amount > demands.setdefault(metric, Demand()).amount:
                demands[metric] = Demand(amount, tuple(sorted(tasks)))
    return demands


def _drawn(task: str, config: RunConfig, trials: int) -> Counter[str]:
    if task == STEPS["train"].tasks_on("vertex")[0].name:
        training = {metric: trials * amount for metric, amount in config.training_hardware.quotas.items()}
        return machine_quotas(step_machine()) + Counter(training)
    resources = resources_of(task, vertex_of(config).steps, "vertex")
    if resources is None:
        return machine_quotas(step_machine())
    machine = step_machine(resources.cpus, resources.memory_gb)
    if resources.needs_custom_job:
        return machine_quotas(step_machine()) + machine_quotas(machine, disk_gb=resources.disk_gb)
    return machine_quotas(machine)


def _times(config: RunConfig) -> dict[str, int]:
    """Return how many tasks one after another each task of the run's pipeline waits for."""
    from slipway.pipelines.platforms.vertex.steps import pipeline  # imports kfp

    spec = pipeline(config, _images(config)).pipeline_spec
    times: dict[str, int] = {}

    def add(dag: DagSpec, start: int) -> int:
        """Add the tasks of a DAG that starts at a time; return when it ends."""
        ends: dict[str, int] = {}
        while len(ends) < len(dag.tasks):
            for name, task in dag.tasks.items():
                if name in ends or not ends.keys() >= set(task.dependent_tasks):
                    continue
                time = max((ends[other] for other in task.dependent_tasks), default=start)
                component = spec.components[task.component_ref.name]
                if component.HasField("dag"):
                    ends[name] = add(component.dag, time)
                else:
                    times[name], ends[name] = time, time + 1
        return max(ends.values(), default=start)

    add(spec.root.dag, 0)
    return times


def _images(config: RunConfig) -> Images:
    """Return images for a pipeline that is not run, with the step build_image if the run may have it."""
    from slipway.components.build_image.build import ImageRequest
    from slipway.components.build_image.cloud_build import CloudBuildSettings, Source
    from slipway.pipelines.images.registry import VerifiedBuild
    from slipway.pipelines.platforms.vertex.images import Images

    settings = vertex_of(config)
    if settings.image is not None or settings.build.builder != "cloud-build":
        return Images("image", "image", "image", "image")
    build = VerifiedBuild(
        ImageRequest(repository="repository", name="image", tag="tag", arguments={}, labels={}),
        Source(bucket="bucket", name="source", generation="1"),
        CloudBuildSettings(
            project=settings.project, region=settings.region, endpoints={}, bucket="bucket", service_account=None
        ),
    )
    return Images("image", "image", "image", "image", build)


def _suffices(limits: dict[str, int], region: str, demand: Demand) -> bool:
    limit = _limit(limits, region)
    return limit == UNLIMITED or limit >= demand.amount


def _found(metric: str, demand: Demand, limits: dict[str, int], region: str) -> str:
    limit = _limit(limits, region)
    return f"{demand.amount:,} of {'unlimited' if limit == UNLIMITED else f'{limit:,}'} {metric.removeprefix(SERVICE)}"


def _shortfall(metric: str, demand: Demand, limits: dict[str, int], region: str) -> str:
    tasks = f"{', '.join(demand.tasks[:-1])} and {demand.tasks[-1]}" if len(demand.tasks) > 1 else demand.tasks[0]
    return f"needs {demand.amount:,} of {metric} for {tasks}, and the limit is {_limit(limits, region):,}"


def schedule_quota(context: Context) -> str:
    """The project's quota allows another schedule in the region."""
    project = context.shared(Project)
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
