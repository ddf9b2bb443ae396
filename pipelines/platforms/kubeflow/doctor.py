"""Checks of the Kubeflow cluster of a run."""

from __future__ import annotations

from slipway.core.image_reference import ImageReference
from slipway.pipelines.images.inspection import check_driver
from slipway.pipelines.platforms.base import Check, CheckWarning, Context, NotApplicableError
from slipway.pipelines.platforms.kubeflow.checks import check_volume, settings_of
from slipway.pipelines.tuning.search import check_same_machines


def server(context: Context) -> str:
    """The Kubeflow Pipelines server responds and accepts the caller. Submitting a run checks this, too."""
    from slipway.pipelines.platforms.kubeflow.server import Server

    settings = settings_of(context.config)
    Server(settings).check()
    return settings.host


def training(context: Context) -> str:
    """The cluster of the kubeconfig has Kubeflow Trainer and the rights of the step train."""
    from slipway.components.train.trainjob.cluster import INSTALL, SETUP, DeniedError, NoClusterError
    from slipway.pipelines.platforms.kubeflow import access
    from slipway.pipelines.platforms.kubeflow.training import uses_train_job

    settings, searches = settings_of(context.config), context.search is not None
    if not uses_train_job(settings, context.config.training_hardware, searches=searches):
        raise NotApplicableError("the step train needs no TrainJob")
    try:
        cluster = access.connect(settings)
    except NoClusterError as error:
        raise CheckWarning(f"not checked: {error.message}", str(error.fix)) from None
    cluster.check_operator()
    try:
        lacking = access.missing(cluster, access.manifests(settings))
        old = access.missing_field(cluster, settings)
    except DeniedError as error:  # the step may have the rights that this account lacks
        raise CheckWarning(f"not checked: {error.message}", SETUP) from None
    if lacking:
        names = " and ".join(f"{body['kind']} {body['metadata']['name']}" for body in lacking)
        raise CheckWarning(
            f"the step train may lack rights: {cluster.namespace} has no {names} as setup makes it", SETUP
        )
    if old:
        raise CheckWarning(old, INSTALL)
    return f"Kubeflow Trainer, and the Role of the step in {cluster.namespace}"


def volume(context: Context) -> str:
    """The cluster of the kubeconfig has the volume, and the pods of a TrainJob can share it."""
    from slipway.components.train.trainjob.cluster import DeniedError, NoClusterError
    from slipway.pipelines.platforms.kubeflow import access
    from slipway.pipelines.platforms.kubeflow.training import uses_train_job

    settings, hardware = settings_of(context.config), context.config.training_hardware
    searches = context.search is not None
    if settings.volume is None:
        raise NotApplicableError("kubeflow.volume is not set")
    if settings.context is None and not uses_train_job(settings, hardware, searches=searches):
        raise NotApplicableError("kubeflow.context is not set")
    try:
        return access.check_volume(settings, hardware, searches=searches)
    except (DeniedError, NoClusterError) as error:
        raise CheckWarning(f"not checked: {error.message}", str(error.fix)) from None


def parameters(context: Context) -> str:
    """The pipeline's parameters are short enough for the server."""
    from slipway.pipelines.platforms.kubeflow.launch import check_parameters, parameters_of

    values = parameters_of(context.config, context.config.name)
    check_parameters(values)
    return f"{len(values)} parameters"


def search(context: Context) -> str:
    """The trials of a search can train by TrainJobs that differ in their arguments only."""
    config, tune = context.config, context.search
    if tune is None:
        raise NotApplicableError("no search")
    check_volume(config.training_hardware, settings_of(config), searches=True)
    check_same_machines(config, tune, "Kubeflow")
    return f"{tune.trials} trials, {tune.parallel} at once, of {', '.join(tune.parameters)}"


def gpu_driver(context: Context) -> str:
    """An image that runs on GPUs looks for the driver where GKE mounts it; other clusters may mount it elsewhere."""
    image, row = settings_of(context.config).image, context.config.training_hardware.accelerator_row
    if row is None or row.is_tpu or ImageReference.parse(image).is_googles:
        raise NotApplicableError("no custom image runs on GPUs")
    check_driver("kubeflow.image", image, "GKE")
    return f"{image}: finds it"


CHECKS = (
    Check("kubeflow server", server),
    Check("kubeflow training", training),
    Check("kubeflow volume", volume),
    Check("search", search, of_run=True),
    Check("kubeflow parameters", parameters, of_run=True),
    Check("kubeflow GPU driver", gpu_driver),
)
