"""Whether a run that was made again is equal to the first one bit for bit, where they part, and why."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slipway.components.evaluate.charts import read_history
from slipway.components.prepare_data.encoding.messages import features_of, values
from slipway.components.prepare_data.encoding.records import read_records
from slipway.core import integrity, manifest, seen
from slipway.core.atomic import json_lines
from slipway.core.paths import local_path
from slipway.core.values import JsonObject
from slipway.pipelines.selection.selection import Row, differences
from slipway.trainer.metrics.history import FILE_NAME as HISTORY_FILE
from slipway.trainer.metrics.history import METRICS_FILE

# Values in the records of a history that no two runs share.
_TIMES = ("time", "second", "waiting", "mfu")
# What a run was made with, in the order in which a difference explains others.
CAUSES = {
    "files": "the files",
    "commit": "the commit",
    "packages": "packages",
    "python": "Python",
    "processor": "the processor",
    "cores": "the number of cores",
}
MAX_KEYS = 3
KERAS_FILE = ".keras"


@dataclass(frozen=True)
class Comparison:
    """One thing that both runs have: whether it is equal, None if one of them did not record it, and a detail."""

    name: str
    equal: bool | None
    detail: str


@dataclass(frozen=True)
class Reproduction:
    """The comparison of two runs, and the likely cause of a difference."""

    original: str
    again: str
    compared: list[Comparison]
    causes: list[str]

    @property
    def equal(self) -> bool:
        """Whether nothing differs, and the data or the weights were compared."""
        results = [comparison.equal for comparison in self.compared]
        return False not in results and True in results

    def as_dict(self) -> JsonObject:
        """Return it for machines."""
        return {**asdict(self), "equal": self.equal}


def compare(original: Row, again: Row) -> Reproduction:
    """Compare the data, the history, the checkpoints and the weights of two runs with the same configuration."""
    compared = [_data(original, again), _history(original, again), _checkpoints(original, again)]
    compared.append(_weights(original, again))
    return Reproduction(
        original.record.run_id, again.record.run_id, compared, list(_causes(original, again, compared[0]))
    )


def _data(original: Row, again: Row) -> Comparison:
    before, now = original.outputs("prepare_data"), again.outputs("prepare_data")
    if not before or not now:
        return Comparison("data", None, "Slipway prepared none")
    if before["fingerprint"] == now["fingerprint"]:
        return Comparison("data", True, f"fingerprint {now['fingerprint'][:12]}")
    changed = "; ".join(_changed_examples(Path(before["dataset"]), Path(now["dataset"])))
    detail = f"fingerprint {now['fingerprint'][:12]} instead of {before['fingerprint'][:12]}"
    return Comparison("data", False, f"{detail}; {changed}" if changed else detail)


def _changed_examples(before: Path, now: Path) -> Iterator[str]:
    """Yield how many examples of each split one of two data sets alone has, with the keys of some."""
    if not before.is_dir():
        yield f"{before} no longer exists"
        return
    for split, part in manifest.read(now).splits.items():
        old, new = (seen.of_split(folder, manifest.read(folder), split) for folder in (before, now))
        if old is None or new is None:
            continue
        added, removed = np.flatnonzero(~np.isin(new, old)), np.flatnonzero(~np.isin(old, new))
        if len(added) or len(removed):
            keys = ", ".join(_keys(now, part, set(added[:MAX_KEYS].tolist())))
            yield f"{split}: {len(added):,} new examples{f' ({keys})' if keys else ''}, {len(removed):,} missing"


def _keys(data: Path, split: manifest.Split, positions: set[int]) -> Iterator[str]:
    """Yield the keys of the examples at these positions of a split."""
    number = 0
    for shard in split.shards:
        with (data / shard.file).open("rb") as file:
            for message in read_records(file):
                if number in positions:
                    (key,) = values(features_of(message)[b"key"])
                    yield key.decode(errors="replace") if isinstance(key, bytes) else str(key)
                number += 1


def _history(original: Row, again: Row) -> Comparison:
    before, now = (
        {(entry["step"], entry["kind"]): _metrics_of(entry) for entry in read_history(row.history_file).records}
        for row in (original, again)
    )
    common = sorted(before.keys() & now.keys())
    if not common:
        return Comparison("history", None, "one of the runs has none")
    for step, kind in common:
        if before[step, kind] != now[step, kind]:
            (name,) = differences([before[step, kind], now[step, kind]])[:1]
            values_of = f"{now[step, kind].get(name)} instead of {before[step, kind].get(name)}"
            return Comparison("history", False, f"parts at step {step:,}: {name} in {kind} is {values_of}")
    return Comparison("history", True, f"{len(common):,} records up to step {common[-1][0]:,}")


def _metrics_of(record: JsonObject) -> dict[str, Any]:
    return {name: value for name, value in record.items() if not any(word in name for word in _TIMES)}


def _checkpoints(original: Row, again: Row) -> Comparison:
    before, now = _checksums(original), _checksums(again)
    common = sorted(before.keys() & now.keys())
    if not common:
        return Comparison("checkpoints", None, "the runs have none in common")
    parts = next((step for step in common if before[step] != now[step]), None)
    steps = ", ".join(f"{step:,}" for step in common)
    if parts is None:
        return Comparison("checkpoints", True, f"of the steps {steps}")
    return Comparison("checkpoints", False, f"that of step {parts:,} is the first to differ, of the steps {steps}")


def _checksums(row: Row) -> dict[int, str]:
    checksums = {}
    for file in (row.folder.path / "train" / "checkpoints").glob("*/checkpoint.json"):
        values_of = json.loads(file.read_bytes())
        checksums[int(values_of["step"])] = str(values_of["sha256"])
    return checksums


def _weights(original: Row, again: Row) -> Comparison:
    trained, trained_again = original.outputs("train"), again.outputs("train")
    for name in ("weights_checksum", integrity.FILES_CHECKSUM):  # a program's model has no weights that Slipway knows
        before, now = trained.get(name), trained_again.get(name)
        if not before or not now:
            continue
        detail = f"checksum {now[:12]}" + ("" if before == now else f" instead of {before[:12]}")
        if name == "weights_checksum":
            return Comparison("weights", before == now, detail)
        folders = [local_path(str(outputs.get("model", ""))) for outputs in (trained, trained_again)]
        if before != now and all((folder / integrity.CHECKSUMS_FILE).is_file() for folder in folders):
            return _files(*folders)
        return Comparison("model", before == now, detail)
    return Comparison("weights", None, "one of the runs has no model")


def _files(before: Path, now: Path) -> Comparison:
    """Compare the files of two models of a program."""
    old, new = integrity.files(before), integrity.files(now)
    names = sorted((old.keys() | new.keys()) - {integrity.CHECKSUMS_FILE})
    unequal = [name for name in names if old.get(name) != new.get(name)]
    missing = sorted(old.keys() ^ new.keys())
    differing = [name for name in unequal if name in missing or _content(before / name) != _content(now / name)]
    if not differing:
        equal = f"all {len(names):,} files are equal"
        return Comparison("model", True, f"{equal} but for times in {', '.join(unequal)}" if unequal else equal)
    which = f"; only one of them has {', '.join(missing[:MAX_KEYS])}" if missing else ""
    return Comparison("model", False, f"{len(differing):,} of {len(names):,} files differ: {differing[0]}{which}")


def _content(file: Path) -> object:
    """Return what a file has beside times; its path for one of an unknown format, whose bytes differ."""
    if file.name == HISTORY_FILE:
        return [_metrics_of(record) for record in json_lines(file.read_bytes())]
    if file.name == METRICS_FILE:
        return _metrics_of(json.loads(file.read_bytes()))
    if file.suffix == KERAS_FILE and zipfile.is_zipfile(file):  # whose metadata have the date
        with zipfile.ZipFile(file) as archive:
            return {member.filename: member.CRC for member in archive.infolist() if member.filename != "metadata.json"}
    return file


def _causes(original: Row, again: Row, data: Comparison) -> Iterator[str]:
    """Yield what may explain a difference, the likeliest first."""
    if data.equal is False:
        yield "the source of the data has changed"
    for key, title in CAUSES.items():
        before, now = original.made_with.get(key), again.made_with.get(key)
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            names = differences([before, now])
            yield f"{title}: " + ", ".join(f"{name} {now.get(name)} instead of {before.get(name)}" for name in names)
        else:
            yield f"{title}: {now or 'unknown'} instead of {before or 'unknown'}"
