"""The pipeline step prepare_data: turns the source into a prepared data set."""

from kfp import dsl
from kfp.dsl import HTML, Dataset, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def prepare_data(
    settings: str,
    replicas: int,
    output: str,
    dataset: Output[Dataset],
    statistics: Output[HTML],
    task: str = "classification",
    folds: int = 0,
    fold: int = 0,
) -> None:
    """Prepare the data set, or reuse it if it exists and the source is unchanged.

    Args:
        settings: DataSettings as JSON; if `store` is empty, the data set is stored at the artifact's URI.
        replicas: The number of processes that will read the data set; the training split has at least as many shards.
        output: The run's base output directory, which records the data set for a resumed run; "" if it has none.
        dataset: The folder or gs:// URI of the prepared data set.
        statistics: The statistics page.
        task: What is learned: classification, multilabel or regression.
        folds: The number of folds of a cross-validation; 0 for none.
        fold: The fold that is the test split, from 0.
    """
    import logging
    import shutil
    from pathlib import Path
    from typing import cast

    from slipway.components.inputs import read
    from slipway.components.prepare_data.elsewhere import owned_by
    from slipway.components.prepare_data.listing.split import Fold
    from slipway.components.prepare_data.prepare import prepare
    from slipway.components.prepare_data.publishing.remembered import recall, remember
    from slipway.components.prepare_data.publishing.statistics import FILE_NAME
    from slipway.components.prepare_data.settings import DataSettings
    from slipway.components.step import step
    from slipway.core import events
    from slipway.core.manifest import TaskName

    with step("prepare_data") as outcome:
        asked = read(DataSettings, "data", settings)
        asked = asked if asked.store else asked.model_copy(update={"store": dataset.uri})
        asked = owned_by(asked, output or dataset.uri)
        earlier = recall(output) if output else None
        tested = Fold(folds, fold) if folds else None
        prepared = prepare(asked, replicas, earlier, cast(TaskName, task), tested)
        if output:
            remember(output, prepared.uri)
        for note in prepared.manifest.notes:
            logging.warning(note)
            events.message(note)
        examples = {name: split.examples for name, split in prepared.manifest.splits.items()}
        dataset.uri = prepared.uri
        dataset.metadata.update(fingerprint=prepared.manifest.fingerprint, examples=examples)
        Path(statistics.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(prepared.folder / FILE_NAME, statistics.path)
        # Not in the data set's metadata, which are part of the inputs of the next tasks.
        outcome.reused = statistics.metadata["reused"] = prepared.reused
        outcome.outputs = {
            "dataset": prepared.uri,
            "examples": examples,
            "fingerprint": prepared.manifest.fingerprint,
            "skipped": prepared.manifest.skipped_text,
            "statistics": statistics.path,
        }
