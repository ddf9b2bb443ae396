"""What steps of an earlier run returned: the inputs of a run that executes only some steps (`slipway run --only`)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.core.values import JsonObject
from slipway.pipelines.runs.record import RunFolder, RunRecord
from slipway.pipelines.table import STEPS, steps_on

if TYPE_CHECKING:
    from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec

OUTPUT = "executor_output.json"  # kfp's name


def tasks_before(step: str, platform: str) -> list[str]:
    """Return the tasks of the steps before `step`, whose results the run has from an earlier one."""
    steps = steps_on(platform)
    return [task.name for name in steps[: steps.index(step)] for task in STEPS[name].tasks_on(platform)]


def copy_outputs(source: RunFolder, folder: RunFolder, record: RunRecord) -> None:
    """Copy what the steps of `source` before the first one of the run in `folder` returned; they name their artifacts.

    Raises:
        UserError: An artifact no longer exists.
    """
    assert record.part is not None
    for task in tasks_before(record.part.first, record.platform):
        output_file = _output_file(source, task)
        if output_file is None:  # a program that has its own data
            continue
        for artifact in _artifacts(output_file).values():
            if not Path(artifact["uri"]).exists():
                raise UserError(
                    f"{artifact['uri']}, which the run {source.run_id} has written, no longer exists.",
                    fix="slipway run",
                )
        target = folder.artifacts / source.run_id / task / OUTPUT
        target.parent.mkdir(parents=True)
        shutil.copyfile(output_file, target)


def fill_cache(cache: Path, folder: RunFolder, tasks: list[str], specification: PipelineSpec) -> None:
    """Add the copied outputs to kfp's cache, under the keys of tasks whose `cache_key` is their name."""
    from kfp.dsl.executor import create_artifact_instance
    from kfp.local.cache import LocalCache

    kfp_cache = LocalCache(str(cache))
    for task in tasks:
        file = _output_file(folder, task)
        name = f"comp-{task}"
        if file is None or name not in specification.components:
            continue
        types = specification.components[name].output_definitions.artifacts
        outputs = dict(json.loads(file.read_bytes()).get("parameterValues", {}))
        for key, artifact in _artifacts(file).items():
            outputs[key] = create_artifact_instance(
                {**artifact, "type": {"schemaTitle": types[key].artifact_type.schema_title}}
            )
        kfp_cache.put(kfp_cache.compute_key(name, "", [], {}, custom_cache_key=task), outputs)


def _output_file(folder: RunFolder, task: str) -> Path | None:
    """Return the file of kfp with what a task last returned."""
    files = folder.artifacts.glob(f"*/{task}/{OUTPUT}")
    return max(files, key=lambda path: path.stat().st_mtime, default=None)


def _artifacts(file: Path) -> dict[str, JsonObject]:
    artifacts = json.loads(file.read_bytes()).get("artifacts", {})
    return {name: artifact["artifacts"][0] for name, artifact in artifacts.items()}
