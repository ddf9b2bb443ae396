"""The step setup_access: verify a run's permissions before anything expensive starts."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def setup_access(settings: str, grant: bool) -> None:
    """Verify that a run's APIs, identities, bucket, repository and roles exist.

    Args:
        settings: AccessSettings as JSON.
        grant: Whether to create what is missing; the run-as account needs permission to do so.
    """
    from slipway.components.setup_access.access import ensure
    from slipway.components.setup_access.settings import AccessSettings
    from slipway.components.step import step

    with step("setup_access") as outcome:
        outcome.outputs = ensure(AccessSettings.model_validate_json(settings), grant=grant)
