"""The exit task notify: report the outcome of a run."""

from kfp import dsl


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def notify(settings: str, run: str, page: str, status: dsl.PipelineTaskFinalStatus) -> None:
    """Send a notice about a run whose steps have ended. A notice that cannot be sent does not fail the task.

    Args:
        settings: ExitTask as JSON.
        run: The run's id.
        page: The URL of its page.
        status: How its steps ended, which the platform passes.
    """
    from slipway.components.notify.channels import notify as work

    try:
        problems = work(
            settings,
            run,
            page,
            state=status.state,
            job=status.pipeline_job_resource_name,
            message=status.error_message,
        )
    except Exception as error:
        import traceback

        traceback.print_tb(error.__traceback__)  # not its text, which may contain the webhook's address
        problems = [f"An internal error: {type(error).__name__}."]
    for problem in problems:
        print(f"warning: not everyone was notified: {problem}", flush=True)
