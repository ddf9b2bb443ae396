"""Registration of a trained model and its metadata in a registry that is a folder."""

from __future__ import annotations

import json
from pathlib import Path

from slipway.components.evaluate.gate import INTERVALS, UNCHECKED
from slipway.components.register_model.registry import (
    SERVE_MODULE,
    PromoteOver,
    RegisterSettings,
    Registration,
    Registry,
)
from slipway.components.train.result import trainer_record
from slipway.core import events
from slipway.core.errors import UserError
from slipway.core.git import git_commit
from slipway.core.paths import local_path
from slipway.core.values import JsonObject
from slipway.trainer.engines.table import model_files

PROMOTE = "promote"
NONE_ASKED = "none"
PARAMETERS = "parameters"


def register(
    settings: RegisterSettings,
    *,
    model_name: str,
    run_id: str,
    verdict: str,
    champion: str,
    source: Path,
    metrics: JsonObject,
    serve_module: str = "",
    parameters: str = "",
) -> Registration:
    """Register the model in the folder `source`; see the component for the arguments.

    `parameters` are those of a search's best trial by name, JSON.

    Raises:
        UserError: There is no model in `source`, or the registry cannot be written to.
        ValueError: The verdict is not "promote", or the champion's folder is not a version of this model.
    """
    check_promoted(verdict)
    registry = Registry(local_path(settings.registry).absolute())
    description = _description(source, run_id)
    metadata = {
        "run_id": run_id,
        "metrics": numeric(metrics),
        **{key: metrics[key] for key in (INTERVALS, UNCHECKED) if key in metrics},
        "weights_checksum": description.get("weights_checksum"),
        "data_fingerprint": description.get("data_fingerprint"),
        "git_commit": git_commit(Path.cwd()),
        **({SERVE_MODULE: serve_module} if serve_module else {}),
        **({PARAMETERS: json.loads(parameters)} if parameters else {}),
    }
    registration = registry.register(model_name, source, metadata, _measured_against(registry, model_name, champion))
    if registration.note:
        events.message(registration.note)
    return registration


def champion_folder(registry: str, model_name: str) -> str:
    """Return the folder of the registered model to beat, "" if there is none yet.

    Raises:
        UserError: The alias does not name an existing version.
    """
    champion = Registry(local_path(registry).absolute()).champion(model_name)
    return str(champion.folder) if champion else ""


def check_promoted(verdict: str) -> None:
    """Raise ValueError for a model that the gate did not promote."""
    if verdict != PROMOTE:
        raise ValueError(f"only a model with the verdict {PROMOTE!r} is registered, not one with {verdict!r}")


def numeric(metrics: JsonObject) -> dict[str, float]:
    """Return the metrics that are numbers."""
    return {name: value for name, value in metrics.items() if isinstance(value, int | float)}


def _measured_against(registry: Registry, model_name: str, champion: str) -> PromoteOver:
    if not champion:
        return None
    if champion == NONE_ASKED:
        return "any"
    folder = Path(champion).absolute()
    if folder.parent != registry.root / model_name or not folder.name.isdigit():
        raise ValueError(f"{folder} is not a version of {model_name} in the registry {registry.root}")
    return int(folder.name)


def _description(source: Path, run_id: str) -> JsonObject:
    """Return the record of Slipway's trainer, {} for another program's model, whose format does not matter."""
    missing = "the folder is missing or empty"
    if any(path.is_file() for path in source.rglob("*")):
        description = trainer_record(source)
        if not description or any((source / name).is_file() for name in model_files()):
            return description
        missing = f"{' or '.join(model_files())} is missing"
    raise UserError(
        f"There is no trained model in {source} to register: {missing}.",
        fix=f"slipway run --resume {run_id}, which trains it again",
    )
