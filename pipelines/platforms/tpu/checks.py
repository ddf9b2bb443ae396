"""Reject configurations that cannot train on Cloud TPU VMs, before anything that costs money is requested."""

from __future__ import annotations

from slipway.components.setup_access.settings import AccessSettings
from slipway.components.train.tpu.settings import TpuRequest, TpuSettings
from slipway.core.errors import UserError
from slipway.core.image_reference import ImageReference
from slipway.core.values import JsonObject
from slipway.pipelines.config.config import RunConfig, no_section
from slipway.pipelines.hardware import Hardware
from slipway.pipelines.hardware.catalogue import TpuVm, load
from slipway.pipelines.hardware.placement import check_python


def settings_of(config: RunConfig) -> TpuSettings:
    """Return the section `tpu` of a configuration.

    Raises:
        UserError: The configuration has none.
    """
    if (settings := config.section(TpuSettings)) is not None:
        return settings
    fix = "--set tpu.project=PROJECT --set tpu.zones=[us-west4-a] --set tpu.bucket=gs://BUCKET "
    fix += "--set tpu.service_account=ACCOUNT"
    raise no_section("tpu", "project, zones, bucket and service_account", fix)


def access_settings(config: RunConfig) -> AccessSettings:
    """Return what the permissions of a configuration's runs depend on.

    Raises:
        UserError: The configuration has no section `tpu`.
    """
    settings = settings_of(config)
    image = config.train.image or settings.image
    return AccessSettings(
        section=TpuSettings.section,
        project=settings.project,
        region=settings.region,
        bucket=settings.bucket.removeprefix("gs://"),
        repository=ImageReference.parse(image or f"{settings.image_repository}/image").artifact_repository,
        account=settings.service_account,
        tpu=True,
        tpu_machines=True,
        builds=image is None and settings.build.builder == "cloud-build",
        builder=settings.build.service_account,
        build_region=settings.build.region,
        endpoints=settings.endpoints,
    )


def request_of(config: RunConfig) -> TpuRequest:
    """Return what the train step requests.

    Raises:
        UserError: The hardware, its runtime version or the settings are not those of Cloud TPU VMs.
    """
    _check_store(config)
    settings, hardware = settings_of(config), config.training_hardware
    vm = _check_hardware(hardware)
    _check_machines(hardware)
    spot = hardware.provisioning == "spot"
    if spot and (settings.guaranteed or settings.reservation):
        raise UserError(
            "Spot capacity is neither guaranteed nor reserved.",
            setting="tpu.reservation" if settings.reservation else "tpu.guaranteed",
            value=settings.reservation or True,
            allowed="one of them",
            fix=f"--hardware {str(hardware).replace('+spot', '')}, or remove the setting",
        )
    if settings.image is None and config.train.image is None:
        check_python(hardware, config.train.engine)
    return TpuRequest(
        settings=settings, accelerator=_accelerator(hardware, vm), runtime_version=_runtime(settings, vm), spot=spot
    )


def _check_store(config: RunConfig) -> None:
    """Refuse a store in a bucket: data is prepared on this machine, and the train step copies it to `tpu.bucket`."""
    if config.data is None or not config.data.store.startswith("gs://"):
        return
    raise UserError(
        "The data is prepared on this machine, and then copied to tpu.bucket.",
        setting="data.store",
        value=config.data.store,
        allowed="a folder on this machine",
        fix="--set data.store=datasets",
    )


def _check_hardware(hardware: Hardware) -> TpuVm:
    """Return what the TPU API calls the accelerator, after checking that there are VMs with it."""
    row = hardware.accelerator_row
    if row is not None and row.tpu_vm is not None:
        return row.tpu_vm
    kinds = [other.name for other in load().accelerators if other.tpu_vm is not None]
    raise UserError(
        f"{hardware} is no TPU." if not hardware.is_tpu else f"The TPU API v2 has no {row.title if row else 'TPU'}.",
        setting="hardware",
        value=str(hardware),
        allowed=", ".join(kinds),
        nearest="tpu-v5e-2x4",
        fix="--hardware tpu-v5e-2x4, or --target vertex",
    )


def _check_machines(hardware: Hardware) -> None:
    """Refuse options of the hardware that exist on Vertex AI only.

    The TPU API chooses the machines by the topology: up to eight chips of v5e and v6e are on one
    (https://docs.cloud.google.com/tpu/docs/v5e, "VM types").
    """
    base = hardware.base
    plain = base + ("+spot" if hardware.provisioning == "spot" else "")
    if str(hardware) == plain:
        return
    raise UserError(
        f"{hardware} has options of Vertex AI: machine types, FLEX_START, disks, reservations and time limits. Cloud "
        "TPU VMs have tpu.reservation, tpu.valid_for and tpu.max_hours instead.",
        setting="hardware",
        value=str(hardware),
        allowed=f"{base} or {base}+spot",
        nearest=plain,
    )


def _accelerator(hardware: Hardware, vm: TpuVm) -> JsonObject:
    """Return the node's acceleratorConfig; v2 and v3 have no topology in the catalogue, but a number of cores."""
    if hardware.topology:
        return {"acceleratorConfig": {"type": vm.type, "topology": hardware.topology}}
    return {"acceleratorType": f"{vm.type.lower()}-{hardware.count}"}


def _runtime(settings: TpuSettings, vm: TpuVm) -> str:
    """Return the runtime version, after checking that it is one of the generation.

    Source: https://docs.cloud.google.com/tpu/docs/runtimes.
    """
    version = settings.runtime_version
    if version is None or version in vm.runtime_versions:
        return version or vm.runtime_versions[0]
    titles = {name: row.title for row in load().accelerators if row.tpu_vm for name in row.tpu_vm.runtime_versions}
    whose = f"is of {titles[version]}" if version in titles else "is not known"
    raise UserError(
        f"The runtime version {version} {whose}.",
        setting="tpu.runtime_version",
        value=version,
        allowed=", ".join(vm.runtime_versions),
        nearest=vm.runtime_versions[0],
        fix="--set tpu.runtime_version=null",
    )
