"""Which custom jobs the service accepts, called by Google's client."""

from __future__ import annotations

import re
from typing import Any

import pytest
from google.api_core.exceptions import InvalidArgument
from google.cloud import aiplatform_v1 as vertex
from google.protobuf.json_format import MessageToDict

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.retries import status_of
from slipway.pipelines.hardware import parse
from tests.fakes.google import PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, REPOSITORY, RUNNER, take_away
from tests.fakes.vertex.script import Failure

PARENT = f"projects/{PROJECT}/locations/{REGION}"


def pools_of(hardware: str, **machine: Any) -> list[dict[str, Any]]:
    """Return the worker pools of a choice with some fields of the machine replaced; None removes a field."""
    pools = parse(hardware).worker_pools()
    for pool in pools:
        pool["container_spec"] = {"image_uri": IMAGE}
        values = {**pool["machine_spec"], **machine}
        pool["machine_spec"] = {key: value for key, value in values.items() if value is not None}
    return pools


def create(google: FakeGoogle, pools: list[dict[str, Any]], job: dict[str, Any] | None = None, **spec: Any) -> Any:
    jobs = Connection(PROJECT, REGION, google.endpoints).jobs
    made = {"display_name": "job", "job_spec": {"worker_pool_specs": pools, **spec}, **(job or {})}
    return jobs.create_custom_job(parent=PARENT, custom_job=made)


def refused(google: FakeGoogle, pools: list[dict[str, Any]], job: dict[str, Any] | None = None, **spec: Any) -> str:
    """Return the service's sentence about a job that is not valid."""
    with pytest.raises(Exception, match="400") as error:
        create(google, pools, job, **spec)
    assert status_of(error.value) == 400
    assert not google.region.jobs.jobs
    return str(error.value)


@pytest.mark.parametrize("hardware", ["cpu*4", "t4x2", "l4x4*2", "a100x8+spot", "tpu-v2-8", "tpu-v3-8", "tpu-v3-32"])
def test_what_the_tables_of_machines_offer_is_accepted(ready_google, hardware):
    """Source (read): machine types, GPU compatibility and TPU tables, https://docs.cloud.google.com/
    gemini-enterprise-agent-platform/machine-learning/training/configure-compute
    """
    create(ready_google, pools_of(hardware))


def test_the_first_pool_has_exactly_one_replica(ready_google):
    """Source (reported): "Chief spec replica count cannot be greater than 1.", reported by users of AI Platform and
    Vertex AI; the primary replica is the only one of its pool,
    https://cloud.google.com/vertex-ai/docs/training/distributed-training
    """
    pools = pools_of("cpu")
    assert "Chief spec replica count cannot be greater than 1." in refused(
        ready_google, [{**pools[0], "replica_count": 2}]
    )


def test_the_first_pool_is_not_skipped(ready_google):
    """Source (read): the proto of CustomJobSpec ("All worker pools except the first one are optional and can be skipped
    by providing an empty value").
    """
    assert "The first worker pool spec must be specified." in refused(ready_google, [{}, *pools_of("cpu")])
    assert "The first worker pool spec must be specified." in refused(ready_google, [])


def test_a_later_pool_may_be_skipped_by_an_empty_one(ready_google):
    """Source (read): the proto of CustomJobSpec ("All worker pools except the first one are optional and can be skipped
    by providing an empty value").
    """
    create(ready_google, [*pools_of("cpu"), {}, *pools_of("cpu")])


def test_a_job_has_at_most_four_pools(ready_google):
    """Source (read): the tasks of a distributed job are the primary replica, workers, parameter servers and evaluators,
    workerpool0 to workerpool3, https://cloud.google.com/vertex-ai/docs/training/distributed-training
    """
    assert "At most 4 worker pools can be specified." in refused(ready_google, pools_of("cpu") * 5)


def test_a_pool_that_is_not_skipped_has_replicas(ready_google):
    """Source (read): the proto of WorkerPoolSpec ("replica_count: The number of worker replicas to use for this worker
    pool"). The message is not documented.
    """
    pools = pools_of("cpu*2")
    sentence = "The replica count of a worker pool must be at least 1."
    assert sentence in refused(ready_google, [pools[0], {**pools[1], "replica_count": 0}])


