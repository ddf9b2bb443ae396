"""`slipway setup`: show or create what runs on a platform need."""

from __future__ import annotations

from typing import Annotated

import typer

from slipway.core.values import spoken
from slipway.pipelines.cli.targets import target_option
from slipway.pipelines.options import Configuration, ConfigurationFile, Hardware, Json, Overrides, configured
from slipway.pipelines.platforms.capabilities import WithSetup
from slipway.pipelines.platforms.table import DEFAULT, PLATFORMS, platform_of, with_hardware
from slipway.pipelines.terminal import EXIT_FAILED, interrupted, say, user_errors

PREPARED = [name for name, platform in PLATFORMS.items() if isinstance(platform, WithSetup)] or [DEFAULT]
SetupTarget = Annotated[str, target_option(f"Where the runs will execute: {spoken(PREPARED)}.", PREPARED)]


@user_errors
@interrupted("what --apply has created stays; slipway setup shows what is missing")
def setup(
    file: ConfigurationFile = None,
    config: Configuration = None,
    target: SetupTarget = PREPARED[0],
    apply: Annotated[bool, typer.Option("--apply", help="Create what is missing instead of only showing it.")] = False,
    hardware: Hardware = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show or create what runs need: on Vertex AI and TPUs APIs, bucket, accounts, roles; on Kubeflow a Role."""
    configuration = with_hardware(configured(file, config, overrides, hardware), target, say)
    platform = platform_of(target)
    assert isinstance(platform, WithSetup)  # one of PREPARED
    if not platform.setup(configuration, apply=apply, as_json=as_json):
        raise typer.Exit(EXIT_FAILED)
