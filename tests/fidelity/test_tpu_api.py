"""The rules of the TPU API v2, of the machines that it starts, and of the programs on them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from googleapiclient.errors import HttpError

from slipway.components.cloud import policies
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.policies import Resource
from slipway.components.train.tpu import service
from slipway.core.errors import UserError
from tests.fakes.errors import ServiceError
from tests.fakes.google import NUMBER, PROJECT, REGION, SUBMITTER, FakeGoogle
from tests.fakes.ready import BUCKET, IMAGE, RUNNER, grant, let_use_tpus
from tests.fakes.tpu.hosts import require_curl

ZONE = "europe-west4-b"
PARENT = f"projects/{PROJECT}/locations/{ZONE}"
SPOT_METRIC = "tpu.googleapis.com/tpu-v5s-litepod-serving-preemptible"
TOKEN = "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/token"


class Tpus:
    """The real client of the TPU API in one zone."""

    def __init__(self, google: FakeGoogle) -> None:
        self.google = google
        locations = Connection(PROJECT, REGION, google.endpoints).api("tpu", "v2").projects().locations()
        self.queued, self.nodes, self.locations = locations.queuedResources(), locations.nodes(), locations

    def create(self, name: str = "tpu-1", node: dict[str, Any] | None = None, **fields: Any) -> Any:
        """Ask for a Spot v5litepod-8 that does nothing; `node` and `fields` change the request."""
        spec = {
            "acceleratorType": "v5litepod-8",
            "runtimeVersion": "v2-alpha-tpuv5-lite",
            "serviceAccount": {"email": RUNNER},
            **(node or {}),
        }
        spec = {key: value for key, value in spec.items() if value is not None}
        body = {"tpu": {"nodeSpec": [{"parent": PARENT, "nodeId": name, "node": spec}]}, "spot": {}, **fields}
        body = {key: value for key, value in body.items() if value is not None}
        return self.queued.create(parent=PARENT, queuedResourceId=name, body=body).execute()

    def run(self, script: str, name: str = "tpu-1", **node: Any) -> None:
        """Ask for a TPU whose hosts run a start-up script, and wait until it is active."""
        require_curl()
        self.create(name, {"metadata": {"startup-script": script}, **node})
        self.wait("ACTIVE", name)

    def get(self, name: str = "tpu-1") -> Any:
        return self.queued.get(name=f"{PARENT}/queuedResources/{name}").execute()

    def state(self, name: str = "tpu-1") -> str:
        """Return the state; "" if there is no such resource."""
        try:
            return str(self.get(name)["state"]["state"])
        except HttpError as error:
            assert error.status_code == 404, error
            return ""

    def delete(self, name: str = "tpu-1", **options: Any) -> Any:
        return self.queued.delete(name=f"{PARENT}/queuedResources/{name}", **options).execute()

    def wait(self, state: str, name: str = "tpu-1") -> None:
        eventually(lambda: self.state(name) == state)

    def output(self, host: int = 0, name: str = "tpu-1") -> str:
        """Return what the start-up script has written on a host."""
        return self.google.tpu.host(name, host).output


@pytest.mark.parametrize(
    ("method", "call", "permission"),
    [
        ("POST", lambda to: service.create(to, ZONE, "tpu-1", {}), "tpu.nodes.create"),
        ("GET", lambda to: service.get(to, ZONE, "tpu-1"), "tpu.nodes.get"),
        ("GET", lambda to: service.node_state(to, ZONE, "tpu-1"), "tpu.nodes.get"),
        ("GET", lambda to: list(service.listed(to, [ZONE])), "tpu.nodes.list"),
        ("DELETE", lambda to: service.request_delete(to, ZONE, "tpu-1"), "tpu.nodes.delete"),
    ],
)
def test_slipway_names_the_permission_that_the_service_does_not(google, method, call, permission):
    """Any of Google's services may refuse with "The caller does not have permission", which names none.

    Source (recorded): 37 times in k8s-config-connector's fixtures.
    """
    google.faults.plan(f"tpu {method}", ServiceError(403, "The caller does not have permission"))
    with pytest.raises(UserError, match=re.escape(f"{permission} is missing")) as refused:
        call(Connection(PROJECT, REGION, google.endpoints))
    assert "--role=roles/tpu.admin" in str(refused.value.fix)


def eventually(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def refused(status: int, sentence: str, call: Callable[..., Any], *arguments: Any, **fields: Any) -> None:
    with pytest.raises(HttpError) as error:
        call(*arguments, **fields)
    assert (error.value.status_code, sentence in error.value.reason) == (status, True), error.value


@pytest.fixture
def tpus(google: FakeGoogle) -> Tpus:
    from tests.fakes.ready import make_ready

    make_ready(google)
    let_use_tpus(google)
    return Tpus(google)


def test_a_queued_resource_passes_through_its_states(tpus: Tpus) -> None:
    """Source (read): the states' descriptions in the discovery document; WAITING_FOR_RESOURCES "replaced the ACCEPTED
    state" where requests wait, https://cloud.google.com/tpu/docs/queued-resources. (Recorded): an operation has no
    `done` until it is true (k8s-config-connector, tpuvirtualmachine-minimal, 2025-03-20).
    """
    operation = tpus.create()
    assert "done" not in operation
    tpus.wait("ACTIVE")
    assert tpus.google.tpu.states("tpu-1") == [
        "CREATING",
        "ACCEPTED",
        "WAITING_FOR_RESOURCES",
        "PROVISIONING",
        "ACTIVE",
    ]
    done = tpus.locations.operations().get(name=operation["name"]).execute()
    assert done["done"]
    assert done["response"]["name"] == f"{PARENT}/queuedResources/tpu-1"
    node = tpus.nodes.get(name=f"{PARENT}/nodes/tpu-1").execute()
    assert (node["state"], node["queuedResource"]) == ("READY", f"{PARENT}/queuedResources/tpu-1")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tpus": {}}, 'Unknown name "tpus"'),
        ({"node": {"zone": ZONE}}, "Unknown name \"zone\" at 'queued_resource.tpu.nodeSpec[0].node'"),
        ({"node": {"acceleratorType": None, "acceleratorConfig": {"type": "V5E", "topology": "2x4"}}}, '"V5E"'),
        ({"node": {"labels": {"owner": 3}}}, "Invalid value at"),
    ],
)
def test_a_queued_request_has_the_fields_of_the_discovery_document(
    tpus: Tpus, change: dict[str, Any], sentence: str
) -> None:
    """Source (read): tpu.v2.json, as google-api-python-client ships it; Google's JSON parser refuses unknown names."""
    refused(400, sentence, tpus.create, **change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "tpu 1"}, "queued_resource_id"),
        ({"guaranteed": {}}, "oneof field 'tier' is already set"),
        ({"node": {"acceleratorConfig": {"type": "V5LITE_POD", "topology": "2x4"}}}, "Exactly one of accelerator_type"),
        ({"queueingPolicy": {"validUntilDuration": "60s", "validUntilTime": "2030-01-01T00:00:00Z"}}, "conflict"),
        ({"queueingPolicy": {"validUntilDuration": "1h"}}, "valid_until_duration"),
        ({"tpu": {"nodeSpec": [{"parent": PARENT.replace(ZONE, "us-east5-a"), "node": {}}]}}, "parent"),
    ],
)
def test_a_queued_request_is_consistent(tpus: Tpus, change: dict[str, Any], sentence: str) -> None:
    """Source (read): the descriptions of QueuedResource (union fields `tier` and `resource`), NodeSpec and
    QueueingPolicy on https://docs.cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.queuedResources. That
    accelerator_type and accelerator_config exclude each other: gcloud's --accelerator-type and --type with --topology
    do.
    """
    refused(400, sentence, tpus.create, **change)


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"runtimeVersion": "v2-alpha-tpuv6e"}, "not compatible with v5litepod-8"),
        ({"runtimeVersion": None}, "not compatible"),
        ({"acceleratorType": "v5litepod-12"}, "bad request"),
        (
            {"acceleratorType": "v6e-8", "runtimeVersion": "v2-alpha-tpuv6e"},
            "v6e-8 was not found in zone europe-west4-b",
        ),
    ],
)
def test_a_queued_tpu_is_one_of_the_zone_with_its_runtime_version(
    tpus: Tpus, node: dict[str, Any], sentence: str
) -> None:
    """Source (read): the table of https://cloud.google.com/tpu/docs/runtimes, the zones of
    https://cloud.google.com/tpu/docs/regions-zones, and a quoted refusal: "Cloud TPU received a bad request. The
    requested accelerator configuration for accelerator type, "v5litepod-8", could not be found". That a runtime version
    of another generation is refused right away, and not when the node starts, is assumed.
    """
    refused(400, sentence, tpus.create, node=node)


