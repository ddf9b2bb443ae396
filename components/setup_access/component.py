"""The step setup_access: the rights of a run, looked at before anything that takes hours is started."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def setup_access(settings: str, grant: bool) -> None:
    """Verify that APIs, identities, bucket, repository and roles are as a run needs them.

    Args:
        settings: AccessSettings as JSON.
        grant: Whether what is missing is made; the run-as account must then be allowed to.
    """
    from slipway.components.setup_access.ensure import ensure
    from slipway.components.setup_access.settings import AccessSettings
    from slipway.components.step import step

    with step("setup_access") as outcome:
        outcome.outputs = ensure(AccessSettings.model_validate_json(settings), grant=grant)
