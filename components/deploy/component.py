"""The step that deploys a registered model to an endpoint on Vertex AI."""

from kfp import dsl
from kfp.dsl import Input

from slipway.components.register_model.vertex.vertex_model import VertexModel


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def deploy_model(place: str, deployment: str, registered: Input[VertexModel]) -> str:
    """Deploy a registered champion to an endpoint; return the name of the deployed version, "" if it is not champion.

    Args:
        place: Project, region and endpoints as JSON (the fields of Connection).
        deployment: The Deployment as JSON.
        registered: The version.
    """
    import json

    from slipway.components.cloud.connection import Connection
    from slipway.components.deploy.rollout import deploy_registered
    from slipway.components.deploy.settings import Deployment
    from slipway.components.step import step

    with step("deploy") as outcome:
        result = deploy_registered(
            Connection(**json.loads(place)), Deployment.model_validate_json(deployment), registered.metadata
        )
        outcome.outputs = {} if result is None else result.as_dict()
    return "" if result is None else result.version