def test_a_zone_without_tpus_or_that_the_project_may_not_use_is_refused(tpus: Tpus) -> None:
    """A zone without TPUs is 400, one that the project may not use 403 with a reason, which Slipway shows.

    Source (reported): bodies of 2025 and 2026 in public reports of Cloud TPU users.
    """
    elsewhere = PARENT.replace(ZONE, "europe-north1-a")
    sentence = 'The requested zone "europe-north1-a" is not supported. [EID: 0x'
    refused(400, sentence, tpus.queued.list(parent=elsewhere).execute)
    tpus.google.tpu.forbidden.add(ZONE)
    with pytest.raises(HttpError) as error:
        tpus.create()
    assert error.value.error_details[0]["reason"] == "LOCATION_POLICY_VIOLATED"
    sentence = f"may not read the queued resource tpu-1 in {ZONE}: Permission denied on 'locations/{ZONE}'"
    with pytest.raises(UserError, match=re.escape(sentence)):
        service.get(Connection(PROJECT, REGION, tpus.google.endpoints), ZONE, "tpu-1")


@pytest.mark.parametrize(
    ("kind", "runtime", "hosts"),
    [
        ("v5litepod-8", "v2-alpha-tpuv5-lite", 1),
        ("v5litepod-16", "v2-alpha-tpuv5-lite", 4),
        ("v5p-16", "v2-alpha-tpuv5", 2),
    ],
)
def test_a_queued_slice_has_a_vm_per_four_chips_unless_it_fits_one(
    tpus: Tpus, kind: str, runtime: str, hosts: int
) -> None:
    """Source (read): the tables of configurations on https://cloud.google.com/tpu/docs/v5e and …/v5p; v5p counts
    TensorCores, two per chip, v5e chips.
    """
    tpus.run("", acceleratorType=kind, runtimeVersion=runtime)
    node = tpus.nodes.get(name=f"{PARENT}/nodes/tpu-1").execute()
    assert (
        len(node["networkEndpoints"])
        == hosts
        == len(tpus.google.tpu.resources[f"{PARENT}/queuedResources/tpu-1"].hosts)
    )