def test_a_pool_has_a_container(ready_google):
    """Source (read): the proto of WorkerPoolSpec (container_spec and python_package_spec are the oneof `task`)."""
    pool = pools_of("cpu")[0]
    del pool["container_spec"]
    assert "Exactly one of container_spec and python_package_spec must be set" in refused(ready_google, [pool])


def test_an_image_is_named_by_its_uri(ready_google):
    """Source (read): the proto of ContainerSpec ("The URI of a container image in the Container Registry")."""
    pool = {**pools_of("cpu")[0], "container_spec": {"image_uri": "My Image"}}
    assert "Invalid image URI: My Image." in refused(ready_google, [pool])


def test_an_accelerator_fits_its_machine_type(ready_google):
    """Source (reported): 'Accelerator "NVIDIA_TESLA_K80" is not supported for machine type "n1-standard-4"', reported
    by users; GPU compatibility table of
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/ configure-compute
    """
    sentence = 'Accelerator "NVIDIA_L4" is not supported for machine type "n1-standard-4"'
    assert sentence in refused(ready_google, pools_of("l4x4", machine_type="n1-standard-4"))


def test_an_accelerator_has_a_count_that_its_machine_type_takes(ready_google):
    """Source (read): GPU compatibility table of https://docs.cloud.google.com/gemini-enterprise-agent-platform/
    machine-learning/training/configure-compute
    """
    sentence = 'Accelerator "NVIDIA_L4" is not supported for machine type "g2-standard-48"'
    assert sentence in refused(ready_google, pools_of("l4x4", accelerator_count=3))


def test_an_accelerator_type_and_its_count_belong_together(ready_google):
    """Source (reported): "Both `accelerator_type` and `accelerator_count` should be specified or none.", reported by
    users."""
    sentence = "Both `accelerator_type` and `accelerator_count` should be specified or none."
    assert sentence in refused(ready_google, pools_of("l4x4", accelerator_count=None))


def test_a_machine_type_is_one_of_those_for_training(ready_google):
    """Source (reported): "Machine type MACHINE_TYPE is not supported.", reported by users; machine types of
    https://docs.cloud. google.com/gemini-enterprise-agent-platform/machine-learning/training/configure-compute
    """
    sentence = "Machine type n9-standard-4 is not supported."
    assert sentence in refused(ready_google, pools_of("cpu", machine_type="n9-standard-4"))


def test_a_machine_with_built_in_gpus_needs_them_named(ready_google):
    """Source (read): A2, A3 and G2 machines have a fixed number of GPUs, and the job names them,
    https://docs.cloud.google.com/ gemini-enterprise-agent-platform/machine-learning/training/configure-compute. The
    message is not documented.
    """
    pools = pools_of("l4x4", accelerator_type=None, accelerator_count=None)
    assert 'Machine type "g2-standard-48" must be used with accelerators.' in refused(ready_google, pools)


def test_an_accelerator_is_offered_in_the_jobs_region(ready_google):
    """Source (read): https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/general/locations#
    accelerators. The message is not documented.
    """
    assert f"is not available in region {REGION}" in refused(ready_google, pools_of("tpu-v5e-2x4"))


def test_a_tpu_job_has_one_pool_of_one_replica(ready_google):
    """Source (read): "Distributed training with TPU VMs requires exactly one worker pool with a replica count of 1",
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/training-with-tpu-vm. The
    message is not documented.
    """
    sentence = "TPU jobs must have exactly one worker pool with a replica count of 1."
    assert sentence in refused(ready_google, pools_of("tpu-v5e-2x4") * 2)


def test_a_tpu_topology_is_one_of_its_machine_types(ready_google):
    """Source (read): table of topologies on
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/ training/training-with-tpu-vm. The
    message is not documented.
    """
    assert 'TPU topology "3x3" is not supported' in refused(ready_google, pools_of("tpu-v5e-2x4", tpu_topology="3x3"))


