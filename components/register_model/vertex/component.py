"""The steps that register a model and find the champion, in Vertex AI's Model Registry."""

from typing import NamedTuple

from kfp import dsl
from kfp.dsl import Input, Metrics, Model, Output

from slipway.components.register_model.vertex.vertex_model import VertexModel


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def find_champion(place: str, model_name: str) -> NamedTuple("Champion", [("uri", str), ("version", str)]):  # type: ignore[valid-type]
    """Return the champion's folder in Cloud Storage and its version's resource name; both "" if there is none yet.

    Args:
        place: Project, region and endpoints as JSON (the fields of Connection).
        model_name: The model's name in the registry.
    """
    import json

    from slipway.components.cloud.connection import Connection
    from slipway.components.register_model.vertex.model_registry import ModelRegistry
    from slipway.components.step import step

    with step("find_champion") as outcome:
        champion = ModelRegistry(Connection(**json.loads(place))).champion(model_name)
        outcome.outputs = {"champion": champion.name if champion else ""}
    return (champion.uri, champion.name) if champion else ("", "")


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def register_version(
    place: str,
    candidate: str,
    run_id: str,
    job: str,
    verdict: str,
    champion: str,
    model: Input[Model],
    metrics: Input[Metrics],
    registered: Output[VertexModel],
) -> None:
    """Register a model that the gate promoted in Vertex AI's Model Registry, and make it the champion.

    Args:
        place: See find_champion.
        candidate: The values shared by all runs of the configuration, as JSON: model, container, labels and
            encryption_key.
        run_id: The run that trained it; a repeated step registers it once.
        job: The pipeline job's resource name.
        verdict: The gate's decision; must be "promote".
        champion: The resource name of the version that the model was compared with; "" if there was none; "none" if no
            comparison was requested, in which case the model always becomes champion.
        model: The trained model.
        metrics: Its metrics on the test split.
        registered: The version.
    """
    import json

    from slipway.components.cloud.connection import Connection
    from slipway.components.evaluate.gate import UNCHECKED
    from slipway.components.register_model.vertex.registration import register_in_model_registry
    from slipway.components.step import step

    with step("register_model") as outcome:
        connection = Connection(**json.loads(place))
        version, note = register_in_model_registry(
            connection,
            json.loads(candidate),
            run_id=run_id,
            job=job,
            verdict=verdict,
            champion=champion,
            uri=model.uri,
            metrics=metrics.metadata,
            parameters=model.metadata.get("parameters", ""),
        )
        registered.uri = f"https://{connection.region}-aiplatform.googleapis.com/v1/{version.name}"
        checked = UNCHECKED not in metrics.metadata
        result = {"version": version.number, "champion": version.champion, "checked": checked}
        registered.metadata.update(resourceName=version.name, **result)
        if note:
            registered.metadata["note"] = note
        if "parameters" in model.metadata:  # the best trial's, of a search
            registered.metadata["parameters"] = model.metadata["parameters"]
        outcome.outputs = {"model": version.name, **result}