def test_a_queued_resource_exists_once_under_its_name(tpus: Tpus) -> None:
    """A lost answer is found again: the same name is refused, and the same requestId returns the same operation.

    Source (read): "Optional. Idempotent request UUID." of requestId in the discovery document; ALREADY_EXISTS is
    https://google.aip.dev/133.
    """
    tpus.create()
    refused(409, "already exists", tpus.create)
    tpus.google.tpu.seconds["DELETING"] = 5.0
    request = "2f6b5d1e-0000-4000-8000-000000000001"
    first = tpus.delete(force=True, requestId=request)
    assert tpus.delete(force=True, requestId=request)["name"] == first["name"]


def test_a_queued_resource_with_nodes_is_deleted_by_force(tpus: Tpus) -> None:
    """Source (read): `force` in the discovery document: "Otherwise (i.e. force=false), the queued resource will only be
    deleted if its nodes have already been deleted or the queued resource is in the ACCEPTED, FAILED, or SUSPENDED
    state." That one that is being deleted is not deleted again is assumed.
    """
    tpus.run("")
    refused(400, "use force", tpus.delete)
    tpus.google.tpu.seconds["DELETING"] = 0.5
    tpus.delete(force=True)
    assert tpus.state() == "DELETING"
    refused(400, "is being deleted", tpus.delete, force=True)
    tpus.wait("")
    assert tpus.nodes.list(parent=PARENT).execute() == {"nodes": []}
    refused(404, "was not found", tpus.delete, force=True)


