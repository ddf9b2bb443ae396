"""A set of TensorFlow Datasets: its own files are read as they lie, so images, labels and classes stay what they are.

A set that TFDS has prepared is found by its folder, `<data_dir>/<name>/[<config>/]<version>`; TensorFlow Datasets
itself, which takes seconds to import, is only asked, in a process of its own, for a set that is not there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.images import valid_name
from slipway.components.prepare_data.sources.layout import SPLIT_FOLDERS
from slipway.components.prepare_data.sources.record_layout import read_features, record_layout
from slipway.components.prepare_data.sources.tfrecord import RecordFile, TfrecordSource
from slipway.core import events
from slipway.core.errors import ERROR_PREFIX, UserError, nearest
from slipway.core.paths import is_remote, local_path

REFERENCE = re.compile(r"^([A-Za-z]\w*)(?:/([\w.\-+]+))?(?::(\d+\.\d+\.\d+|[\d*]+\.[\d*]+\.[\d*]+))?$")
FORM = "tfds:NAME, tfds:NAME/CONFIG, tfds:NAME:VERSION or tfds:NAME/CONFIG:VERSION"
VERSION = re.compile(r"^\d+\.\d+\.\d+$")
INFO = "dataset_info.json"
# As tqdm prints it: "Dl Size...:  12%|█▏        | 26/218 [00:04<00:31,  6.1 MiB/s]".
BAR = re.compile(r"(?:(?P<done>\d+)/(?P<total>\d+)|\d+ \w+) \[\d+:\d\d")
CURSOR_UP = "\x1b[A"


def open_tfds(reference: str, settings: DataSettings, group_column: str | None) -> TfrecordSource:
    """The source `tfds:NAME[/CONFIG][:VERSION]`, prepared by TFDS now if it is not there.

    Raises:
        UserError: There is no such set, or it cannot be prepared, or has other splits than are wanted.
    """
    root = data_dir(settings)
    folder = find_set(reference, settings)
    if folder is None:
        events.message(f"TensorFlow Datasets prepares {reference} in {root}.")
        folder = local_path(prepare_with_tfds(reference, root, settings))
    events.message(f"{settings.source} is read from {folder}.")
    info = json.loads((folder / INFO).read_text(encoding="utf-8"))
    files = list(_files(folder, info, settings))
    layout = record_layout(read_features(settings, folder), settings)
    return TfrecordSource(valid_name(info["name"]), settings.source, files, layout, group_column)


def find_set(reference: str, settings: DataSettings) -> Path | None:
    """The folder of the set where it is prepared already.

    Raises:
        UserError: The reference is not written as one.
    """
    found = REFERENCE.match(reference)
    if found is None:
        raise UserError(
            f"{reference!r} names no set of TensorFlow Datasets.",
            setting="data.source",
            value=settings.source,
            allowed=FORM,
        )
    name, config, version = found.groups()
    return prepared_folder(local_path(data_dir(settings)) / name, config, version)


def data_dir(settings: DataSettings) -> str:
    """The folder (or URI) of the sets that TFDS prepared."""
    root = settings.tfds.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return root if is_remote(root) else str(Path(root).expanduser())


def prepared_folder(sets: Path, config: str | None, version: str | None) -> Path | None:
    """The folder of the one prepared set below `sets` that is meant; None where there is none, or several are."""
    if not sets.is_dir():
        return None
    configs = [sets / config] if config else [sets, *(path for path in sets.iterdir() if path.is_dir())]
    found = [
        path
        for folder in configs
        if folder.is_dir()
        for path in folder.iterdir()
        if VERSION.match(path.name) and version in (None, path.name) and (path / INFO).is_file()
    ]
    return found[0] if len(found) == 1 else None


def prepare_with_tfds(reference: str, root: str, settings: DataSettings) -> str:
    """Let TensorFlow Datasets prepare the set; its folder or gs:// URI.

    Raises:
        UserError: It cannot.
    """
    command = [sys.executable, "-m", "slipway.components.prepare_data.sources.tfds_prepare", reference, root]
    command += ["--try-gcs"] if settings.tfds.try_gcs else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    told, last = "", ""
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        try:
            for line in process.stderr or ():  # tqdm's bars end with \r, which ends a line here
                if bar := BAR.search(line):
                    if bar["total"]:
                        events.progress(int(bar["done"]), int(bar["total"]), "MiB" if "Dl Size" in line else "examples")
                    continue
                line = line.removeprefix(CURSOR_UP).strip()
                if line.startswith(ERROR_PREFIX):
                    told = line
                elif line:
                    print(line, file=sys.stderr, flush=True)
                    last = line
        except BaseException:
            process.kill()
            raise
        if process.wait() == 0:
            output.seek(0)
            return output.read().splitlines()[-1]
    if told:
        raise UserError.from_dict(json.loads(told.removeprefix(ERROR_PREFIX)))
    raise UserError(
        f"TensorFlow Datasets cannot prepare {reference}: {last or f'exit code {process.returncode}'}",
        setting="data.source",
        value=settings.source,
        fix="read what it printed, above"
        + ("" if settings.tfds.try_gcs else ", or try the bucket of prepared sets: --set data.tfds.try_gcs=true"),
    )


def _files(folder: Path, info: dict[str, Any], settings: DataSettings) -> Iterator[RecordFile]:
    """The files of the splits that are wanted."""
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise UserError(
            f"The set in {folder} is stored as {info['fileFormat']}, not as tfrecord.",
            setting="data.source",
            value=settings.source,
            allowed="sets in TFDS's file format tfrecord",
            fix="prepare it with tfds.builder(…, file_format='tfrecord') in another data_dir, and name that in "
            "data.tfds.data_dir",
        )
    wanted = _wanted_splits([split["name"] for split in info["splits"]], settings)
    for split in info["splits"]:
        if split["name"] not in wanted:
            continue
        lengths = [int(length) for length in split["shardLengths"]]
        for number, length in enumerate(lengths):
            name = split.get("filepathTemplate") or "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
            for field, value in {
                "DATASET": info["name"],
                "SPLIT": split["name"],
                "FILEFORMAT": "tfrecord",
                "SHARD_X_OF_Y": f"{number:05d}-of-{len(lengths):05d}",
                "SHARD_INDEX": f"{number:05d}",
                "NUM_SHARDS": f"{len(lengths):05d}",
            }.items():
                name = name.replace("{" + field + "}", value)
            if not (folder / name).is_file():
                raise UserError(
                    f"The set in {folder} is not complete: {name} is missing.",
                    setting="data.source",
                    value=settings.source,
                    fix=f"rm -r {folder}, then run again: TensorFlow Datasets prepares it anew",
                )
            yield RecordFile(folder / name, f"{split['name']}/{number:05d}", wanted[split["name"]], length)


def _wanted_splits(there: list[str], settings: DataSettings) -> dict[str, str]:
    """What each of the set's splits that is taken is here."""
    if settings.tfds.splits is not None:
        for name in settings.tfds.splits:
            if name not in there:
                raise UserError(
                    f"{settings.source} has no split {name!r}.",
                    setting=f"data.tfds.splits.{name}",
                    value=settings.tfds.splits[name],
                    allowed=", ".join(there),
                    nearest=nearest(name, there),
                )
        return dict(settings.tfds.splits)
    strange = [name for name in there if name not in SPLIT_FOLDERS]
    if strange:
        known = ", ".join(f"{name}: {SPLIT_FOLDERS[name]}" for name in there if name in SPLIT_FOLDERS)
        raise UserError(
            f"{settings.source} has splits that are neither train, validation nor test: {', '.join(strange)}.",
            setting="data.tfds.splits",
            value=None,
            allowed="which splits to take, and what each is: train, validation or test",
            fix=f"--set 'data.tfds.splits={{{known or f'{strange[0]}: train'}}}'",
        )
    return {name: SPLIT_FOLDERS[name] for name in there}
