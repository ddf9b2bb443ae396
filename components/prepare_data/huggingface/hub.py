"""The Hugging Face Hub, by its client: revisions, files and their digests, and what its refusals mean.

The client reads the endpoint, the cache and the token from its variables (HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE,
HF_TOKEN); no token is passed on or stored here.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.core.errors import UserError
from slipway.core.values import JsonObject

if TYPE_CHECKING:
    from huggingface_hub import HfApi

README = "README.md"
LOGIN = "hf auth login, or export HF_TOKEN=TOKEN"
# A part of a file that is divided: NAME-00000-of-00003.parquet.
PART = re.compile(r"(?P<name>.*)-\d{5}-of-(?P<count>\d{5})(?P<ending>\.\w+)")
# A part of the address where the client asks for access to Xet storage.
XET = "/xet-"
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Repository:
    """A repository on the hub, and the setting that names it.

    Attributes:
        kind: "dataset" or "model".
        name: ORG/NAME.
        setting: What names it in the configuration or on the command line.
        value: The setting's value.
    """

    kind: str
    name: str
    setting: str
    value: str

    @property
    def noun(self) -> str:
        """What it is called in sentences."""
        return f"{'data set' if self.kind == 'dataset' else 'model'} {self.name}"

    @property
    def url(self) -> str:
        """Its page."""
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{'datasets/' if self.kind == 'dataset' else ''}{self.name}"

    def error(self, message: str, fix: str | None = None, *, allowed: str | None = None) -> UserError:
        """Return an error about it."""
        return UserError(message, setting=self.setting, value=self.value, allowed=allowed, fix=fix)


def client(*, quiet: bool = True) -> HfApi:
    """Return the hub's client, without its own warnings, and without its progress bars if `quiet` or not a terminal."""
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars, logging

    if quiet or not sys.stderr.isatty():
        disable_progress_bars()
    logging.set_verbosity_error()
    return HfApi(library_name="slipway")


def commit_of(repository: Repository, revision: str) -> str:
    """Return the commit of a branch, tag or commit: the hub's answer, or offline, that of the cache.

    Raises:
        UserError: It does not exist, may not be read, or is not in the cache.
    """
    if is_offline():
        return card(repository, revision)[0]
    with errors_named(repository, revision):
        commit: str | None = client().repo_info(
            repository.name, repo_type=repository.kind, revision=revision, timeout=30
        ).sha  # fmt: skip
    assert commit is not None
    return commit


def readable_commit(repository: Repository, revision: str) -> str:
    """Return the commit of a revision of a data set whose files the caller may read.

    Raises:
        UserError: As `commit_of`; or it is gated.
    """
    commit = commit_of(repository, revision)
    if not is_offline():
        with errors_named(repository, revision):
            client().auth_check(repository.name, repo_type=repository.kind)
    return commit


def card(repository: Repository, revision: str) -> tuple[str, JsonObject]:
    """Return the commit of a revision, which the cache then knows, and the metadata in its README.md.

    Raises:
        UserError: It does not exist, may not be read, or is not in the cache; or the metadata are not YAML.
    """
    import yaml
    from huggingface_hub import snapshot_download
    from huggingface_hub.repocard import metadata_load

    client()
    with errors_named(repository, revision):
        folder = Path(
            snapshot_download(
                repository.name, repo_type=repository.kind, revision=revision, allow_patterns=[README]
            )
        )  # fmt: skip
    if not (folder / README).is_file():
        return folder.name, {}
    try:
        return folder.name, metadata_load(folder / README) or {}
    except (ValueError, yaml.YAMLError) as error:
        raise repository.error(
            f"The metadata in the {README} of the {repository.noun} cannot be read: {error}."
        ) from None