def test_operations_and_nodes_of_tpus_have_the_recorded_fields(tpus: Tpus) -> None:
    """Source (recorded): k8s-config-connector at be8d19d929, tpuvirtualmachine-minimal, and at 04da138537,
    mocktpu/testdata/node/crud (a run of gcloud), of 2025-03.
    """
    operation = tpus.create()
    assert re.fullmatch(rf"{PARENT}/operations/operation-\d+-\w+", operation["name"])
    assert operation["metadata"]["@type"].endswith("google.cloud.common.OperationMetadata")
    assert operation["metadata"].keys() == {"@type", "apiVersion", "createTime", "target", "verb"}
    tpus.wait("ACTIVE")
    assert "endTime" in tpus.locations.operations().get(name=operation["name"]).execute()["metadata"]
    read = tpus.nodes.get(name=f"{PARENT}/nodes/tpu-1")
    node = read.execute()
    assert node["acceleratorConfig"] == {"type": "V5LITE_POD", "topology": "2x4"}
    assert node["networkEndpoints"] == [{"ipAddress": "10.130.0.2", "port": 8470, "accessConfig": {}}]
    assert (node["id"], node["apiVersion"], node["state"], node.get("health")) == ("tpu-1", "V2", "READY", None)
    assert read.execute()["health"] == "HEALTHY"


def test_deleting_its_node_suspends_a_queued_resource(tpus: Tpus) -> None:
    """Source (read): https://cloud.google.com/tpu/docs/queued-resources#delete_a_queued_resource: without --force,
    delete the TPU VM, whose request is then SUSPENDED, and then the request.
    """
    tpus.run("")
    tpus.nodes.delete(name=f"{PARENT}/nodes/tpu-1").execute()
    tpus.wait("SUSPENDED")
    assert tpus.get()["state"]["stateInitiator"] == "USER"
    tpus.delete()
    tpus.wait("")


def test_a_queued_request_expires_and_stays(tpus: Tpus) -> None:
    """Source (read): "If the request cannot be fulfilled by this time the request will be failed" (validUntilDuration),
    and "The request remains in the queue after it has expired", https://cloud.google.com/tpu/docs/queued-resources.
    """
    tpus.google.tpu.stocked_out.add(ZONE)
    tpus.google.tpu.second = 0.001
    tpus.create(queueingPolicy={"validUntilDuration": "100s"})
    tpus.wait("FAILED")
    assert "valid until" in tpus.get()["state"]["failedData"]["error"]["message"]
    tpus.delete()
    tpus.wait("")


def test_a_queued_request_may_be_provisioning_for_good(tpus: Tpus) -> None:
    """Source (reported): Spot v6e-8 stayed in PROVISIONING for 45 minutes and more while its VM was created and
    preempted again and again, and never became active; WAITING_FOR_RESOURCES to ACTIVE took 6 minutes otherwise.
    """
    tpus.google.tpu.provisioning.add(ZONE)
    tpus.create()
    tpus.wait("PROVISIONING")
    time.sleep(5 * tpus.google.tpu.seconds["PROVISIONING"])
    assert tpus.state() == "PROVISIONING"
    tpus.delete(force=True)
    tpus.wait("")


def test_a_queued_request_fails_where_a_zone_has_no_capacity(tpus: Tpus) -> None:
    """Source (reported): code 8, "There is no more capacity in the zone …; you can try in another zone where Cloud TPU
    Nodes are offered", https://github.com/thevasudevgupta/gsoc-wav2vec2/issues/11 and SkyPilot's handler of TPU errors.
    """
    tpus.google.tpu.exhausted.add(ZONE)
    tpus.create()
    tpus.wait("FAILED")
    assert tpus.get()["state"]["failedData"]["error"]["code"] == 8


def test_failed_and_suspended_queued_requests_use_up_quota(tpus: Tpus) -> None:
    """Quota is per zone, generation and tier, in the units of the accelerator type.

    Source (reported): https://github.com/marin-community/marin/issues/87 ("Inactive TPU queued-resources eat all the
    quota"), and the refusals quoted there; the metrics and their unit 1/{project}/{zone} are those of `gcloud beta
    quotas info list --service=tpu.googleapis.com`.
    """
    tpus.google.world.quotas[PROJECT, ZONE, SPOT_METRIC] = 15
    tpus.google.tpu.exhausted.add(ZONE)
    tpus.create()
    tpus.wait("FAILED")
    refused(
        429,
        "Quota limit 'TPUV5sPreemptibleLitepodServingPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 15 in zone "
        f"{ZONE}.",
        *(tpus.create, "tpu-2"),
    )
    tpus.create("tpu-3", spot=None, guaranteed={})
    tpus.delete()
    tpus.wait("")
    tpus.create("tpu-2")


