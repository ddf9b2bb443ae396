"""Load and validate endpoint files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from slipway.components.cloud.connection import Connection
from slipway.components.deploy.settings import Deployment, EndpointSettings
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load, vertex_of
from slipway.pipelines.config.errors import explain_validation
from slipway.pipelines.config.files import Kind, check_configuration
from slipway.pipelines.config.values import read_yaml
from slipway.pipelines.platforms.vertex.endpoints.machines import ServingMachine, machine_of

FOLDER = Path("configs/endpoints")
KIND = Kind(
    name="endpoint",
    setting="--endpoint",
    docs="docs/endpoints.md",
    pattern=r"^[a-z]([a-z0-9-]*[a-z0-9])?$",
    longest=50,
    allowed="lowercase letters, digits and hyphens, starting with a letter and ending with a letter or digit",
)


@dataclass(frozen=True)
class EndpointFile:
    """A validated endpoint file: its run configuration, its replicas' machine, and the deployment that it describes."""

    path: Path
    config: RunConfig
    machine: ServingMachine
    deployment: Deployment

    @property
    def name(self) -> str:
        """The endpoint's name."""
        return self.path.stem

    @property
    def settings(self) -> EndpointSettings:
        """The file's settings."""
        return self.deployment.settings

    @property
    def connection(self) -> Connection:
        """The connection to the endpoint's project and region."""
        return vertex_of(self.config).connection


def read_all(names: Sequence[str] = (), folder: Path = FOLDER) -> list[EndpointFile]:
    """Load the endpoint files called `names`, or all of them.

    Raises:
        UserError: A file is missing or invalid.
    """
    return [read(path) for path in KIND.paths(names, folder)]


def read_one(name: str | None, folder: Path = FOLDER) -> EndpointFile:
    """Load the endpoint file called `name`; without a name, the only one that there is.

    Raises:
        UserError: A file is missing or invalid, or there are several.
    """
    paths = KIND.paths(() if name is None else (name,), folder)
    if len(paths) > 1:
        files = [path.stem for path in paths]
        raise UserError(
            f"{folder} has {len(files)} endpoints.",
            setting="--endpoint",
            value=None,
            allowed=", ".join(files),
            fix=f"--endpoint {files[0]}",
        )
    return read(paths[0])


def read(path: Path) -> EndpointFile:
    """Load and validate one endpoint file.

    Raises:
        UserError: The file or the run's configuration is invalid.
    """
    KIND.check_name(path)
    values = read_yaml(path)
    try:
        settings = EndpointSettings.model_validate(values)
        machine = machine_of(settings.machine)
    except ValidationError as error:
        raise _in_file(explain_validation(EndpointSettings, error, str(path), values), path) from None
    except UserError as error:
        raise _in_file(error, path) from None
    check_configuration(settings.configuration, path)
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
        instances=_instances(settings.check.requests, path),
    )
    return EndpointFile(path, config, machine, deployment)


def _instances(requests: Path | None, path: Path) -> list[object] | None:
    """Return the instances in the file `check.requests`."""
    if requests is None:
        return None
    try:
        found = json.loads(requests.read_bytes())["instances"]
        if not isinstance(found, list) or not found:
            raise ValueError("instances is not a list with at least one")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path}: {requests} has no instances: {type(error).__name__}: {error}.",
            setting="check.requests",
            value=str(requests),
            allowed='a JSON file of the form {"instances": […]}',
            fix=f"correct {requests}, or check.requests in {path}",
        ) from None
    return found


def _in_file(problem: UserError, path: Path) -> UserError:
    """Return an error with a fix in the file, instead of an option of run configurations."""
    if not problem.message.startswith(str(path)):
        problem.message = f"{path}: {problem.message}"
    if problem.fix is None or str(problem.fix).startswith("--set"):
        problem.fix = f"{problem.setting}: {problem.nearest or 'VALUE'} in {path}"
    return problem
