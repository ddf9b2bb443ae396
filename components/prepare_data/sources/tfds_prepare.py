"""Lets TensorFlow Datasets prepare one of its sets: `python -m …sources.tfds_prepare NAME DATA_DIR`.

Its last line on stdout is the set's folder. Run in a process of its own, as it imports TensorFlow.
"""

from __future__ import annotations

import argparse
import sys

from trainer.errors import UserError, nearest, report


def prepare(reference: str, data_dir: str, *, try_gcs: bool) -> str:
    """Prepare the set where it is not prepared yet; its folder.

    Raises:
        UserError: TensorFlow Datasets has no set, config or version of that name.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(reference, data_dir=data_dir)
    except tfds.core.registered.DatasetNotFoundError:
        near = nearest(reference.partition("/")[0].partition(":")[0], tfds.list_builders(with_community_datasets=False))
        raise UserError(
            f"TensorFlow Datasets {tfds.__version__} has no set {reference}.",
            setting="data.source",
            value=f"tfds:{reference}",
            allowed="a set of https://www.tensorflow.org/datasets/catalog, or one that is there in data.tfds.data_dir",
            nearest=f"tfds:{near}" if near else None,
        ) from None
    except (ValueError, AssertionError) as error:
        raise UserError(
            f"TensorFlow Datasets refuses {reference}: {str(error).splitlines()[0]}",
            setting="data.source",
            value=f"tfds:{reference}",
        ) from None
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(try_download_gcs=try_gcs), file_format="tfrecord"
    )
    return str(builder.data_dir)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tfds_prepare")
    parser.add_argument("reference")
    parser.add_argument("data_dir")
    parser.add_argument("--try-gcs", action="store_true")
    arguments = parser.parse_args()
    try:
        folder = prepare(arguments.reference, arguments.data_dir, try_gcs=arguments.try_gcs)
    except UserError as error:
        report(error)
        sys.exit(1)
    print(folder)


if __name__ == "__main__":
    main()