@pytest.mark.parametrize(("kind", "metric"), [("v5litepod-8", "-serving"), ("v5litepod-16", "")])
def test_slices_of_one_vm_of_v5e_use_up_the_quota_for_serving(tpus: Tpus, kind: str, metric: str) -> None:
    """Source (reported): v5litepod-1, -4 and -8 were refused for tpu-v5s-litepod-serving(-preemptible), and a body of
    2025-08-25 names 'TPUV5sLitepodServingPerProjectPerZoneForTPUAPI'; that larger slices count for tpu-v5s-litepod:
    https://github.com/marin-community/marin/issues/87.
    """
    for name in ("-serving", ""):
        tpus.google.world.quotas[PROJECT, ZONE, f"tpu.googleapis.com/tpu-v5s-litepod{name}"] = (
            0 if name == metric else 64
        )
    other = f"tpu.googleapis.com/tpu-v5s-litepod{metric}"
    refused(429, "has been exceeded. Limit: 0", tpus.create, node={"acceleratorType": kind}, spot=None)
    del tpus.google.world.quotas[PROJECT, ZONE, other]
    tpus.create(node={"acceleratorType": kind}, spot=None)


def test_tpus_have_quotas_by_region_beside_those_by_zone(tpus: Tpus) -> None:
    """Source (reported): "…PerProjectPerRegionForTPUAPI … Limit: 0 in region us-east5",
    https://github.com/marin-community/marin/issues/1612.
    """
    tpus.google.world.quotas |= {(PROJECT, ZONE, SPOT_METRIC): 64, (PROJECT, REGION, SPOT_METRIC): 8}
    tpus.create()
    refused(429, f"PerProjectPerRegionForTPUAPI' has been exceeded. Limit: 8 in region {REGION}.", tpus.create, "tpu-2")


def test_queued_resources_need_the_permissions_of_nodes_and_of_the_account(tpus: Tpus) -> None:
    """Source (read): https://docs.cloud.google.com/iam/docs/roles-permissions/tpu has no permissions of queued
    resources in `tpu.*`; that those of nodes are asked is concluded from that. The account's: "Service Account User" on
    https://cloud.google.com/tpu/docs/setup-gcp-account.
    """
    tpus.google.world.owners.clear()
    refused(403, "tpu.nodes.create", tpus.create)
    grant(tpus.google, f"projects/{PROJECT}", "roles/tpu.admin", SUBMITTER)
    refused(403, "iam.serviceAccountUser", tpus.create)
    grant(tpus.google, f"projects/{PROJECT}/serviceAccounts/{RUNNER}", "roles/iam.serviceAccountUser", SUBMITTER)
    tpus.create()


def test_custom_roles_have_permissions_that_exist_and_are_granted_once_they_exist(tpus: Tpus) -> None:
    """Source (read): https://docs.cloud.google.com/iam/docs/creating-custom-roles; (reported): "Permission … is not
    valid.", "Role (…) does not exist in the resource's hierarchy.".
    """
    connection = Connection(PROJECT, REGION, tpus.google.endpoints)
    roles = connection.api("iam", "v1").projects().roles()

    def create(permission: str) -> Any:
        role = {"title": "t", "includedPermissions": [permission]}
        return roles.create(parent=f"projects/{PROJECT}", body={"roleId": "own", "role": role}).execute()

    own, project = f"projects/{PROJECT}/roles/own", Resource("project", PROJECT)
    refused(400, "Permission tpu.queuedResources.delete is not valid", create, "tpu.queuedResources.delete")
    refused(400, "does not exist", policies.add, connection, project, [(own, f"serviceAccount:{RUNNER}")])
    assert create("tpu.nodes.get")["name"] == own
    refused(409, "exists", create, "tpu.nodes.get")
    policies.add(connection, project, [(own, f"serviceAccount:{RUNNER}")])
    assert tpus.google.world.allowed(RUNNER, "tpu.nodes.get", f"projects/{PROJECT}")


def test_queued_resources_need_the_api(tpus: Tpus) -> None:
    """Source (read): https://cloud.google.com/tpu/docs/setup-gcp-account ("Enable the Cloud TPU API"); the text is that
    of every API of Google's.
    """
    tpus.google.world.projects[PROJECT].services.remove("tpu.googleapis.com")
    refused(403, "Cloud TPU API has not been used", tpus.create)


