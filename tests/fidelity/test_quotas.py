"""What jobs and pipeline steps draw on, and how the service refuses what exceeds a quota."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import is_out_of_quota, status_of
from slipway.pipelines.hardware import parse
from tests.fakes.google import PROJECT, REGION, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, RUNNER

METRICS = "aiplatform.googleapis.com/custom_model_training_"
PARENT = f"projects/{PROJECT}/locations/{REGION}"


def limit(google: FakeGoogle, **limits: int) -> None:
    google.world.quotas.update({(PROJECT, REGION, METRICS + metric): amount for metric, amount in limits.items()})


def create(google: FakeGoogle, hardware: str, **pool: Any) -> Any:
    choice = parse(hardware)
    pools = [{**one, "container_spec": {"image_uri": IMAGE}, **pool} for one in choice.worker_pools()]
    spec = {"worker_pool_specs": pools, "scheduling": choice.scheduling()}
    jobs = Connection(PROJECT, REGION, google.endpoints).jobs
    return jobs.create_custom_job(parent=PARENT, custom_job={"display_name": "job", "job_spec": spec})


def refused(google: FakeGoogle, hardware: str, **pool: Any) -> list[str]:
    """Return the metrics that the refusal of a job names."""
    with pytest.raises(Exception, match="429 The following quota metrics exceed quota limits: ") as error:
        create(google, hardware, **pool)
    assert status_of(error.value) == 429
    assert is_out_of_quota(error.value)
    return re.findall(rf"{METRICS}(\w+)", str(error.value))


@pytest.mark.parametrize(
    ("hardware", "limits"),
    [("t4x1", {"cpus": 3}), ("cpu", {"cpus": 3}), ("cpu@n2-standard-16", {"n2_cpus": 15})],
)
def test_a_job_draws_on_the_cpus_of_its_machines_family(ready_google, hardware, limits):
    """Jobs with and without GPUs draw on custom_model_training_cpus for N1 and E2 machines, on …_n2_cpus for N2.

    Source (reported): "Custom model training CPUs for N1/E2 machine types per region" and the quoted refusal of a job
    with V100 GPUs, https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/
    neural-architecture-search/environment-setup; refusals of T4 jobs on n1-standard-4 for …_cpus and of jobs on
    n2-standard-16 for …_n2_cpus were reported publicly.
    """
    limit(ready_google, **limits)
    assert refused(ready_google, hardware) == list(limits)
    limit(ready_google, **{metric: amount + 1 for metric, amount in limits.items()})
    create(ready_google, hardware)


@pytest.mark.parametrize(("hardware", "cpus"), [("t4x1+spot", 4), ("a100x1+spot", 12), ("l4x1+flex", 4)])
def test_spot_and_flex_start_draw_on_preemptible_cpus_whatever_the_machine(ready_google, hardware, cpus):
    """Source (reported): T4 Spot jobs on N1 and A100 Spot jobs on A2 were refused with preemptible_cpus = 1, although
    the quota of A2's CPUs read -1 (reported publicly). Flex-start consumes preemptible quota:
    https://docs.cloud.google.com/vertex-ai/docs/training/schedule-jobs-dws#quota
    """
    limit(ready_google, preemptible_cpus=cpus - 1, cpus=0, a2_cpus=0, g2_cpus=0)
    assert refused(ready_google, hardware) == ["preemptible_cpus"]
    limit(ready_google, preemptible_cpus=cpus)
    create(ready_google, hardware)


def test_a_refusal_names_all_metrics_that_fall_short(ready_google):
    """Source (reported): "The following quota metrics exceed quota limits: …_cpus,…_nvidia_v100_gpus,…_pd_ssd" on
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/
    neural-architecture-search/environment-setup; of T4 jobs, with cpus and nvidia_t4_gpus, reported publicly.
    """
    limit(ready_google, cpus=0, nvidia_v100_gpus=0, pd_ssd=99)
    assert refused(ready_google, "v100x1") == ["cpus", "nvidia_v100_gpus", "pd_ssd"]


def test_boot_disks_draw_on_ssd_storage_100_gb_each_by_default(ready_google):
    """Source (read): the proto of DiskSpec ("pd-ssd" by default, "default is 100GB"), and custom_model_training_pd_ssd
    in the refusal quoted on https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/
    neural-architecture-search/environment-setup
    """
    limit(ready_google, pd_ssd=199)
    assert refused(ready_google, "cpu*2") == ["pd_ssd"]
    create(ready_google, "cpu*2+disk=pd-standard:500")
    create(ready_google, "cpu")


def test_a_tpu_draws_on_the_metric_of_tpus_only(ready_google):
    """Source (suspected): custom_model_training_tpu_v2 is the only metric in the refusal of
    google-deepmind/xmanager#29; no documentation names a CPU quota of TPU VMs. (Suspected; a project's limit may still
    apply to the host.)
    """
    limit(ready_google, cpus=0, pd_ssd=0)
    create(ready_google, "tpu-v3-8")
    limit(ready_google, tpu_v3=7)
    assert refused(ready_google, "tpu-v3-8") == ["tpu_v3"]


def test_a_limit_of_minus_one_is_no_limit(ready_google):
    """Source (read): Service Usage, QuotaBucket.effectiveLimit ("the value -1 indicates unlimited"),
    https://cloud.google.com/service-usage/docs/reference/rest/v1beta1/services.consumerQuotaMetrics
    """
    limit(ready_google, cpus=-1)
    create(ready_google, "cpu*8")


def test_running_jobs_keep_their_part_of_the_quota(ready_google):
    """Source (read): allocation quotas limit what is in use at one time,
    https://docs.cloud.google.com/docs/quotas/overview"""
    limit(ready_google, cpus=8)
    create(ready_google, "cpu")
    create(ready_google, "cpu")
    assert refused(ready_google, "cpu") == ["cpus"]


