"""Files of one kind in a folder, such as schedules: found by name, each for a run configuration."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from slipway.core.errors import UserError, nearest
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.errors import explain_validation
from slipway.pipelines.config.values import read_yaml
from slipway.trainer.settings import Settings


@dataclass(frozen=True)
class ConfigurationFile:
    """A validated file for a run configuration."""

    path: Path
    config: RunConfig

    @property
    def name(self) -> str:
        """The file's name without .yaml."""
        return self.path.stem

    @property
    def key(self) -> str:
        """What the declared resource is found by."""
        return self.name


File = TypeVar("File", bound=ConfigurationFile)


@dataclass(frozen=True)
class Files(Generic[File]):
    """A kind of file: where the files are, how one is read, and how names are given and formed.

    Attributes:
        name: What a file describes, such as "schedule".
        folder: The files' folder.
        settings: The class of a file's settings, which name a run configuration.
        build: Returns a file, given its path and settings.
        setting: The argument or option with the name of a file.
        docs: The page about it.
        pattern: What the whole name of a file, without .yaml, matches.
        longest: Letters of the longest name.
        allowed: The pattern in words.
    """

    name: str
    folder: Path
    settings: type[Settings]
    build: Callable[[Path, Any], File]
    setting: str
    docs: str
    pattern: str
    longest: int
    allowed: str

    def paths(self, name: str | None = None, folder: Path | None = None) -> list[Path]:
        """Return the path of the file called `name`, or those of all files.

        Raises:
            UserError: There is no such file.
        """
        folder = folder or self.folder
        paths = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
        if not paths:
            raise UserError(
                f"No {self.name}s found: {folder} contains no YAML files.",
                setting=self.setting,
                value=name,
                fix=f"write {folder}/NAME.yaml; see {self.docs}",
            )
        if name is None:
            return list(paths.values())
        if name not in paths:
            raise UserError.unknown(self.name, name, paths, setting=self.setting, fix=f"write {folder}/{name}.yaml")
        return [paths[name]]

    def read_all(self, name: str | None = None) -> list[File]:
        """Load the file called `name`, or all files.

        Raises:
            UserError: A file is missing or invalid.
        """
        return [self.read(path) for path in self.paths(name)]

    def read_one(self, name: str | None, folder: Path | None = None) -> File:
        """Load the file called `name`; without a name, the only one.

        Raises:
            UserError: A file is missing or invalid, or there are several.
        """
        paths = self.paths(name, folder)
        if len(paths) > 1:
            names = [path.stem for path in paths]
            raise UserError(
                f"{folder or self.folder} has {len(names)} {self.name}s.",
                setting=self.setting,
                value=None,
                allowed=", ".join(names),
                fix=f"{self.setting} {names[0]}",
            )
        return self.read(paths[0])

    def read(self, path: Path) -> File:
        """Load and validate one file.

        Raises:
            UserError: The file or the run's configuration is invalid.
        """
        self._check_name(path)
        values = read_yaml(path)
        with errors_in(path):
            try:
                settings: Any = self.settings.model_validate(values)
            except ValidationError as error:
                raise explain_validation(self.settings, error, str(path), values) from None
        _check_configuration(settings.configuration, path)
        return self.build(path, settings)

    def _check_name(self, path: Path) -> None:
        if re.match(self.pattern, path.stem) is None or len(path.stem) > self.longest:
            raise UserError(
                f"{path.stem!r} is not a valid {self.name} name.",
                setting=self.setting,
                value=path.stem,
                allowed=f"{self.allowed}; at most {self.longest} characters",
                nearest=re.sub(r"[^a-z0-9-]+", "-", path.stem.lower()).strip("-0123456789") or None,
                fix=f"rename {path}",
            )


@contextlib.contextmanager
def errors_in(path: Path) -> Iterator[None]:
    """Add the file to user errors, and a fix in the file, instead of an option of run configurations."""
    try:
        yield
    except UserError as error:
        if not error.message.startswith(str(path)):
            error.message = f"{path}: {error.message}"
        if error.fix is None or str(error.fix).startswith("--set"):
            error.fix = f"{error.setting}: {error.nearest or 'VALUE'} in {path}"
        raise


def _check_configuration(configuration: Path, path: Path) -> None:
    if not configuration.is_file():
        raise UserError(
            f"{path}: configuration {configuration} does not exist.",
            setting="configuration",
            value=str(configuration),
            allowed="the path of a run configuration, relative to the working directory",
            nearest=nearest(str(configuration), map(str, Path("configs").glob("*.yaml"))),
            fix=f"correct configuration in {path}",
        )
