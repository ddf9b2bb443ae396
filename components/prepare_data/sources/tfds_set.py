"""The source `tfds:`: reads the files of a TFDS data set directly; images, labels and classes are unchanged.

A prepared data set is found by its folder, `<data_dir>/<name>/[<config>/]<version>`. Only if it is missing is
TensorFlow Datasets, which takes seconds to import, started in a separate process.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from slipway.components.prepare_data.examples import SPLIT_FOLDERS, readable, source_error
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources.images import valid_name
from slipway.components.prepare_data.sources.record_layout import read_features, record_layout
from slipway.components.prepare_data.sources.source import Ignored
from slipway.components.prepare_data.sources.tfrecord import RecordFile, TfrecordSource
from slipway.core import events
from slipway.core.errors import ERROR_PREFIX, UserError, nearest
from slipway.core.manifest import TaskName
from slipway.core.paths import is_remote, local_path
from slipway.core.values import JsonObject

REFERENCE = re.compile(r"^([A-Za-z]\w*)(?:/([\w.\-+]+))?(?::(\d+\.\d+\.\d+|[\d*]+\.[\d*]+\.[\d*]+))?$")
FORM = "tfds:NAME, tfds:NAME/CONFIG, tfds:NAME:VERSION or tfds:NAME/CONFIG:VERSION"
VERSION = re.compile(r"^\d+\.\d+\.\d+$")
INFO = "dataset_info.json"
# As tqdm prints it: "Dl Size...:  12%|█▏        | 26/218 [00:04<00:31,  6.1 MiB/s]".
BAR = re.compile(r"(?:(?P<done>\d+)/(?P<total>\d+)|\d+ \w+) \[\d+:\d\d")
CURSOR_UP = "\x1b[A"


def open_tfds(
    reference: str, settings: DataSettings, group_column: str | None, task: TaskName = "classification"
) -> TfrecordSource:
    """Open the source `tfds:NAME[/CONFIG][:VERSION]`; prepare it with TFDS if it is missing.

    Raises:
        UserError: The data set does not exist, cannot be prepared or lacks a requested split.
    """
    root = data_dir(settings)
    folder = find_set(reference, settings)
    if folder is None:
        events.message(f"TensorFlow Datasets is preparing {reference} in {root}.")
        folder = local_path(prepare_with_tfds(reference, root, settings))
    events.message(f"Reading {settings.source} from {folder}.")
    info = json.loads((folder / INFO).read_text(encoding="utf-8"))
    files = list(_files(folder, info, settings))
    layout = record_layout(read_features(settings, folder), settings, task, group_column)
    return TfrecordSource(valid_name(info["name"]), settings, files, layout, group_column)


def pending(reference: str, settings: DataSettings) -> str | None:
    """Describe a data set that TensorFlow Datasets must first prepare; return None for one that is prepared.

    Raises:
        UserError: The reference is malformed.
    """
    if find_set(reference, settings) is not None:
        return None
    return f"{settings.source}, which TensorFlow Datasets first prepares in {data_dir(settings)}"


def find_set(reference: str, settings: DataSettings) -> Path | None:
    """Return the data set's folder, or None if it is not prepared yet.

    Raises:
        UserError: The reference is malformed.
    """
    match = REFERENCE.match(reference)
    if match is None:
        raise source_error(settings.source, f"{reference!r} is not a valid name of a TFDS data set.", allowed=FORM)
    name, config, version = match.groups()
    return prepared_folder(local_path(data_dir(settings)) / name, config, version)


def data_dir(settings: DataSettings) -> str:
    """Return the folder (or URI) of the data sets that TFDS prepared."""
    root = settings.tfds.data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return root if is_remote(root) else str(Path(root).expanduser())


def prepared_folder(sets: Path, config: str | None, version: str | None) -> Path | None:
    """Return the folder of the only matching prepared data set below `sets`; None if none or several match."""
    if not sets.is_dir():
        return None
    configs = [sets / config] if config else [sets, *(path for path in sets.iterdir() if path.is_dir())]
    prepared = [
        path
        for folder in configs
        if folder.is_dir()
        for path in folder.iterdir()
        if VERSION.match(path.name) and version in (None, path.name) and (path / INFO).is_file()
    ]
    return prepared[0] if len(prepared) == 1 else None


def prepare_with_tfds(reference: str, root: str, settings: DataSettings) -> str:
    """Prepare the data set with TensorFlow Datasets; return its folder or gs:// URI.

    Raises:
        UserError: TensorFlow Datasets failed.
    """
    command = [sys.executable, "-m", "slipway.components.prepare_data.sources.tfds_prepare", reference, root]
    command += ["--try-gcs"] if settings.tfds.try_gcs else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TF_CPP_MIN_LOG_LEVEL": "3"}
    reported, last = "", ""
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        try:
            for line in process.stderr or ():  # tqdm's bars end with \r, which text mode treats as a line end
                if bar := BAR.search(line):
                    if bar["total"]:
                        events.progress(int(bar["done"]), int(bar["total"]), "MiB" if "Dl Size" in line else "examples")
                    continue
                line = line.removeprefix(CURSOR_UP).strip()
                if line.startswith(ERROR_PREFIX):
                    reported = line
                elif line:
                    print(line, file=sys.stderr, flush=True)
                    last = line
        except BaseException:
            process.kill()
            raise
        if process.wait() == 0:
            output.seek(0)
            return output.read().splitlines()[-1]
    if reported:
        raise UserError.from_dict(json.loads(reported.removeprefix(ERROR_PREFIX)))
    raise source_error(
        settings.source,
        f"TensorFlow Datasets could not prepare {reference}: {last or f'exit code {process.returncode}'}",
        fix="see its output above"
        + ("" if settings.tfds.try_gcs else ", or try the bucket of prepared data sets: --set data.tfds.try_gcs=true"),
    )


def _files(folder: Path, info: JsonObject, settings: DataSettings) -> Iterator[RecordFile]:
    if info.get("fileFormat", "tfrecord") != "tfrecord":
        raise source_error(
            settings.source,
            f"The data set in {folder} is stored as {info['fileFormat']}, not as tfrecord.",
            allowed="data sets in TFDS's file format tfrecord",
            fix="prepare it with tfds.builder(…, file_format='tfrecord') in another folder, and set data.tfds.data_dir "
            "to that folder",
        )
    requested = _requested_splits([split["name"] for split in info["splits"]], settings)
    for split in info["splits"]:
        if split["name"] not in requested:
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
                raise source_error(
                    settings.source,
                    f"The data set in {folder} is incomplete: {name} is missing.",
                    fix=f"restore it, or mv {shlex.quote(str(folder))} {info['name']}-incomplete and run again: "
                    "TensorFlow Datasets prepares it again",
                )
            yield RecordFile(folder / name, f"{split['name']}/{number:05d}", requested[split["name"]], length)


def _requested_splits(there: list[str], settings: DataSettings) -> dict[str, str]:
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
            f"{settings.source} has splits other than train, validation and test: {', '.join(strange)}.",
            setting="data.tfds.splits",
            value=None,
            allowed="a mapping from the splits to use to train, validation or test",
            fix=f"--set 'data.tfds.splits={{{known or f'{strange[0]}: train'}}}'",
        )
    return {name: SPLIT_FOLDERS[name] for name in there}


def save_images(settings: DataSettings, folder: Path) -> int:
    """Write the images of the TFDS data set named by `settings` to `folder`, unchanged; return their number.

    The folder appears under its name only when it is complete.

    Raises:
        UserError: The folder exists, the data set is unavailable, or an example or a class cannot be saved in a folder.
    """
    if folder.exists():
        raise UserError(
            f"{folder} exists already.",
            setting="FOLDER",
            value=str(folder),
            fix=f"slipway run --set data.source=images:{folder}, or choose another folder",
        )
    reference = settings.source.removeprefix("tfds:")
    source = open_tfds(reference, settings, None)
    if not source.has_image:
        raise _unsuitable(settings, "it has no images")
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.absolute().parent) as scratch:
        ignored, reader, root = Ignored(), source.reader(Path(scratch)), Path(scratch) / "images"
        for part in source.parts():
            for key, label, split, size, _, offset, *_ in source.entries(part, ignored, Path(scratch)):
                if "/" in label or label.startswith("."):
                    raise _unsuitable(settings, f"the class {label!r} is not a valid folder name")
                image = reader.read(key, offset, size)
                ending = "png" if image.startswith(b"\x89PNG") else "jpg"
                path = root / str(split) / label / f"{count:07d}.{ending}"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(image)
                count += 1
        if ignored.unusable_count:
            key, reason = ignored.unusable[0]
            raise _unsuitable(
                settings, f"{ignored.unusable_count:,} examples cannot be used: {readable(key)}, {reason}"
            )
        shutil.move(root, folder)
    return count


def _unsuitable(settings: DataSettings, reason: str) -> UserError:
    return source_error(
        settings.source,
        f"{settings.source} cannot be saved as a folder of images: {reason}.",
        fix=f"--set data.source={settings.source}",
    )