@dsl.container_component
def work():
    return dsl.ContainerSpec(image=IMAGE, command=["true"])


def run(google: FakeGoogle, folder: Path, cpu: str | None, memory: str | None) -> Any:
    """Run a pipeline of one step to its end."""

    @dsl.pipeline(name="one-step")
    def one_step():
        task = work()
        if cpu:
            task.set_cpu_limit(cpu)
        if memory:
            task.set_memory_limit(memory)

    compiler.Compiler().compile(one_step, str(folder / "spec.yaml"))
    client = Connection(PROJECT, REGION, google.endpoints).pipelines
    job = client.create_pipeline_job(
        parent=PARENT,
        pipeline_job={
            "display_name": "one-step",
            "pipeline_spec": yaml.safe_load((folder / "spec.yaml").read_text()),
            "service_account": RUNNER,
            "runtime_config": {"gcs_output_directory": f"gs://{BUCKET}/pipelines"},
        },
    )
    return google.region.pipelines.run_to_end(job.name)


@pytest.mark.parametrize(
    ("cpu", "memory", "vcpus"), [(None, None, 4), ("8", None, 8), (None, "64G", 8), ("2", "16G", 2), (None, "300G", 64)]
)
def test_a_step_is_a_job_on_e2_standard_4_or_on_the_smallest_machine_with_its_limits(
    ready_google, tmp_path, cpu, memory, vcpus
):
    """Source (reported): "the component will run on as a Vertex AI CustomJob using an e2-standard-4 machine, with 4
    core CPUs and 16GB memory", https://docs.cloud.google.com/vertex-ai/docs/pipelines/machine-types; "it seems like
    Vertex finds the closest e2 configuration that matches the requirements", reported in tensorflow/tfx#3194.
    """
    limit(ready_google, cpus=vcpus - 1)
    assert run(ready_google, tmp_path, cpu, memory).state.name == "PIPELINE_STATE_FAILED"
    limit(ready_google, cpus=vcpus)
    assert run(ready_google, tmp_path, cpu, memory).state.name == "PIPELINE_STATE_SUCCEEDED"


def test_a_step_that_exceeds_a_quota_fails_with_the_metric_and_its_name(ready_google, tmp_path):
    """Source (reported): the message of a step get-wine-data, "code=RESOURCE_EXHAUSTED, message=The following quota
    metrics exceed quota limits: aiplatform.googleapis.com/custom_model_training_cpus, cause=null; Failed to handle the
    pipeline task. … Task name: get-wine-data", reported publicly.
    """
    limit(ready_google, cpus=3)
    job = run(ready_google, tmp_path, None, None)
    (task,) = [task for task in job.job_detail.task_details if task.state.name == "FAILED"]
    assert re.search(
        r"code=RESOURCE_EXHAUSTED, message=The following quota metrics exceed quota limits: "
        rf"{METRICS}cpus, cause=null; "
        r"Failed to handle the pipeline task\. .* Task name: work,",
        task.error.message,
    )


@pytest.mark.parametrize(("cpu", "memory"), [("97", None), (None, "625G")])
def test_a_step_has_at_most_96_cpus_and_624_gb(ready_google, tmp_path, cpu, memory):
    """Source (read): "You can specify at most 96 CPUs", "At most 624GB is supported",
    https://docs.cloud.google.com/vertex-ai/docs/pipelines/machine-types. The message is not documented.
    """
    assert run(ready_google, tmp_path, cpu, memory).state.name == "PIPELINE_STATE_FAILED"
