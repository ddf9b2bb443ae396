"""`slipway doctor`: the list of checks, which `slipway run` and `compile` share, and how they are run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from slipway.components.cloud.refusals import refusal
from slipway.core.errors import UserError
from slipway.pipelines.checks import Check, Context, Finding, examine
from slipway.pipelines.doctor import configuration, machine, model_builder, user_code
from slipway.pipelines.platforms.kubeflow import doctor as kubeflow
from slipway.pipelines.platforms.tpu import doctor as tpu
from slipway.pipelines.platforms.vertex.doctor import endpoints, quotas
from slipway.pipelines.platforms.vertex.doctor import resources as vertex

CHECKS = (
    Check("python", machine.python_version),
    Check("folder", machine.folder),
    Check("folder's name", machine.folder_name, of_run=True),
    Check("disk", machine.disk),
    Check("cores", machine.cores),
    Check("accelerators", machine.accelerators, of_run=True),
    Check("packages", machine.packages, of_run=True),
    Check("hardware", configuration.hardware_choice, of_run=True),
    Check("batch", configuration.batch, of_run=True),
    Check("engine", configuration.training_engine, of_run=True),
    Check("data source", configuration.data_source, of_run=True),
    Check("model builder", model_builder.model_builder, of_run=True),
    Check("evaluation", model_builder.evaluation, of_run=True),
    Check("serving", model_builder.serving, of_run=True),
    Check("modules", user_code.imports, of_run=True),
    Check("results", user_code.outputs, of_run=True),
    Check("model memory", configuration.model_memory),
    Check("stages", configuration.stages),
    Check("image context", configuration.image_context, of_run=True),
    Check("serving image", configuration.serving_image, of_run=True),
    Check("notification", configuration.notification, of_run=True),
    Check("kubeflow server", kubeflow.server),
    Check("kubeflow training", kubeflow.training),
    Check("kubeflow volume", kubeflow.volume),
    Check("kubeflow GPU driver", kubeflow.gpu_driver),
    Check("champion", configuration.champion, of_run=True),
    Check("endpoint", endpoints.deployment, of_run=True),
    Check("endpoint machine", endpoints.machine, of_run=True),
    Check("credentials", vertex.credentials, of_run=True, cloud="vertex"),
    Check("project", vertex.project_exists, of_run=True, cloud="vertex"),
    Check("APIs", vertex.apis, of_run=True, cloud="vertex"),
    Check("service agents", vertex.service_agents, of_run=True, cloud="vertex"),
    Check("own rights", vertex.own_rights, of_run=True, cloud="vertex"),
    Check("run-as account", vertex.run_as_account, of_run=True, cloud="vertex"),
    Check("bucket", vertex.bucket_place, of_run=True, cloud="vertex"),
    Check("bucket rights", vertex.bucket_rights, of_run=True, cloud="vertex"),
    Check("repository", vertex.repository, of_run=True, cloud="vertex"),
    Check("builder", vertex.builder, cloud="vertex"),
    Check("encryption key", vertex.encryption_key, of_run=True, cloud="vertex"),
    Check("image", vertex.image, of_run=True, cloud="vertex"),
    Check("GPU driver", vertex.gpu_driver, of_run=True, cloud="vertex"),
    Check("roles", vertex.roles, cloud="vertex"),
    Check("data disk", vertex.data_disk, of_run=True, cloud="vertex"),
    Check("quota", quotas.run_quota, of_run=True, cloud="vertex"),
    Check("endpoint quota", endpoints.quota, of_run=True, cloud="vertex"),
    Check("schedule quota", quotas.schedule_quota, cloud="vertex"),
    Check("schedules", vertex.schedules, cloud="vertex"),
    Check("first job", vertex.first_job, cloud="vertex"),
    Check("credentials", tpu.credentials, of_run=True, cloud="tpu"),
    Check("APIs", tpu.apis, of_run=True, cloud="tpu"),
    Check("own rights", tpu.rights, of_run=True, cloud="tpu"),
    Check("machines' account", tpu.account, of_run=True, cloud="tpu"),
    Check("machines' roles", tpu.account_roles, of_run=True, cloud="tpu"),
    Check("bucket", tpu.bucket, of_run=True, cloud="tpu"),
    Check("image", tpu.image, of_run=True, cloud="tpu"),
    Check("builds", tpu.builds, of_run=True, cloud="tpu"),
    Check("runtime version", tpu.runtime_version, of_run=True, cloud="tpu"),
    Check("quota", tpu.quota, of_run=True, cloud="tpu"),
)
SECONDS = 30.0


def examine_all(context: Context) -> list[Finding]:
    """Run all checks and return their findings in order; those of a cloud project run in parallel."""
    findings = [examine(check, context) for check in CHECKS if not check.cloud]
    cloud = [check for check in CHECKS if check.cloud == context.target]
    return findings + examine_side_by_side(cloud, context)


def refuse_on_failure(context: Context, *, submitting: bool = False) -> list[Finding]:
    """Run the checks that apply to a run; return the warnings.

    Args:
        context: The run to check.
        submitting: Whether the run is about to be submitted; if so, its project is checked, too.

    Raises:
        UserError: The error of the first check that failed.
    """
    checks = [check for check in CHECKS if check.of_run]
    findings = [_refuse(examine(check, context)) for check in checks if not check.cloud]
    if submitting:
        cloud = examine_side_by_side([check for check in checks if check.cloud == context.target], context)
        findings += [_refuse(finding) for finding in cloud]
    return [finding for finding in findings if finding.status == "warning"]


def _refuse(finding: Finding) -> Finding:
    if finding.error is not None:
        raise finding.error
    return finding


def examine_side_by_side(checks: Sequence[Check], context: Context, seconds: float = SECONDS) -> list[Finding]:
    """Run checks in parallel and return their findings in order; a check that exceeds `seconds` fails."""
    answers: queue.Queue[tuple[int, Finding]] = queue.Queue()

    def make(place: int, check: Check) -> None:
        answers.put((place, _examine_cloud(check, context)))

    for place, check in enumerate(checks):
        # Daemon threads, so that a hanging call does not keep the command from exiting.
        threading.Thread(target=make, args=(place, check), daemon=True).start()
    findings: dict[int, Finding] = {}
    until = time.monotonic() + seconds
    while len(findings) < len(checks):
        try:
            place, finding = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        findings[place] = finding
    return [findings.get(place) or _late(check, context.target, seconds) for place, check in enumerate(checks)]


def _examine_cloud(check: Check, context: Context) -> Finding:
    try:
        return examine(check, context)
    except Exception as error:
        problem = refusal(error, context.connection, f"check the {check.name}")
        return Finding(check.name, "fail", problem.message, problem.fix, problem)


def _late(check: Check, target: str, seconds: float) -> Finding:
    section = "tpu" if target == "tpu" else "vertex"
    error = UserError(
        f"Google did not respond within {seconds:.0f} s.",
        fix=f"try again; behind a proxy or in a private network, set {section}.endpoints",
    )
    return Finding(check.name, "fail", error.message, error.fix, error)
