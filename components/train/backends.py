"""Where a training can run besides this machine: backends of extensions, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from slipway import extensions
from slipway.core.errors import UserError
from slipway.trainer.settings import Settings

if TYPE_CHECKING:
    from slipway.components.train.restarts import Restart
    from slipway.components.worker_pools import WorkerPool
    from slipway.trainer.config import RestartSettings


@dataclass(frozen=True)
class Trained:
    """The result of a training elsewhere: the output directory with the model, and the replicas' restarts.

    `facts` are facts about the model, such as the parameters of a search's best trial, as texts.
    """

    output: str
    restarts: Sequence[Restart]
    facts: Mapping[str, str] = field(default_factory=dict)


class Backend(Settings):
    """The base of the settings of a backend, which `slipway.steps.train` receives.

    `name` is its name in the extension's `backends`, which refers to a function that trains; see `train_on`.
    """

    name: ClassVar[str]

    def as_json(self) -> str:
        """Return the step's input."""
        return json.dumps({"backend": self.name, "settings": self.model_dump(mode="json")})


def train_on(
    backend: str, pools: list[WorkerPool], output: str, dataset: Path | None, restarts: RestartSettings
) -> Trained:
    """Train on the backend of `Backend.as_json`.

    Args:
        backend: The step's input.
        pools: The specifications of a custom job.
        output: The job's base output directory, a folder or URI.
        dataset: The prepared data set; None if there is none.
        restarts: Limit and backoff of restarts.

    Raises:
        UserError: No extension has the backend, or it refuses the training.
    """
    row = json.loads(backend)
    known = {name: reference for extension in extensions.installed() for name, reference in extension.backends.items()}
    if row["backend"] not in known:
        raise UserError.unknown("training backend", row["backend"], known)
    trained: Trained = extensions.load(known[row["backend"]])(row["settings"], pools, output, dataset, restarts)
    return trained
