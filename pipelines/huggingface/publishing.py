"""Publication of a registered version: its files and model card as one commit of a model repository.

The repository has the version's folder as `model/`, the card, and `slipway.json`, by which the next publication knows
which files are its own. The hub adds a commit as a whole, only to the one that it follows, so that a publication that
is killed leaves none, and two at the same time cannot mix.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.components.prepare_data.huggingface import hub
from slipway.components.prepare_data.huggingface.hub import Repository
from slipway.components.register_model.registry import Version
from slipway.core import formats, integrity
from slipway.core.values import JsonObject
from slipway.pipelines.huggingface import card
from slipway.pipelines.huggingface.facts import Facts

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

RECORD = "slipway.json"
PUBLISHER = "slipway publish"
BRANCH = "main"
# What the hub puts into a new repository.
OF_HUB = (".gitattributes",)
# What `create_commit` raises for a card that the hub refuses.
INVALID_CARD = "Invalid metadata in README.md"
CONFLICT = 412


@dataclass(frozen=True)
class Publication:
    """The files of a publication: contents, or paths of them, by their paths in the repository."""

    version: Version
    files: Mapping[str, bytes | Path]

    @classmethod
    def of(cls, version: Version, repo: str, license_: str | None) -> Publication:
        """Return the publication of a version in a repository, ORG/NAME.

        Raises:
            UserError: The version is damaged.
        """
        integrity.verify(version.folder)
        paths = sorted(path for path in version.folder.rglob("*") if path.is_file())
        files: dict[str, bytes | Path] = {
            f"{card.MODEL}/{path.relative_to(version.folder).as_posix()}": path for path in paths
        }
        files[hub.README] = card.render(Facts.of(version), repo, license_).encode()
        return cls(version, {**files, RECORD: _record(version, files)})

    @property
    def card(self) -> str:
        """The model card."""
        content = self.files[hub.README]
        assert isinstance(content, bytes)
        return content.decode()

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of each file."""
        return {
            name: len(content) if isinstance(content, bytes) else content.stat().st_size
            for name, content in self.files.items()
        }


@dataclass(frozen=True)
class Published:
    """The result: the commit, and whether it is new; `created` is whether the repository is."""

    url: str
    commit: str
    new: bool
    created: bool
    private: bool
    removed: list[str] = field(default_factory=list)


