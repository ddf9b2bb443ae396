"""Files of one kind in a folder, such as schedules: found by name, each for a run configuration."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipway.core.errors import UserError, nearest


@dataclass(frozen=True)
class Kind:
    """A kind of file: the name of one, and how names are given and formed.

    Attributes:
        name: Such as "schedule".
        setting: The argument or option with the name of a file.
        docs: The page about it.
        pattern: What the whole name of a file, without .yaml, matches.
        longest: Letters of the longest name.
        allowed: The pattern in words.
    """

    name: str
    setting: str
    docs: str
    pattern: str
    longest: int
    allowed: str

    def paths(self, names: Sequence[str], folder: Path) -> list[Path]:
        """Return the files called `names`, or all of them.

        Raises:
            UserError: There is no such file.
        """
        paths = {path.stem: path for path in sorted(folder.glob("*.yaml"))} if folder.is_dir() else {}
        if not paths:
            raise UserError(
                f"No {self.name}s found: {folder} contains no YAML files.",
                setting=self.setting,
                value=names[0] if names else None,
                fix=f"write {folder}/NAME.yaml; see {self.docs}",
            )
        for name in names:
            if name not in paths:
                fix = f"write {folder}/{name}.yaml"
                raise UserError.unknown(self.name, name, paths, setting=self.setting, fix=fix)
        return [paths[name] for name in names or paths]

    def check_name(self, path: Path) -> None:
        """Raise UserError if the file's name is not valid."""
        if re.match(self.pattern, path.stem) is None or len(path.stem) > self.longest:
            raise UserError(
                f"{path.stem!r} is not a valid {self.name} name.",
                setting=self.setting,
                value=path.stem,
                allowed=f"{self.allowed}; at most {self.longest} characters",
                nearest=re.sub(r"[^a-z0-9-]+", "-", path.stem.lower()).strip("-0123456789") or None,
                fix=f"rename {path}",
            )


def check_configuration(configuration: Path, path: Path) -> None:
    """Raise UserError if the run configuration that the file at `path` names does not exist."""
    if not configuration.is_file():
        raise UserError(
            f"{path}: configuration {configuration} does not exist.",
            setting="configuration",
            value=str(configuration),
            allowed="the path of a run configuration, relative to the working directory",
            nearest=nearest(str(configuration), map(str, Path("configs").glob("*.yaml"))),
            fix=f"correct configuration in {path}",
        )
