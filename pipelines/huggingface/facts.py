"""What is known of a registered version: its own records, and those of its run and data set where they still exist."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from slipway.components.prepare_data.huggingface.reference import PREFIX, Reference
from slipway.components.register_model.registry import Version
from slipway.core import integrity, manifest
from slipway.core.atomic import read_regular
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest, TaskName
from slipway.core.paths import is_remote, local_path
from slipway.core.values import JsonObject
from slipway.pipelines.runs import provenance
from slipway.pipelines.runs import record as runs
from slipway.trainer.tasks import TASKS


@dataclass(frozen=True)
class Facts:
    """What a model card says.

    Attributes:
        version: The registered version, with its metrics and intervals.
        model: The content of its model.json; {} of another program's model.
        evaluation: What the step evaluate returned; {} if the run was deleted, or was on another machine.
        made_with: Commit, files, packages and processor of the run; {} likewise.
        data: The manifest of the data set; None likewise.
        confusion: The number of test examples by class and predicted class; [] without classes, or likewise.
    """

    version: Version
    model: JsonObject
    evaluation: JsonObject
    made_with: JsonObject
    data: Manifest | None
    confusion: list[list[int]]

    @classmethod
    def of(cls, version: Version) -> Facts:
        """Return the facts about a registered version."""
        record, folder = _run(str(version.metadata.get("run_id", "")))
        evaluation = record.outputs("evaluate") if record else {}
        dataset = str(record.outputs("prepare_data").get("dataset", "")) if record else ""
        return cls(
            version=version,
            model=_read(version.folder / integrity.RECORD_FILE),
            evaluation=evaluation,
            made_with=provenance.read(folder) if folder else {},
            data=_manifest(dataset, version.metadata.get("data_fingerprint")),
            confusion=_confusion(evaluation),
        )

    @property
    def task(self) -> TaskName | None:
        """What the model learned; None of another program's model."""
        task = self.model.get("task")
        return cast(TaskName, task) if task in TASKS else None

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test split, those of the task in the order of their table, then others."""
        stored: dict[str, float] = dict(self.version.metadata.get("metrics") or {})
        known = TASKS[self.task].metrics if self.task else {}
        order = [*(name for name in known if name in stored), *sorted(stored.keys() - known.keys())]
        return {name: stored[name] for name in order if name != "examples"}

    @property
    def intervals(self) -> dict[str, list[float]]:
        """The 95% confidence intervals of metrics."""
        return dict(self.version.metadata.get("intervals") or {})

    @property
    def examples(self) -> int | None:
        """The number of test examples."""
        count = (self.version.metadata.get("metrics") or {}).get("examples")
        return None if count is None else int(count)

    @property
    def inputs(self) -> dict[str, str]:
        """The kinds of the model's inputs, by name."""
        kinds = {name: str(about.get("kind")) for name, about in (self.model.get("inputs") or {}).items()}
        size = self.model.get("image_size")
        if size and any(size):
            return {"image": f"image, {size[0]} × {size[1]} pixels", **kinds}
        return kinds

    @property
    def hub_data(self) -> Reference | None:
        """The data set on the hub that the model was trained on, at its commit; None of other data."""
        if self.data is None or not self.data.source.startswith(PREFIX):
            return None
        reference = Reference.of(self.data.source)
        return reference.at(self.data.revision) if self.data.revision else reference


def _run(run_id: str) -> tuple[runs.RunRecord, Path] | tuple[None, None]:
    try:
        folder = runs.find(run_id)
        return folder.read(), folder.path
    except UserError:
        return None, None


def _read(path: Path) -> JsonObject:
    try:
        content: JsonObject = json.loads(read_regular(path))
    except (OSError, ValueError):
        return {}
    return content


def _manifest(dataset: str, fingerprint: object) -> Manifest | None:
    """Return the manifest of the data set if it still exists, and is the one that the model was trained on."""
    if not dataset or is_remote(dataset):
        return None
    try:
        described = manifest.read(local_path(dataset))
    except (UserError, OSError):
        return None
    return described if described.fingerprint == fingerprint else None


def _confusion(evaluation: JsonObject) -> list[list[int]]:
    path = evaluation.get("classification")
    matrix = _read(Path(path)).get("confusionMatrix") if isinstance(path, str) and not is_remote(path) else None
    return [row["row"] for row in matrix["rows"]] if matrix else []
