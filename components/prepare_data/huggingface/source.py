"""The source `hf:`: the files of a commit of a data set's repository, as a table, a list of images or folders of them.

They are downloaded to the hub's cache once, verified, and converted in the folder that the client keeps for other
libraries (HF_ASSETS_CACHE). A data set that was converted is opened without the network if its revision is a commit.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path

from pydantic import BaseModel

from slipway.components.prepare_data.examples import source_error
from slipway.components.prepare_data.huggingface import hub
from slipway.components.prepare_data.huggingface.conversion import FILES, IMAGES, TABLE, Converter, link_images
from slipway.components.prepare_data.huggingface.layout import Layout, layout_of
from slipway.components.prepare_data.huggingface.reference import DEFAULT_REVISION, Reference
from slipway.components.prepare_data.settings import DataSettings
from slipway.components.prepare_data.sources import refuse_features
from slipway.components.prepare_data.sources.images import ImagesSource, valid_name
from slipway.components.prepare_data.sources.record_layout import additional_kinds
from slipway.components.prepare_data.sources.source import Source
from slipway.components.prepare_data.sources.table_source import open_table_source
from slipway.core import events
from slipway.core.errors import UserError, nearest
from slipway.core.manifest import TaskName
from slipway.trainer.engines.installed import verify_extra

EXTRA = "huggingface"
# Part of the names of converted data sets. Increment it if files are converted otherwise.
FORMAT = 1
DIGITS = 16
UNFINISHED = ".unfinished-"
ABOUT = "about.json"


class About(BaseModel):
    """What a converted data set consists of: the columns that were images and numbers of classes, and those dropped."""

    images: list[str] = []
    labels: list[str] = []
    dropped: dict[str, str] = {}


def open_hub(argument: str, settings: DataSettings, column: str | None, task: TaskName) -> Source:  # noqa: ARG001
    """Open the source `hf:ORG/NAME[/CONFIG][@REVISION]`; download and convert what is not on this machine.

    Raises:
        UserError: It does not exist, may not be read, or has no examples that can be read.
    """
    verify_extra(EXTRA)
    reference = Reference.of(settings.source)
    repository = _repository(reference, settings)
    commit = _commit(repository, reference)
    folder = _folder(reference, commit, settings)
    if not _is_complete(folder):
        _convert(repository, reference, commit, folder, settings)
    about = About.model_validate_json((folder / ABOUT).read_bytes())
    for name, problem in about.dropped.items():
        events.message(f"The column {name} of {settings.source} is not read: it {problem}.")
    source: Source
    if (folder / TABLE).is_file():
        _check_images(settings, about)
        named = settings.model_copy(update=_columns(settings, about))
        source = open_table_source(str(folder / TABLE), named, column, task, ending=".parquet")
    else:
        refuse_features(settings, column, task)
        source = ImagesSource(str(folder / IMAGES), settings.source)
    source.name = valid_name(reference.repo.partition("/")[2])
    source.revision = commit
    return source


def pending(argument: str, settings: DataSettings) -> str | None:  # noqa: ARG001
    """Describe a data set that must first be downloaded; return None for one that is on this machine.

    Raises:
        UserError: It has another form, does not exist, or may not be read.
    """
    verify_extra(EXTRA)
    reference = Reference.of(settings.source)
    commit = _commit(_repository(reference, settings), reference)
    if _is_complete(_folder(reference, commit, settings)):
        return None
    return f"{settings.source}, which is first downloaded: commit {commit}"


def _repository(reference: Reference, settings: DataSettings) -> hub.Repository:
    return hub.Repository("dataset", reference.repo, "data.source", settings.source)


def _commit(repository: hub.Repository, reference: Reference) -> str:
    if reference.is_pinned:
        assert reference.revision is not None
        return reference.revision
    events.phase(f"looking up the revision of {repository.name}")
    revision = reference.revision or DEFAULT_REVISION
    commit = hub.commit_of(repository, revision)
    events.message(f"{reference} is the commit {commit}.")
    return commit


def _folder(reference: Reference, commit: str, settings: DataSettings) -> Path:
    """Return the folder of a converted data set."""
    from huggingface_hub import cached_assets_path, constants

    splits = settings.huggingface.splits if settings.huggingface else None
    about = json.dumps([FORMAT, commit, reference.config, splits])
    assets: Path = cached_assets_path(
        "slipway", namespace=reference.repo, subfolder="data", assets_dir=constants.HF_ASSETS_CACHE
    )
    return assets / hashlib.sha256(about.encode()).hexdigest()[:DIGITS]


def _is_complete(folder: Path) -> bool:
    """Whether a data set is converted, and the files that it refers to are still in the cache."""
    return (folder / ABOUT).is_file() and (folder / FILES).is_dir()


def _convert(
    repository: hub.Repository, reference: Reference, commit: str, folder: Path, settings: DataSettings
) -> None:
    """Download and convert a data set; its folder appears under its name only when it is complete."""
    from filelock import FileLock

    events.phase(f"downloading {settings.source}")
    with FileLock(folder.with_name(".lock")):
        if _is_complete(folder):
            return
        for left in folder.parent.glob(f"{UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        revision = commit if reference.is_pinned else reference.revision or DEFAULT_REVISION
        seen, card = hub.card(repository, revision)
        if seen != commit:  # the branch has moved in this second
            _, card = hub.card(repository, commit)
        splits = settings.huggingface.splits if settings.huggingface else None
        layout = layout_of(repository, reference, hub.files(repository, commit), card, splits)
        downloaded = hub.download(repository, commit, layout.paths)
        events.phase(f"converting {settings.source}")
        work = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=folder.parent))
        try:
            _write(work, layout, downloaded, settings)
            shutil.rmtree(folder, ignore_errors=True)
            work.rename(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


def _write(work: Path, layout: Layout, downloaded: Path, settings: DataSettings) -> None:
    """Write a converted data set, and last what it consists of."""
    (work / FILES).symlink_to(downloaded)
    about = About()
    if layout.tables:

        def mistake(message: str, fix: str | None = None) -> UserError:
            return source_error(settings.source, message, fix=fix)

        converter = Converter(work, layout.features, mistake)
        converter.write(layout.tables)
        about = About(
            images=[*converter.image_columns], labels=[*converter.label_columns], dropped=converter.dropped
        )  # fmt: skip
    else:
        link_images(work, layout.images)
    (work / ABOUT).write_text(about.model_dump_json())


def _check_images(settings: DataSettings, about: About) -> None:
    """Refuse to read texts of somebody else's data set as paths of images on this machine.

    Raises:
        UserError: A column that is to be an image has none.
    """
    described = {name: str(kind) for name, kind in additional_kinds(settings).items() if kind.name == "image"}
    columns = {f"data.features.{name}": (name, kind) for name, kind in described.items()}
    if settings.image is not None:
        columns["data.image"] = (settings.image, settings.image)
    for setting, (name, value) in columns.items():
        if name not in about.images:
            raise UserError(
                f"The column {name} of {settings.source} has no images.", setting=setting, value=value,
                allowed=", ".join(about.images) or "no column: the data set has no images",
                nearest=nearest(name, about.images), fix=f"remove {setting}",
            )  # fmt: skip


def _columns(settings: DataSettings, about: About) -> dict[str, str]:
    """Return the settings that name the image and the label, if there is only one column of the kind."""
    columns = {}
    if settings.image is None and settings.inputs is None and len(about.images) == 1:
        columns["image"] = about.images[0]
    if settings.label is None and len(about.labels) == 1:
        columns["label"] = about.labels[0]
    return columns