def publish(publication: Publication, repository: Repository, *, public: bool, replace_card: bool) -> Published:
    """Add what differs from the repository's files as one commit; create the repository if it does not exist.

    Args:
        publication: The files.
        repository: The model repository.
        public: Whether a new repository is public.
        replace_card: Whether a model card that was edited on the hub is replaced.

    Raises:
        UserError: The hub refuses it; the repository has files that Slipway did not publish, or an edited card; it
            changed in the meantime.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    api = hub.client(quiet=False)
    info, created = _opened(api, repository, public=public)
    with hub.errors_named(repository, BRANCH):
        tree = _tree(api, repository, info.sha)
        earlier = _earlier(api, repository, info.sha, tree)
    _check_card(repository, tree, earlier, publication, replace=replace_card)
    changed = {name: data for name, data in publication.files.items() if not _is_same(tree.get(name), data)}
    removed = sorted(name for name in earlier.get("files", {}) if name in tree and name not in publication.files)
    if not changed and not removed:
        return Published(repository.url, str(info.sha), False, created, bool(info.private))
    operations: list[Any] = [
        CommitOperationAdd(path_in_repo=name, path_or_fileobj=data if isinstance(data, bytes) else str(data))
        for name, data in changed.items()
    ]
    operations += [CommitOperationDelete(path_in_repo=name, is_folder=False) for name in removed]
    version = publication.version
    with hub.errors_named(repository, BRANCH), _refusals_named(repository):
        commit = api.create_commit(
            repository.name, operations, commit_message=f"Publish {version.model}/{version.number}",
            revision=BRANCH, parent_commit=info.sha,
        )  # fmt: skip
    return Published(repository.url, commit.oid, True, created, bool(info.private), removed)


def _record(version: Version, files: Mapping[str, bytes | Path]) -> bytes:
    """Return the content of `slipway.json`: what was published, the card's SHA-1 of git, and each file's SHA-256."""
    card_content = files[hub.README]
    assert isinstance(card_content, bytes)
    kept = ("run_id", "data_fingerprint", "weights_checksum", integrity.FILES_CHECKSUM, "git_commit")
    about: JsonObject = {
        formats.KEY: formats.FORMAT,
        "written_by": PUBLISHER,
        "model": version.model,
        "version": version.number,
        **{name: version.metadata.get(name) for name in kept},
        "card": _git_oid(card_content),
        "files": {name: _sha256(content) for name, content in sorted(files.items())},
    }
    return (json.dumps(about, indent=2) + "\n").encode()


def _opened(api: HfApi, repository: Repository, *, public: bool) -> tuple[Any, bool]:
    """Return what the hub knows of the repository, and whether it was created now."""
    from huggingface_hub.errors import RepositoryNotFoundError

    with hub.errors_named(repository, BRANCH):
        try:
            return api.repo_info(repository.name, repo_type=repository.kind, timeout=30), False
        except RepositoryNotFoundError:
            api.create_repo(repository.name, repo_type=repository.kind, private=not public)
        return api.repo_info(repository.name, repo_type=repository.kind, timeout=30), True


def _tree(api: HfApi, repository: Repository, commit: str) -> dict[str, RepoFile]:
    from huggingface_hub.hf_api import RepoFile

    tree = api.list_repo_tree(repository.name, recursive=True, revision=commit, repo_type=repository.kind)
    return {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}


def _earlier(api: HfApi, repository: Repository, commit: str, tree: Mapping[str, RepoFile]) -> JsonObject:
    """Return the record of the earlier publication; {} of an empty repository.

    Raises:
        UserError: It has files, and no such record.
    """
    if not tree.keys() - {*OF_HUB}:
        return {}
    earlier: Any = None
    if RECORD in tree:
        path = api.hf_hub_download(repository.name, RECORD, repo_type=repository.kind, revision=commit)
        try:
            earlier = json.loads(Path(path).read_bytes())
        except ValueError:
            earlier = None
    if not isinstance(earlier, dict) or earlier.get("written_by") != PUBLISHER:
        names = sorted(tree.keys() - {*OF_HUB})
        raise repository.error(
            f"The repository {repository.name} has files that Slipway did not publish, such as {names[0]}.",
            f"slipway publish {repository.value}-slipway, or another name, for a new repository",
            allowed=f"a repository that does not exist, is empty, or was published by Slipway (it has {RECORD})",
        )
    formats.check(earlier, Path(RECORD))
    return earlier


def _check_card(
    repository: Repository,
    tree: Mapping[str, RepoFile],
    earlier: JsonObject,
    publication: Publication,
    *,
    replace: bool,
) -> None:
    """Raise UserError if the model card was edited on the hub, unless it is to be replaced."""
    entry = tree.get(hub.README)
    if replace or entry is None or _is_same(entry, publication.files[hub.README]):
        return
    if entry.blob_id != earlier.get("card"):
        raise repository.error(
            f"The model card of {repository.name} was edited since it was published.",
            f"slipway publish {repository.value} --replace-card, after you have copied what you wrote",
        )


@contextlib.contextmanager
def _refusals_named(repository: Repository) -> Iterator[None]:
    """Convert the hub's refusal of a commit to a UserError."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        if error.response.status_code != CONFLICT:
            raise
        raise repository.error(
            f"The repository {repository.name} changed while it was published to.", "the same command again"
        ) from None
    except ValueError as error:
        if not str(error).startswith(INVALID_CARD):
            raise
        reason = " ".join(str(error).removeprefix(INVALID_CARD).strip(".\n").split()).removeprefix("- ")
        raise repository.error(
            f"The hub refuses the metadata of the model card: {reason}.",
            f"slipway publish {repository.value} --license apache-2.0, or another one of "
            "https://huggingface.co/docs/hub/repositories-licenses",
        ) from None


def _is_same(entry: RepoFile | None, content: bytes | Path) -> bool:
    """Whether a file of the repository has this content."""
    if entry is None:
        return False
    if entry.lfs is not None:
        return bool(entry.lfs.sha256 == _sha256(content))
    data = content if isinstance(content, bytes) else content.read_bytes()
    return bool(entry.blob_id == _git_oid(data))


def _git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _sha256(content: bytes | Path) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else integrity.file_digest(content)