def test_only_tpu_machines_take_a_topology(ready_google):
    """Source (read): the proto of MachineSpec ("The topology of the TPUs. Corresponds to the TPU topologies available
    from GKE"). The message is not documented.
    """
    assert "takes no TPU topology" in refused(ready_google, pools_of("cpu", tpu_topology="2x4"))


def test_the_output_directory_is_inside_a_bucket(ready_google):
    """Source (reported): "URI pattern must be gs://bucket/object", reported by users."""
    directory = {"output_uri_prefix": f"gs://{BUCKET}"}
    sentence = "URI pattern must be gs://bucket/object"
    assert sentence in refused(ready_google, pools_of("cpu"), base_output_directory=directory)


def test_a_network_is_named_with_the_projects_number(ready_google):
    """Source (read): the proto of CustomJobSpec ("Format is of the form projects/{project}/global/networks/{network}.
    Where {project} is a project number, as in 12345").
    """
    network = f"projects/{PROJECT}/global/networks/default"
    assert "must be of the form projects/{project_number}" in refused(ready_google, pools_of("cpu"), network=network)


@pytest.mark.parametrize(
    ("job", "sentence"),
    [
        ({"labels": {"Team": "a"}}, "Invalid label key"),
        ({"labels": {"team": "A b"}}, "Invalid label value"),
        ({"labels": {f"k{number}": "" for number in range(65)}}, "No more than 64 user labels"),
    ],
)
def test_labels_are_64_of_lower_case_letters_digits_dashes_and_underscores(ready_google, job, sentence):
    """Source (read): the proto of CustomJob ("Label keys and values can be no longer than 64 characters, can only
    contain lowercase letters, numeric characters, underscores and dashes") and
    https://cloud.google.com/vertex-ai/docs/reference/rest/v1/projects.locations.customJobs
    """
    assert sentence in refused(ready_google, pools_of("cpu"), job)


@pytest.mark.parametrize("name", ["", "x" * 129])
def test_a_display_name_has_1_to_128_characters(ready_google, name):
    """Source (read): the proto of CustomJob ("The name can be up to 128 characters long and can consist of any UTF-8
    characters").
    """
    assert "must be 1 to 128 characters long" in refused(ready_google, pools_of("cpu"), {"display_name": name})


def test_a_key_is_named_in_full(ready_google):
    """Source (read): the proto of EncryptionSpec ("Has the form:
    projects/my-project/locations/my-region/keyRings/my-kr/ cryptoKeys/my-key").
    """
    assert "Invalid KMS key name" in refused(
        ready_google, pools_of("cpu"), {"encryption_spec": {"kms_key_name": "key"}}
    )


def test_the_caller_may_act_as_the_jobs_account(ready_google):
    """Source (reported): the proto of CustomJobSpec ("Users submitting jobs must have act-as permission on this run-as
    account") and "You do not have permission to act as service account: SA. (or it may not exist).", reported by users.
    """
    create(ready_google, pools_of("cpu"), service_account=RUNNER)
    with pytest.raises(Exception, match=re.escape("You do not have permission to act as service account: nobody@")):
        create(ready_google, pools_of("cpu"), service_account="nobody@slipway-test.iam.gserviceaccount.com")


def test_the_caller_may_create_jobs(ready_google):
    """Source (read): aiplatform.customJobs.create, https://cloud.google.com/vertex-ai/docs/general/iam-permissions."""
    ready_google.world.owners.discard(SUBMITTER)
    with pytest.raises(Exception, match=r"aiplatform\.customJobs\.create") as error:
        create(ready_google, pools_of("cpu"))
    assert status_of(error.value) == 403


def test_an_image_that_the_service_agent_may_not_pull_fails_the_job(ready_google):
    """Source (reported): "service-N@gcp-sa-aiplatform-cc… does not have permission to access Artifact Registry
    repository", reported by users; the custom code service agent pulls the image,
    https://cloud.google.com/vertex-ai/docs/general/access-control#service-agents
    """
    take_away(ready_google, REPOSITORY, "roles/artifactregistry.reader")
    job = create(ready_google, pools_of("cpu"))
    jobs = Connection(PROJECT, REGION, ready_google.endpoints).jobs
    job = jobs.get_custom_job(name=job.name)
    assert job.state.name == "JOB_STATE_FAILED"
    assert "gcp-sa-aiplatform-cc" in job.error.message
    assert "does not have permission to access Artifact Registry repository" in job.error.message


