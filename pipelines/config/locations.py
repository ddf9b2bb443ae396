"""Files and folders that the settings of a run name, which its steps read and write."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import source_kind
from slipway.components.register_model.registry import RegisterSettings
from slipway.core.errors import UserError
from slipway.core.paths import require_mount

if TYPE_CHECKING:
    from slipway.pipelines.config.config import RunConfig


@dataclass(frozen=True)
class Location:
    """A path or URI, and the value of the setting that names it; `default` is set for folders that runs create."""

    setting: str
    value: str
    location: str
    default: str | None = None

    def require_mount(self) -> None:
        """Raise UserError if it is in a bucket that is not mounted on this machine."""
        if self.default is not None:
            fix = f"--set {self.setting}={self.default}"
        else:
            copy = self.value.replace(self.location, self.location.rstrip("/").rpartition("/")[2])
            fix = f"gcloud storage cp -r {shlex.quote(self.location)} . and then --set {self.setting}={copy}"
        require_mount(self.location, self.setting, fix, value=self.value)


def locations(config: RunConfig) -> Iterator[Location]:
    """Yield what the steps read and write, but the data that only a program of the user reads (`data.uri`)."""
    registry, data = config.register_.registry, config.prepared
    if data is not None:
        yield Location("data.store", data.store, data.store, _default(DataSettings, "store"))
    yield Location("register.registry", registry, registry, _default(RegisterSettings, "registry"))
    if data is not None:
        with contextlib.suppress(UserError):  # the source is of no kind, which its check says
            kind = source_kind(data.source)
            if kind.mounted:
                yield Location("data.source", data.source, kind.argument_of(data.source))
        for setting, path in (("text.vocabulary", data.text.vocabulary), ("features", data.features)):
            if isinstance(path, str):
                yield Location(f"data.{setting}", path, path)
    if config.model is not None and config.model.weights is not None:
        yield Location("model.weights.file", config.model.weights.file, config.model.weights.file)


def _default(settings: type[DataSettings | RegisterSettings], name: str) -> str:
    return str(settings.model_fields[name].default)