def test_every_host_of_a_queued_tpu_runs_the_startup_script_as_its_place_in_the_slice(tpus: Tpus) -> None:
    """The metadata server answers only with the header Metadata-Flavor: Google.

    Source (read): `startup-script` in Node.metadata (discovery document); "run on every TPU VM",
    https://cloud.google.com/tpu/ docs/managing-tpus-tpu-vm; the attributes as JAX reads them
    (jax/_src/clusters/cloud_tpu_cluster.py).
    """
    attributes = "http://metadata.google.internal/computeMetadata/v1/instance/attributes"
    tpus.run(
        f'get() {{ curl -sf -H "Metadata-Flavor: Google" {attributes}/$1; echo; }}\n'
        f"get agent-worker-number; get accelerator-type; get worker-network-endpoints; curl -s {attributes}/tpu-env",
        acceleratorType="v5p-16",
        runtimeVersion="v2-alpha-tpuv5",
    )
    for host in (0, 1):
        eventually(lambda host=host: "Missing required header" in tpus.output(host))
        lines = tpus.output(host).splitlines()
        assert lines[:3] == [str(host), "v5p-16", "unknown:unknown:10.130.0.2,unknown:unknown:10.130.0.3"]


def test_a_host_deletes_its_own_queued_resource_with_its_accounts_token(tpus: Tpus) -> None:
    """Source (read): https://cloud.google.com/compute/docs/access/authenticate-workloads#applications (the token of the
    metadata server) and the method queuedResources.delete; the host is shut down by it.
    """
    tpus.run(
        f'token=$(curl -sf -H "Metadata-Flavor: Google" {TOKEN} | python3 -c "import json, sys; '
        "print(json.load(sys.stdin)['access_token'])\")\n"
        f'curl -sf -X DELETE -H "Authorization: Bearer $token" '
        f'"https://tpu.googleapis.com/v2/{PARENT}/queuedResources/tpu-1?force=true"\n'
        "sleep 60 & nohup setsid sleep 60 & wait"
    )
    tpus.wait("")
    assert tpus.google.tpu.machines.processes() == []


def test_a_preempted_queued_tpu_is_suspended_by_the_service(tpus: Tpus) -> None:
    """Source (read): "Only TPU Spot VMs and preemptible TPUs are eligible for preemption"; SUSPENDED "is no longer
    eligible for further allocation", https://cloud.google.com/tpu/docs/queued-resources.
    """
    tpus.run("sleep 60")
    eventually(tpus.google.tpu.machines.processes)
    tpus.google.tpu.preempt("tpu-1")
    tpus.wait("SUSPENDED")
    assert tpus.get()["state"]["stateInitiator"] == "SERVICE"
    assert tpus.google.tpu.machines.processes() == []
    refused(404, "was not found", tpus.nodes.get(name=f"{PARENT}/nodes/tpu-1").execute)


def test_a_preempted_host_tells_units_and_containers_but_not_the_startup_script(tpus: Tpus) -> None:
    """Source (read): KillMode=process of google-startup-scripts.service, whose main process is
    google_metadata_script_runner (https://github.com/GoogleCloudPlatform/guest-agent); systemd.kill(5); the daemon
    stops its containers when it is stopped (moby, daemon.Shutdown). SIGTERM and then the end within 30 seconds:
    https://cloud.google.com/compute/docs/instances/preemptible#preemption-process.
    """
    wait = "while true; do sleep 0.05; done"
    tpus.run(
        f"systemd-run --unit=own bash -c \"trap 'echo told the unit; exit' TERM; echo ready; {wait}\"\n"
        f"trap 'echo told the script; exit' TERM\n{wait}"
    )
    host = tpus.google.tpu.host("tpu-1", 0)
    eventually(lambda: "ready" in host.output)
    tpus.google.tpu.preempt("tpu-1")
    tpus.wait("SUSPENDED")
    assert host.output.splitlines() == ["ready", "told the unit"]


def test_a_unit_that_is_killed_is_started_again(tpus: Tpus) -> None:
    """Source (read): Restart=on-failure in systemd.service(5): not after exit code 0, but after a signal."""
    tpus.run("systemd-run --unit=own --property=Restart=on-failure bash -c 'echo started; sleep 60'")
    host = tpus.google.tpu.host("tpu-1", 0)
    eventually(lambda: host.output == "started\n")
    host.units()[0].kill()
    eventually(lambda: host.output == "started\nstarted\n")


