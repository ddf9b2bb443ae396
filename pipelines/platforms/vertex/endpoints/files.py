"""Load and validate endpoint files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from slipway.components.cloud.connection import Connection
from slipway.components.deploy.settings import Deployment, EndpointSettings
from slipway.core.errors import UserError
from slipway.pipelines.config.config import load
from slipway.pipelines.config.files import ConfigurationFile, Files, errors_in
from slipway.pipelines.platforms.vertex.endpoints.machines import ServingMachine, machine_of
from slipway.pipelines.platforms.vertex.settings import vertex_of


@dataclass(frozen=True)
class EndpointFile(ConfigurationFile):
    """A validated endpoint file: its run configuration, its replicas' machine, and the deployment that it describes."""

    machine: ServingMachine
    deployment: Deployment

    @property
    def key(self) -> str:
        """The endpoint's id."""
        return self.deployment.endpoint_id

    @property
    def settings(self) -> EndpointSettings:
        """The file's settings."""
        return self.deployment.settings

    @property
    def connection(self) -> Connection:
        """The connection to the endpoint's project and region."""
        return vertex_of(self.config).connection


def build(path: Path, settings: EndpointSettings) -> EndpointFile:
    """Return the file with its run configuration.

    Raises:
        UserError: The machine, the instances or the run's configuration is invalid.
    """
    with errors_in(path):
        machine = machine_of(settings.machine)
        instances = _instances(settings.check.requests, path)
    config = load(settings.configuration, settings.set)
    vertex = vertex_of(config)
    deployment = Deployment(
        name=path.stem,
        settings=settings,
        model=settings.model or config.model_name,
        machine_spec=machine.spec,
        spot=machine.spot,
        labels={**vertex.labels, **settings.labels},
        encryption_key=vertex.encryption_key,
        instances=instances,
    )
    return EndpointFile(path, config, machine, deployment)


FILES = Files(
    name="endpoint",
    folder=Path("configs/endpoints"),
    settings=EndpointSettings,
    build=build,
    setting="--endpoint",
    docs="docs/vertex.md",
    pattern=r"^[a-z]([a-z0-9-]*[a-z0-9])?$",
    longest=50,
    allowed="lowercase letters, digits and hyphens, starting with a letter and ending with a letter or digit",
)


def _instances(requests: Path | None, path: Path) -> list[object] | None:
    if requests is None:
        return None
    try:
        instances = json.loads(requests.read_bytes())["instances"]
        if not isinstance(instances, list) or not instances:
            raise ValueError("instances is not a list with at least one")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{requests} has no instances: {type(error).__name__}: {error}.",
            setting="check.requests",
            value=str(requests),
            allowed='a JSON file of the form {"instances": […]}',
            fix=f"correct {requests}, or check.requests in {path}",
        ) from None
    return instances
