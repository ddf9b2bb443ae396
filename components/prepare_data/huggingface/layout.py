"""Which files of a data set's repository are its examples, and of which split.

As the library `datasets` decides it (`src/datasets/data_files.py`): by `configs` in the metadata of README.md, else by
names such as `data/train-00000-of-00001.parquet`, `train/cat/1.png` or `test.csv`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from slipway.components.prepare_data.examples import SPLIT_FOLDERS
from slipway.components.prepare_data.huggingface.hub import Repository
from slipway.components.prepare_data.huggingface.reference import CONVERTED, Reference
from slipway.components.prepare_data.sources.images import is_image
from slipway.core.errors import UserError, nearest
from slipway.core.values import JsonObject

# SPLIT_KEYWORDS and NON_WORDS_CHARS of `datasets`.
KEYWORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "dev", "val"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
SHARDED = re.compile(r"data/(?P<split>[\w.]+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
WORDS = re.compile(r"[-._ 0-9]+")
TABLES = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
# What lists the files of a folder of images, with other columns.
METADATA = re.compile(r"(.*/)?metadata\.(csv|jsonl|parquet)")
IGNORED = ("config.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json")


@dataclass(frozen=True)
class Layout:
    """The examples of a data set.

    Attributes:
        tables: The files of tables of each of Slipway's splits; of images, those that list them.
        images: The images of each split, if there are images.
        features: The features that the metadata describe, by name: their dtype.
    """

    tables: Mapping[str, Sequence[str]]
    images: Mapping[str, Sequence[str]]
    features: Mapping[str, object]

    @property
    def paths(self) -> list[str]:
        """The files to download."""
        return sorted({path for files in (*self.tables.values(), *self.images.values()) for path in files})


def layout_of(
    repository: Repository,
    reference: Reference,
    paths: Sequence[str],
    card: JsonObject,
    splits: Mapping[str, str] | None,
) -> Layout:
    """Return the examples of a configuration of a data set.

    Args:
        repository: The repository.
        reference: What names the configuration.
        paths: The repository's files.
        card: The metadata of its README.md.
        splits: Slipway's split for those of the repository to use (data.huggingface.splits); None: by their names.

    Raises:
        UserError: There is no such configuration or split, several configurations of which none is the default one, or
            no file that can be read.
    """
    usable = [path for path in paths if _is_data(path)]
    configs = _configs(card)
    if not configs and reference.revision == CONVERTED:
        configs = {name: {"data_dir": name} for name in sorted({path.partition("/")[0] for path in usable})}
    name = _chosen(repository, reference, configs)
    config = configs.get(name, {}) if name is not None else {}
    if not configs and reference.config is not None:
        config = {"data_dir": reference.config}
    root = str(config.get("data_dir") or "").strip("/")
    inside = {path.removeprefix(f"{root}/"): path for path in usable if path.startswith(f"{root}/")} if root else None
    relative = {path: path for path in usable} if inside is None else inside
    files = _by_patterns(config["data_files"], relative) if config.get("data_files") else _by_names(relative)
    files = {split: [relative[path] for path in group] for split, group in files.items() if group}
    if not files:
        raise _no_files(repository, reference, paths)
    used = _requested(repository, files, splits)
    merged: dict[str, list[str]] = {}
    for split, target in used.items():
        merged.setdefault(target, []).extend(files[split])
    return _divided(merged, _features(card, name))


def _is_data(path: str) -> bool:
    name = path.rpartition("/")[2]
    hidden = any(part.startswith((".", "__")) for part in path.split("/"))
    return not hidden and name not in IGNORED and (path.lower().endswith(TABLES) or is_image(path.encode()))


def _configs(card: JsonObject) -> dict[str, JsonObject]:
    listed = card.get("configs")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return {str(row.get("config_name", "default")): row for row in rows}


def _chosen(repository: Repository, reference: Reference, configs: Mapping[str, JsonObject]) -> str | None:
    """Return the name of the configuration; None if there are none."""
    if reference.config is not None and configs:
        if reference.config in configs:
            return reference.config
        raise repository.error(
            f"The {repository.noun} has no configuration {reference.config!r}.",
            _with_config(reference, nearest(reference.config, configs) or next(iter(configs))),
            allowed=", ".join(configs),
        )
    marked = [name for name, row in configs.items() if row.get("default") is True]
    named = marked or [name for name in configs if name == "default" or len(configs) == 1]
    if configs and not named:
        raise repository.error(
            f"The {repository.noun} has {len(configs)} configurations, and none is the default one.",
            _with_config(reference, next(iter(configs))),
            allowed=", ".join(configs),
        )
    return named[0] if named else None


def _with_config(reference: Reference, config: str) -> str:
    return f"--set data.source={Reference(reference.repo, config, reference.revision)}"


def _by_patterns(data_files: object, paths: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the paths of each split by the patterns of the metadata, in one of their three forms."""
    if isinstance(data_files, list) and all(isinstance(row, dict) for row in data_files):
        data_files = {row.get("split", "train"): row.get("path", ()) for row in data_files}
    by_split = data_files if isinstance(data_files, dict) else {"train": data_files}
    return {
        str(split): [path for path in paths if any(matches(path) for matches in _matchers(patterns))]
        for split, patterns in by_split.items()
    }


