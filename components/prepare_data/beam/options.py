"""Whether Apache Beam lists and writes a data set that is too large for one machine, and its runner's options."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
from typing import Any

from slipway.components.prepare_data.settings import BeamSettings, DataSettings
from slipway.components.prepare_data.sources import source_kind
from slipway.core.buckets import SCHEME
from slipway.core.errors import UserError, nearest

# Runners whose workers see this machine's files.
LOCAL_RUNNERS = ("DirectRunner", "BundleBasedDirectRunner", "FnApiRunner", "PrismRunner")


def beam_for(settings: DataSettings, size: int) -> BeamSettings | None:
    """Return the Beam settings if Beam prepares the data set of a source of `size` bytes, else None.

    Raises:
        UserError: Beam is configured but cannot be used.
    """
    beam = settings.beam
    if beam is None or size < beam.from_gigabytes * 1e9:
        return None
    if importlib.util.find_spec("apache_beam") is None:
        raise UserError(
            "Apache Beam is not installed.",
            setting="data.beam",
            value=beam.runner,
            fix="pip install 'apache-beam[gcp]', or remove data.beam to prepare the data set on this machine",
        )
    if is_elsewhere(beam):
        if beam.access == "paths":
            _check_shared(settings, beam)
        else:
            _check_reachable(settings, beam)
        _check_cloud(beam)
    options_of(beam)
    return beam


def is_elsewhere(beam: BeamSettings) -> bool:
    """Whether the runner's workers are on other machines."""
    return beam.runner.rpartition(".")[2] not in LOCAL_RUNNERS


def needs_bucket(beam: BeamSettings) -> bool:
    """Whether the runner's workers read and write a bucket, since they do not see this machine's files."""
    return is_elsewhere(beam) and beam.access == "bucket"


def _check_shared(settings: DataSettings, beam: BeamSettings) -> None:
    """Reject a store or workers for which there is no shared volume."""
    if beam.on_dataflow:
        raise UserError(
            "Dataflow's workers have no shared volume.",
            setting="data.beam.access",
            value=beam.access,
            allowed="bucket, with DataflowRunner",
            fix="--set data.beam.access=bucket",
        )
    if settings.store.startswith(SCHEME):
        raise UserError(
            f"With data.beam.access=paths, the workers of {beam.runner} write to a shared volume, not to a bucket.",
            setting="data.store",
            value=settings.store,
            allowed="a folder that the workers see at the same path",
            fix="--set data.store=/FOLDER, or --set data.beam.access=bucket",
        )


def _check_reachable(settings: DataSettings, beam: BeamSettings) -> None:
    kind = source_kind(settings.source)
    source_setting, argument = kind.located(settings)
    checks = [
        ("data.store", settings.store, settings.store.startswith(SCHEME)),
        (source_setting, settings.source if source_setting == "data.source" else argument,
         kind.beam and argument.startswith(SCHEME)),
    ]  # fmt: skip
    for setting, value, reachable in checks:
        if not reachable:
            raise UserError(
                f"The workers of {beam.runner} run on other machines and cannot access {value!r}.",
                setting=setting,
                value=value,
                allowed="files in a bucket, gs://…: a folder of images, a CSV file, or TFRecord files",
                fix=f"gcloud storage cp -r … gs://BUCKET/…, then set {setting} to that URI; if the workers see the "
                "same paths on a shared volume, --set data.beam.access=paths; or remove data.beam",
            )


def _check_cloud(beam: BeamSettings) -> None:
    if not beam.on_dataflow:
        return
    for name in ("project", "region", "temp_location", "sdk_container_image"):
        if not beam.options.get(name):
            raise UserError(
                f"Dataflow needs the option {name}, which only runs on Vertex AI have by default.",
                setting=f"data.beam.options.{name}",
                value=beam.options.get(name),
                fix=f"add {name} to data.beam.options"
                + (
                    "; slipway config build --target vertex builds such an image"
                    if name == "sdk_container_image"
                    else ""
                ),
            )
    if not _has_dataflow_client():
        raise UserError(
            "Apache Beam is installed without its Google Cloud dependencies.",
            setting="data.beam.runner",
            value=beam.runner,
            fix="pip install 'apache-beam[gcp]'",
        )


def _has_dataflow_client() -> bool:
    try:
        return importlib.util.find_spec("google.cloud.dataflow_v1beta3") is not None
    except ModuleNotFoundError:  # no google.cloud
        return False


def written_by(beam: BeamSettings) -> str:
    """Return the name of the writer for the manifest."""
    return f"Apache Beam {importlib.metadata.version('apache-beam')}, {beam.runner}"


def options_of(beam: BeamSettings) -> Any:
    """Return the pipeline options.

    Raises:
        UserError: There is no such runner or option.
    """
    from apache_beam.options.pipeline_options import PipelineOptions

    _import_runner(beam.runner)
    flags = _flags()
    options = {"runner": beam.runner, "save_main_session": False}
    for name, value in beam.options.items():
        if name == "runner" or name not in flags:
            raise UserError(
                f"Apache Beam has no option {name!r}." if name != "runner" else "The runner is a separate setting.",
                setting=f"data.beam.options.{name}",
                value=value,
                nearest=nearest(name, flags) if name != "runner" else "data.beam.runner",
                fix=f"correct the name in data.beam.options, or remove {name}",
            )
        options[flags[name].dest] = _option_value(flags[name], value)
    if beam.runner == "DirectRunner":
        # Otherwise it first tries to download the Prism runner. The pipeline has no triggers.
        options["allow_unsafe_triggers"] = True
    return PipelineOptions([], **options)


def _import_runner(runner: str) -> None:
    """Import the runner's module, which declares the runner's own options, such as Dask's.

    Raises:
        UserError: There is no such runner, or it needs a package that is not installed.
    """
    from apache_beam.options.pipeline_options import StandardOptions

    known = {path.rpartition(".")[2]: path for path in StandardOptions.ALL_KNOWN_RUNNERS}
    path = runner if "." in runner else {name.lower(): known[name] for name in known}.get(runner.lower())
    if path is None:
        raise UserError.unknown("runner", runner, known, setting="data.beam.runner")
    module, _, name = path.rpartition(".")
    try:
        has_runner = hasattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UserError(
            f"The runner cannot be imported: {error}.",
            setting="data.beam.runner",
            value=runner,
            fix="correct the name, or install the package",
        ) from None
    if not has_runner:
        raise UserError(f"The module {module} has no runner {name}.", setting="data.beam.runner", value=runner)


def _flags() -> dict[str, argparse.Action]:
    """Return the options of Beam and of all imported runners by their documented flags, without dashes."""
    from apache_beam.options.pipeline_options import PipelineOptions

    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    actions = parsers[0]._actions
    return {flag.lstrip("-"): action for action in actions for flag in action.option_strings if action.dest != "help"}


def _option_value(action: argparse.Action, value: object) -> object:
    """Return the value of an option whose flag has this value: --no_use_public_ips clears an option."""
    if isinstance(value, bool) and action.nargs == 0:
        return action.const if value else not action.const
    return action.type(value) if isinstance(value, str) and callable(action.type) else value
