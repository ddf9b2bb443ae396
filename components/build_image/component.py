"""The step build_image on Vertex AI: resolve the trainer's image to a digest, building it if it is missing."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def build_image(request: str, source: str, settings: str) -> str:
    """Return the image's URI by digest.

    Args:
        request: ImageRequest as JSON.
        source: The context in the bucket: Source as JSON.
        settings: CloudBuildSettings as JSON.
    """
    import sys

    from slipway.components.build_image.build import ImageRequest, ensure, registry_of
    from slipway.components.build_image.cloud_build import CloudBuildSettings, Source
    from slipway.components.step import step

    with step("build_image") as outcome:
        wanted = ImageRequest.model_validate_json(request)
        service = CloudBuildSettings.model_validate_json(settings).service()
        context = Source.model_validate_json(source)
        built = ensure(
            wanted,
            registry_of(wanted.repository, service.connection),
            lambda: service.build(context, wanted.uri, wanted.arguments, wanted.labels, sys.stdout),
        )
        outcome.reused = built.reused
        outcome.outputs = {"image": built.uri}
    return built.uri