def _matchers(patterns: object) -> list[Callable[[str], object]]:
    from fsspec.utils import glob_translate

    texts = patterns if isinstance(patterns, list) else [patterns]
    return [re.compile(glob_translate(str(text).removeprefix("./"))).match for text in texts]


def _by_names(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return the paths of each split by the first rule that applies to any: shards, folders, file names; else train."""
    for rule in (_shard, _folder, _file):
        files: dict[str, list[str]] = {}
        for path in paths:
            if split := rule(path):
                files.setdefault(split, []).append(path)
        if files:
            return files
    return {"train": [*paths]}


def _shard(path: str) -> str | None:
    match = SHARDED.fullmatch(path)
    return match and match["split"]


def _folder(path: str) -> str | None:
    return next((split for part in path.split("/")[:-1] if (split := _keyword(part))), None)


def _file(path: str) -> str | None:
    return _keyword(path.rpartition("/")[2])


def _keyword(name: str) -> str | None:
    return next((KEYWORDS[word] for word in WORDS.split(name) if word in KEYWORDS), None)


def _no_files(repository: Repository, reference: Reference, paths: Sequence[str]) -> UserError:
    where = f" for the configuration {reference.config}" if reference.config else ""
    return repository.error(
        f"The {repository.noun} has no file that can be read{where}, among {len(paths):,}.",
        f"--set data.source={reference.at(CONVERTED)}, which the hub fills with Parquet files of many data sets",
        allowed=f"files {', '.join(TABLES)}, or images in folders of classes",
    )


def _requested(
    repository: Repository, files: Mapping[str, Sequence[str]], splits: Mapping[str, str] | None
) -> dict[str, str]:
    """Return Slipway's split for each of the repository's splits to use.

    Raises:
        UserError: One does not exist, or its name is none of a split that Slipway has.
    """
    if splits is not None:
        for name in splits:
            if name not in files:
                raise UserError(
                    f"The {repository.noun} has no split {name!r}.", setting=f"data.huggingface.splits.{name}",
                    value=splits[name], allowed=", ".join(files), nearest=nearest(name, files),
                    fix=f"--set 'data.huggingface.splits={{{next(iter(files))}: train}}'",
                )  # fmt: skip
        return dict(splits)
    names = {**KEYWORDS, **SPLIT_FOLDERS}
    if strange := [name for name in files if name.lower() not in names]:
        known = ", ".join(f"{name}: {names[name.lower()]}" for name in files if name.lower() in names)
        raise UserError(
            f"The {repository.noun} has splits other than train, validation and test: {', '.join(strange)}.",
            setting="data.huggingface.splits", value=None,
            allowed="a mapping from the splits to use to train, validation or test",
            fix=f"--set 'data.huggingface.splits={{{known or f'{strange[0]}: train'}}}'",
        )  # fmt: skip
    return {name: names[name.lower()] for name in files}


def _divided(files: Mapping[str, Sequence[str]], features: Mapping[str, object]) -> Layout:
    """Return the layout: Parquet files before other tables, and tables before images unless they list these."""
    images = {split: [path for path in group if is_image(path.encode())] for split, group in files.items()}
    lists = {split: [path for path in group if METADATA.fullmatch(path)] for split, group in files.items()}
    if any(images.values()) and any(lists.values()):
        return Layout(lists, images, features)
    for endings in ((".parquet",), TABLES):
        tables = {split: [path for path in group if path.lower().endswith(endings)] for split, group in files.items()}
        if any(tables.values()):
            return Layout({split: group for split, group in tables.items() if group}, {}, features)
    return Layout({}, {split: group for split, group in images.items() if group}, features)


def _features(card: JsonObject, config: str | None) -> dict[str, object]:
    """Return the dtypes of the features of a configuration in the metadata."""
    listed = card.get("dataset_info")
    rows = [row for row in (listed if isinstance(listed, list) else [listed]) if isinstance(row, dict)]
    named = [row for row in rows if config is None or row.get("config_name", "default") == config]
    row = (named or (rows if len(rows) == 1 else [{}]))[0]
    features = row.get("features")
    return {
        str(feature["name"]): {key: value for key, value in feature.items() if key != "name"}
        for feature in (features if isinstance(features, list) else ())
        if isinstance(feature, dict) and "name" in feature
    }