def test_a_job_that_does_not_exist_is_not_found(ready_google):
    """Source (read): google.rpc.Code.NOT_FOUND, "Some requested entity (e.g., file or directory) was not found"."""
    _ = ready_google.region
    with pytest.raises(Exception, match="does not exist") as error:
        Connection(PROJECT, REGION, ready_google.endpoints).jobs.get_custom_job(name=f"{PARENT}/customJobs/1")
    assert status_of(error.value) == 404


# GoogleCloudPlatform/k8s-config-connector at 4602328ff5: pkg/test/resourcefixture/testdata/basic/vertexai/v1alpha1/
# vertexaicustomjob/vertexaicustomjob-{minimal,maximal}/_http.log


def test_the_disks_of_a_new_job_are_filled_in(ready_google):
    """Each pool has a disk of 100 GB of pd-ssd; the time-out stays as sent, and nothing else is added. An image
    without a registry is accepted.

    Source (recorded): vertexaicustomjob-minimal and -maximal (KCC).
    """
    pool = {**pools_of("cpu")[0], "container_spec": {"image_uri": "alpine:latest"}}
    sent = {"worker_pool_specs": [pool, {}], "scheduling": {"timeout": "1800s"}}
    job = create(ready_google, sent["worker_pool_specs"], scheduling={"timeout": {"seconds": 1800}})
    spec = MessageToDict(vertex.CustomJob.pb(job).job_spec, preserving_proto_field_name=True)
    disk = {"boot_disk_type": "pd-ssd", "boot_disk_size_gb": 100}
    assert spec == {**sent, "worker_pool_specs": [{**pool, "replica_count": "1", "disk_spec": disk}, {}]}
    assert (job.state.name, dict(job.labels), job.start_time, job.end_time) == ("JOB_STATE_PENDING", {}, None, None)


def test_the_id_of_a_job_is_a_number(ready_google):
    """Source (recorded): vertexaicustomjob-minimal and -maximal (KCC)."""
    _ = ready_google.region
    with pytest.raises(InvalidArgument) as refused:
        Connection(PROJECT, REGION, ready_google.endpoints).jobs.get_custom_job(name=f"{PARENT}/customJobs/train")
    assert refused.value.message == "List of found errors:\t1.Field: name; Message: Invalid CustomJob resource name.\t"


def test_a_failed_program_has_code_3_and_times_of_whole_seconds(ready_google):
    """createTime has microseconds, startTime and endTime have no fraction.

    Source (reported): the error in GoogleCloudPlatform/vertex-ai-samples#1504; the times in a report of 2026-02-19.
    """
    ready_google.region.jobs.script.failure = Failure()
    jobs = Connection(PROJECT, REGION, ready_google.endpoints).jobs
    job = create(ready_google, pools_of("cpu"))
    while job.state.name != "JOB_STATE_FAILED":
        job = jobs.get_custom_job(name=job.name)
    assert (job.error.code, job.start_time.microsecond, job.end_time.microsecond) == (3, 0, 0)
    assert job.error.message.startswith("The replica workerpool0-0 exited with a non-zero status of 1. To find out")


def test_a_job_that_has_ended_is_not_cancelled(ready_google):
    """Source (read): the proto of JobService.CancelCustomJob ("success is not guaranteed"). That a job that has ended
    is refused, and the message, are not documented.
    """
    jobs = Connection(PROJECT, REGION, ready_google.endpoints).jobs
    job = create(ready_google, pools_of("cpu"))
    while jobs.get_custom_job(name=job.name).state.name != "JOB_STATE_SUCCEEDED":
        pass
    with pytest.raises(Exception, match="has ended and cannot be cancelled"):
        jobs.cancel_custom_job(name=job.name)
