"""The end of the step train on Vertex AI: collect the model of a finished job."""

from kfp import dsl
from kfp.dsl import Dataset, Input, Metrics, Model, Output


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def collect_model(
    job: str,
    output: str,
    model: Output[Model],
    metrics: Output[Metrics],
    place: str = "",
    dataset: Input[Dataset] = None,
) -> str:
    """Publish the model in a job's base output directory (a gs:// URI); return the model's URI.

    Args:
        job: The resource of the finished job, from its launcher; "" if it ended in an earlier attempt.
        output: The job's base output directory.
        model: The trained model.
        metrics: Its metrics on the validation split.
        place: Project, region and endpoints as JSON (the fields of Connection), if the job is a search: the model is
            its best trial's. "" for a custom job.
        dataset: The prepared data set on which it was trained; None if there is none.
    """
    import json
    from pathlib import Path

    from slipway.components.step import step
    from slipway.components.train.result import publish

    with step("collect_model") as outcome:
        data, found = Path(dataset.path) if dataset else None, {}
        if place:
            from slipway.components.cloud.connection import Connection
            from slipway.components.train.vertex.search import find_best

            search = find_best(Connection(**json.loads(place)), job, output)
            output = search.output
            found = {"trial": search.best.id, "parameters": json.dumps(search.best.parameters)}
        outcome.outputs = {"job": job, **publish(output, model, metrics, data), **found}
        model.metadata.update(found)
    return model.uri
