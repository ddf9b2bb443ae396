"""A model in Cloud Storage, which the server downloads before it loads it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipway.core.errors import UserError
from slipway.serving.settings import STORAGE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEME = "gs://"
THREADS = 16


def download(uri: str, folder: Path) -> str:
    """Download a folder with several threads; each file's checksum is verified.

    Args:
        uri: The folder, gs://BUCKET/PREFIX.
        folder: Where to write its files; created if it is missing.

    Returns:
        A description of what was downloaded, for the log.

    Raises:
        UserError: There are no credentials, no right to read the folder, no such bucket, or no files in it.
        Exception: Anything else that Google's client raises, after its retries.
    """
    from google.api_core.exceptions import Forbidden, NotFound, Unauthorized
    from google.auth.exceptions import DefaultCredentialsError
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    bucket = uri.removeprefix(SCHEME).partition("/")[0]
    started = time.monotonic()
    try:
        files = list(_files(storage.Client(), uri, folder))
        for _, path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
        transfer_manager.download_many(
            [(blob, str(path)) for blob, path in files],
            worker_type=transfer_manager.THREAD,
            max_workers=THREADS,
            raise_exception=True,
        )
    except DefaultCredentialsError:
        raise _refused(uri, "there are no credentials", "gcloud auth application-default login") from None
    except (Forbidden, Unauthorized) as error:
        why = str(error.message).strip().rstrip(".")
        fix = f"grant the server's account roles/storage.objectViewer on gs://{bucket}"
        raise _refused(uri, why, fix) from None
    except NotFound as error:
        missing = f"there is no bucket {bucket}" if "/o/" not in str(error.message) else "it is being replaced"
        raise _refused(uri, missing, f"correct {STORAGE_VARIABLE}, or start again") from None
    if not files:
        raise _refused(uri, "no files are there", f"correct {STORAGE_VARIABLE}: the folder that has the model's files")
    size = sum(blob.size for blob, _ in files)
    return f"{len(files)} files, {size:,} bytes in {time.monotonic() - started:.1f} s"


def _files(client: Any, uri: str, folder: Path) -> Iterator[tuple[Any, Path]]:
    """Yield the objects below a prefix, each in the generation that is listed, and their paths in `folder`."""
    bucket, _, prefix = uri.removeprefix(SCHEME).partition("/")
    prefix = prefix.strip("/") and prefix.strip("/") + "/"
    for blob in client.list_blobs(bucket, prefix=prefix):
        name = blob.name.removeprefix(prefix)
        path = folder / name
        if name.endswith("/") or not name:  # what the console creates for an empty folder
            continue
        if ".." in path.parts:
            raise _refused(uri, f"the name of the object {blob.name} leads out of it", "rename the object")
        yield blob, path


def _refused(uri: str, why: str, fix: str) -> UserError:
    return UserError(f"The model in {uri} cannot be downloaded: {why}.", setting=STORAGE_VARIABLE, value=uri, fix=fix)
