"""Prepare a data set with TensorFlow Datasets: `python -m …sources.tfds_prepare NAME DATA_DIR`.

The last line on stdout is the data set's folder. It runs in a separate process because it imports TensorFlow and
patches the downloads of TensorFlow Datasets, which otherwise wait silently for minutes if a server is unreachable.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import sys
from typing import Any
from urllib.parse import urlsplit

from slipway.components.prepare_data.examples import source_error
from slipway.core import events
from slipway.core.errors import ERROR_PREFIX, UserError, nearest

CONNECT_SECONDS = 5.0
CONNECT_RETRIES = 2
# Some servers respond slowly.
READ_SECONDS = 60.0


def prepare(reference: str, data_dir: str, *, try_gcs: bool) -> str:
    """Prepare the data set unless it exists; return its folder.

    Raises:
        UserError: TensorFlow Datasets has no such data set, config or version, or the download failed.
    """
    import requests
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(reference, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError:
        near = nearest(reference.partition("/")[0].partition(":")[0], tfds.list_builders(with_community_datasets=False))
        raise source_error(
            f"tfds:{reference}",
            f"TensorFlow Datasets {tfds.__version__} has no data set {reference}.",
            allowed="a data set in https://www.tensorflow.org/datasets/catalog or in data.tfds.data_dir",
            nearest=f"tfds:{near}" if near else None,
        ) from None
    except (ValueError, AssertionError) as error:
        raise source_error(
            f"tfds:{reference}", f"TensorFlow Datasets rejected {reference}: {str(error).splitlines()[0]}"
        ) from None
    config = tfds.download.DownloadConfig(try_download_gcs=try_gcs)
    try:
        builder.download_and_prepare(download_config=config, file_format="tfrecord")
    except requests.exceptions.ConnectionError as error:
        host = urlsplit(error.request.url).hostname if error.request else "its server"
        name = reference.partition("/")[0].partition(":")[0]
        raise source_error(
            f"tfds:{reference}",
            f"Could not download {reference} from {host}: {_first_cause(error)}.",
            fix=f"check the network, or, on a connected machine: slipway data get {reference}\n"
            f"    then copy the folder {name} here: --set data.source=images:{name}",
        ) from None
    return str(builder.data_dir)


def _first_cause(error: BaseException) -> str:
    """Return the operating system's message from the first error of a chain."""
    while error.__context__ is not None:
        error = error.__context__
    return getattr(error, "strerror", None) or str(error)


def connect_promptly() -> None:
    """Make downloads in this process log their URLs and fail fast if a server is unreachable."""
    import requests

    class Adapter(requests.adapters.HTTPAdapter):
        """Adds a timeout to every request and reduces the retries of connections."""

        def __init__(self, max_retries: Any = 0, **more: Any) -> None:
            fewer = max_retries.new(connect=CONNECT_RETRIES) if hasattr(max_retries, "new") else max_retries
            super().__init__(max_retries=fewer, **more)

        def send(self, request: Any, *arguments: Any, timeout: Any = None, **more: Any) -> Any:
            _tell(f"downloading {request.url}")
            return super().send(request, *arguments, timeout=timeout or (CONNECT_SECONDS, READ_SECONDS), **more)

    requests.adapters.HTTPAdapter = Adapter
    retries = itertools.count()

    def is_no_retry(record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith("Retrying"):
            return True
        if next(retries) == 0:
            _tell("the server does not respond; retrying")
        return False

    logging.getLogger("urllib3.connectionpool").addFilter(is_no_retry)


def _tell(text: str) -> None:
    events.message(text)
    print(f"\n{text}", file=sys.stderr, flush=True)  # a progress bar may be on the current line


def main() -> None:
    parser = argparse.ArgumentParser(prog="tfds_prepare")
    parser.add_argument("reference")
    parser.add_argument("data_dir")
    parser.add_argument("--try-gcs", action="store_true")
    arguments = parser.parse_args()
    connect_promptly()
    try:
        folder = prepare(arguments.reference, arguments.data_dir, try_gcs=arguments.try_gcs)
    except UserError as error:
        print(f"\n{ERROR_PREFIX}{json.dumps(error.as_dict())}", file=sys.stderr)
        sys.exit(1)
    print(folder)


if __name__ == "__main__":
    main()