def test_a_crashed_host_of_a_queued_tpu_runs_the_startup_script_again(tpus: Tpus) -> None:
    """Source (read): a start-up script runs at every boot,
    https://cloud.google.com/compute/docs/instances/startup-scripts."""
    tpus.run("echo booted; sleep 60")
    eventually(lambda: tpus.output() == "booted\n")
    tpus.google.tpu.kill_host("tpu-1", 0)
    eventually(lambda: tpus.output() == "booted\nbooted\n")


def test_a_host_of_a_queued_tpu_runs_images_by_digest_after_login(tpus: Tpus) -> None:
    """Source (read): https://cloud.google.com/artifact-registry/docs/docker/authentication#token (user
    oauth2accesstoken) and https://cloud.google.com/tpu/docs/run-in-container (`docker run --net=host … --privileged`).
    """
    options = "--rm --privileged --net=host"
    tpus.run(
        f"docker run {options} {IMAGE} true\n"
        f'curl -sf -H "Metadata-Flavor: Google" {TOKEN} | '
        "python3 -c \"import json, sys; print(json.load(sys.stdin)['access_token'])\" | "
        f"docker login -u oauth2accesstoken --password-stdin https://{REGION}-docker.pkg.dev\n"
        f"docker run {options} {IMAGE.partition('@')[0]}:latest true\n"
        f"docker run --rm {IMAGE} true\n"
        f"docker run {options} -e AIP_MODEL_DIR=gs://b/m {IMAGE} sh -c 'echo $AIP_MODEL_DIR $CURL_HOME; exit 7'\n"
        "echo ended $?"
    )
    eventually(lambda: "ended" in tpus.output())
    lines = tpus.output().splitlines()
    assert "Unauthenticated request" in lines[0]
    assert lines[1] == "Login Succeeded"
    assert "by digest only" in lines[2]
    assert "No TPU devices" in lines[3]
    assert lines[4:] == ["gs://b/m", "ended 7"]


def test_a_host_of_a_queued_tpu_mounts_buckets_for_the_images_user(tpus: Tpus) -> None:
    """A bucket that root mounts without allow_other is root's alone.

    Source (read): https://github.com/GoogleCloudPlatform/gcsfuse/blob/master/docs/mounting.md#access-permissions; the
    image's user is that of containers/Dockerfile.
    """
    storage = Connection(PROJECT, REGION, tpus.google.endpoints).storage.bucket(BUCKET)
    storage.blob("data/a").upload_from_string("from the bucket")
    login = (
        f'curl -sf -H "Metadata-Flavor: Google" {TOKEN} | cut -d\'"\' -f4 | '
        f"docker login -u oauth2accesstoken --password-stdin {REGION}-docker.pkg.dev\n"
    )
    code = (
        "from slipway.core.paths import local_path as path; "
        f"print(path('gs://{BUCKET}/data/a').read_text()); path('gs://{BUCKET}/data/b').write_text('from the host')"
    )
    run = f'docker run --rm --privileged --net=host -v "$m":/gcs {IMAGE} python -c "{code}"\n'
    tpus.run(
        f"{login}m=$(mktemp -d); gcsfuse --implicit-dirs $m; {run}"
        f"m=$(mktemp -d); gcsfuse -o allow_other --file-mode=666 --dir-mode 777 $m; {run}echo ended"
    )
    eventually(lambda: "ended" in tpus.output())
    assert "Permission denied" in tpus.output()
    assert "from the bucket" in tpus.output()
    assert storage.blob("data/b").download_as_text() == "from the host"


def test_queued_resources_are_listed_in_pages_with_the_zones_runtime_versions(tpus: Tpus) -> None:
    """Source (read): pageSize and pageToken of the lists in the discovery document; runtimeVersions.list."""
    tpus.google.tpu.stocked_out.add(ZONE)
    for number in range(3):
        tpus.create(f"tpu-{number}")
    page = tpus.queued.list(parent=PARENT, pageSize=2).execute()
    rest = tpus.queued.list(parent=PARENT, pageSize=2, pageToken=page["nextPageToken"]).execute()
    assert len(page["queuedResources"]) + len(rest["queuedResources"]) == 3
    versions = tpus.locations.runtimeVersions().list(parent=PARENT).execute()["runtimeVersions"]
    assert [each["version"] for each in versions] == ["v2-alpha-tpuv5", "v2-alpha-tpuv5-lite"]
    assert str(NUMBER) not in page["queuedResources"][0]["name"]