def files(repository: Repository, commit: str) -> list[str]:
    """Return the paths of the repository's files; offline, of those in the cache.

    Raises:
        UserError: They may not be read, or a part of a divided file is not in the cache.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.hf_api import RepoFile

    if not is_offline():
        with errors_named(repository, commit):
            tree = client().list_repo_tree(repository.name, recursive=True, revision=commit, repo_type=repository.kind)
            return sorted(entry.path for entry in tree if isinstance(entry, RepoFile))
    with errors_named(repository, commit):
        folder = Path(snapshot_download(repository.name, repo_type=repository.kind, revision=commit))
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    for path in paths:
        if (match := PART.fullmatch(path)) and (missing := _missing_part(match, paths)):
            raise _not_cached(repository, commit, missing)
    return paths


def _missing_part(match: re.Match[str], paths: list[str]) -> str | None:
    count = int(match["count"])
    parts = (f"{match['name']}-{number:05d}-of-{count:05d}{match['ending']}" for number in range(count))
    return next((part for part in parts if part not in paths), None)


def download(repository: Repository, commit: str, paths: Iterable[str]) -> Path:
    """Download files of a commit to the cache; return the folder with them.

    Raises:
        UserError: They may not be read, are not in the cache (offline), or do not have the hub's digests.
    """
    from huggingface_hub import snapshot_download

    paths = list(paths)
    with errors_named(repository, commit):
        folder = Path(
            snapshot_download(
                repository.name,
                repo_type=repository.kind,
                revision=commit,
                allow_patterns=[glob.escape(path) for path in paths],
                library_name="slipway",
            )
        )
    for path in paths:
        if not (folder / path).is_file():
            raise _not_cached(repository, commit, path)
        verify(repository, commit, folder, path)
    return folder


def verify(repository: Repository, commit: str, folder: Path, path: str) -> None:
    """Compare a cached file with its digest on the hub, which is the name of its blob in the cache.

    That is the SHA-256 of a large file (LFS) and git's SHA-1 of another one; on a file system without links, the cache
    does not have it.

    Raises:
        UserError: It is another one.
    """
    blob = (folder / path).resolve()
    if not (folder / path).is_symlink() or re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", blob.name) is None:
        return
    if blob.name != _digest(blob, len(blob.name)):
        raise repository.error(
            f"The file {path} of the {repository.noun} does not have the digest that the hub states.",
            f"hf download {repository.name} {path} --repo-type {repository.kind} --revision {commit} --force-download",
        )


def _digest(path: Path, digits: int) -> str:
    digest = (
        hashlib.sha256() if digits == 64 else hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    )
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def is_offline() -> bool:
    """Return whether the client may not use the network (HF_HUB_OFFLINE)."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@contextlib.contextmanager
def errors_named(repository: Repository, revision: str) -> Iterator[None]:
    """Convert what the client raises, if the user can fix it, to a UserError with the fix."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if (refusal := refused(error, repository, revision)) is None:
            raise
        raise refusal from None


def refused(error: BaseException, repository: Repository, revision: str) -> UserError | None:
    """Return the UserError for what the client raised; None for what is not the hub's or the network's."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    noun = repository.noun
    if isinstance(error, GatedRepoError):
        return repository.error(
            f"The {noun} is gated: its owner decides who may read it.",
            f"accept its terms on {repository.url}, then {LOGIN} of that account",
        )
    if isinstance(error, RepositoryNotFoundError):
        return repository.error(
            f"There is no {noun} on {constants.ENDPOINT}, or it is private.", f"correct the name; or {LOGIN}"
        )
    if isinstance(error, RevisionNotFoundError):
        return repository.error(
            f"The {noun} has no revision {revision}.", f"see {repository.url}/commits/main, and name another one"
        )
    if isinstance(error, HfHubHTTPError):
        return _http_error(error.response.status_code, repository)
    if isinstance(error, HFValidationError):
        return repository.error(f"{repository.name} is not a valid name on the hub.", allowed="ORG/NAME")
    if isinstance(error, LocalEntryNotFoundError | OfflineModeIsEnabled) and is_offline():
        return _not_cached(repository, revision)
    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, HfHubHTTPError):
        return refused(error.__cause__, repository, revision)
    if isinstance(error, LocalEntryNotFoundError) or type(error).__module__.partition(".")[0] in ("httpx", "httpx2"):
        return repository.error(
            f"{constants.ENDPOINT} cannot be reached: {type(error.__cause__ or error).__name__}.",
            "run again later; or HF_ENDPOINT=https://MIRROR, or HF_HUB_OFFLINE=1 for what is in the cache",
        )
    if XET in str(error):  # the client of that storage raises exceptions of Python
        return repository.error(
            f"{constants.ENDPOINT} has no Xet storage, as which the client transfers large files.",
            "export HF_HUB_DISABLE_XET=1, and the same command again",
        )
    return None if error.__cause__ is None else refused(error.__cause__, repository, revision)


def _http_error(status: int, repository: Repository) -> UserError:
    from huggingface_hub import constants, get_token

    noun = repository.noun
    if status == 401 and get_token() is None:
        return repository.error(f"{constants.ENDPOINT} requires a token for the {noun}.", LOGIN)
    if status == 401:
        return repository.error(f"{constants.ENDPOINT} does not accept the token: it is wrong or has expired.", LOGIN)
    if status == 403:
        return repository.error(
            f"The token has no permission for the {noun}.",
            f"give it the permission on {constants.ENDPOINT}/settings/tokens; or {LOGIN}",
        )
    if status == 429:
        return repository.error(f"{constants.ENDPOINT} received too many requests.", f"run again later; or {LOGIN}")
    return repository.error(f"{constants.ENDPOINT} failed with HTTP status {status}.", "run again later")


def _not_cached(repository: Repository, revision: str, path: str = "") -> UserError:
    from huggingface_hub import constants

    missing = f"the file {path} of the {repository.noun}" if path else f"the {repository.noun} at {revision}"
    return repository.error(
        f"{missing[0].upper()}{missing[1:]} is not in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE is set.",
        f"HF_HUB_OFFLINE=0 hf download {repository.name} --repo-type {repository.kind} --revision {revision}",
    )
