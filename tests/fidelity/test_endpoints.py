"""Rules of Vertex AI's endpoints that the fakes enforce, with Google's clients."""

from __future__ import annotations

import time
from typing import Any

from google.cloud import aiplatform_v1 as vertex
from google.longrunning import operations_pb2

from tests.fakes.google import NUMBER, PROJECT, REGION
from tests.fidelity.conftest import ENDPOINT, PARENT, refused


def test_endpoint_ids_and_fields_outside_their_format_are_refused(client):
    """Source (read): `CreateEndpointRequest.endpoint_id` in endpoint_service.proto, `Endpoint` in endpoint.proto."""
    for identity in ("Digits", "digits-", "a" * 64, "0123", "1234567890", "-a", "a_b"):
        refused("INVALID_ARGUMENT", "endpoint_id", client.create, identity)
    for fields, sentence in (
        ({"display_name": ""}, "1 to 128 characters"),
        ({"display_name": "x" * 129}, "1 to 128 characters"),
        ({"labels": {"Upper": "x"}}, "Invalid label key"),
        ({"labels": {"upper": "X"}}, "Invalid label value"),
        ({"traffic_split": {"1": 100}}, "DeployedModel ID(s) [1] do not exist"),
        ({"network": "default"}, "projects/{project_number}/global/networks/"),
        ({"encryption_spec": {"kms_key_name": "key"}}, "Invalid KMS key name"),
        ({"client_connection_config": {"inference_timeout": {"seconds": 90}}}, "on dedicated endpoints only"),
    ):
        refused("INVALID_ARGUMENT", sentence, client.create, **fields)
    network = f"projects/{NUMBER}/global/networks/default"
    both = {"network": network, "private_service_connect_config": {"enable_private_service_connect": True}}
    refused("INVALID_ARGUMENT", "Only one of the fields", client.create, **both)
    for identity in ("a", "a" * 63, "123456789", ""):
        assert not client.create(identity).error.message
    refused("ALREADY_EXISTS", "already exists", client.create, "a")


def test_creating_is_a_long_running_operation_below_the_endpoint(client):
    """It can be read again after it is done, and has times. Source (read): python-aiplatform prints the name "Create
    Endpoint backing LRO: projects/980799330137/locations/us-central1/endpoints/2848656506683916288/operations/…"
    (ageron/handson-ml3#135); `CreateEndpointOperationMetadata`.
    """
    client.google.region.operations.looks = 3
    endpoint = {"display_name": "digits"}
    request = {"parent": PARENT, "endpoint": endpoint, "endpoint_id": "digits"}
    operation = client.endpoints.create_endpoint(request=request).operation
    assert operation.name.startswith(f"{ENDPOINT}/operations/")
    assert not operation.done
    refused("NOT_FOUND", "digits", client.get)
    while not (operation := client.endpoints.get_operation({"name": operation.name})).done:
        pass
    made, metadata = vertex.Endpoint(), vertex.CreateEndpointOperationMetadata()
    assert operation.response.Unpack(vertex.Endpoint.pb(made))
    assert operation.metadata.Unpack(vertex.CreateEndpointOperationMetadata.pb(metadata))
    assert (made.name, bool(made.etag), metadata.generic_metadata.create_time is not None) == (ENDPOINT, True, True)
    assert client.endpoints.get_operation({"name": operation.name}) == operation
    (listed,) = client.endpoints.list_operations({"name": ENDPOINT}).operations
    assert listed == operation
    refused("NOT_FOUND", "does not exist", client.endpoints.get_operation, {"name": f"{ENDPOINT}/operations/1"})


def test_endpoints_are_listed_by_filter_order_and_page(client):
    """Source (read): `ListEndpointsRequest` in endpoint_service.proto."""
    for identity, team in (("a", "red"), ("b", "blue"), ("c", "red")):
        client.create(identity, display_name=f"digits-{identity}", labels={"team": team})

    def listed(**fields: Any) -> list[str]:
        found = client.endpoints.list_endpoints(request={"parent": PARENT, "page_size": 1, **fields})
        return [one.name.rpartition("/")[2] for one in found]

    assert listed(filter="labels.team=red") == ["a", "c"]
    assert listed(filter='displayName="digits-b"') == listed(filter="endpoint=b") == ["b"]
    assert listed(order_by="display_name desc") == ["c", "b", "a"]
    refused("INVALID_ARGUMENT", "filter", listed, filter="labels.team red")
    refused("INVALID_ARGUMENT", "order_by", listed, order_by="name")


def test_updates_need_a_mask_fields_that_can_change_and_the_newest_etag(client):
    """Source (read): `UpdateEndpointRequest.update_mask`, `Endpoint.etag`; ABORTED is https://google.aip.dev/154."""
    client.create()

    def update(paths: list[str], **fields: Any) -> vertex.Endpoint:
        return client.endpoints.update_endpoint(endpoint={"name": ENDPOINT, **fields}, update_mask={"paths": paths})

    first = client.get()
    refused("INVALID_ARGUMENT", "update_mask", update, [])
    for path in ("name", "deployed_models", "etag", "network", "dedicated_endpoint_enabled"):
        refused("INVALID_ARGUMENT", "cannot be updated", update, [path])
    refused("INVALID_ARGUMENT", "Invalid label key", update, ["labels"], labels={"Upper": ""})
    refused("INVALID_ARGUMENT", "do not exist", update, ["traffic_split"], traffic_split={"7": 100})
    second = update(["labels"], labels={"team": "red"}, display_name="ignored", etag=first.etag)
    assert (dict(second.labels), second.display_name) == ({"team": "red"}, "digits")
    assert second.etag != first.etag
    refused("ABORTED", "etag", update, ["labels"], labels={}, etag=first.etag)
    assert dict(update(["labels"], labels={}).labels) == {}


def test_what_cannot_be_deployed_is_refused(client):
    """Source (read): `DeployedModel` in endpoint.proto, `DedicatedResources` in machine_resources.proto, and
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/configure-compute
    """
    client.create()
    client.register()
    for identity in ("a1", "12345678901", "1-2"):
        refused("INVALID_ARGUMENT", "1 to 10 characters", client.deploy, identity)
    for model in ("nothing", "digits@7", "digits@golden"):
        refused("NOT_FOUND", "does not exist", client.deploy, model=model)
    for traffic, sentence in (
        ({"0": 99}, "must add up to 100"),
        ({"0": 101}, "between 0 and 100"),
        ({"0": 50, "7": 50}, "The following DeployedModel ID(s) [7] do not exist."),
    ):
        refused("INVALID_ARGUMENT", sentence, client.deploy, traffic=traffic)
    for spec, sentence in (
        ({"machine_type": "n1-standard-1"}, "Machine type n1-standard-1 is not supported."),
        ({"machine_type": "n1-standard-4", "accelerator_type": "NVIDIA_TESLA_T4"}, "Both `accelerator_type` and"),
        ({"machine_type": "n1-standard-4", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 3}, "not supp"),
        ({"machine_type": "n1-standard-32", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}, "not supp"),
        ({"machine_type": "e2-standard-4", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}, "not supp"),
        ({"machine_type": "g2-standard-24", "accelerator_type": "NVIDIA_L4", "accelerator_count": 1}, "not supported"),
        ({"machine_type": "g2-standard-4"}, "must be used with accelerators"),
    ):
        refused("INVALID_ARGUMENT", sentence, client.deploy, resources={"machine_spec": spec})
    for resources, sentence in (
        ({"min_replica_count": 0}, "greater than or equal to 1"),
        ({"min_replica_count": 3, "max_replica_count": 2}, "max_replica_count 2"),
        ({"min_replica_count": 2, "required_replica_count": 3}, "required_replica_count"),
        ({"autoscaling_metric_specs": [{"metric_name": "cpu", "target": 60}]}, "autoscaling metric"),
    ):
        refused("INVALID_ARGUMENT", sentence, client.deploy, resources=resources)
    refused("PERMISSION_DENIED", "act as service account", client.deploy, service_account=f"nobody@{PROJECT}.iam")
    deployed = {"model": f"{PARENT}/models/digits", "automatic_resources": {"min_replica_count": 1}}
    deploy = client.endpoints.deploy_model
    refused("FAILED_PRECONDITION", "'automatic_resources' is not", deploy, endpoint=ENDPOINT, deployed_model=deployed)
    del deployed["automatic_resources"]
    refused("INVALID_ARGUMENT", "must be specified", deploy, endpoint=ENDPOINT, deployed_model=deployed)
    assert not client.google.region.endpoints.all()


def test_deployed_models_draw_on_the_quota_with_all_their_replicas(client):
    """Source (read): `DedicatedResources.max_replica_count`, "you will be charged for (max_replica_count * number of
    cores in the selected machine type) and (max_replica_count * number of GPUs per replica in the selected machine
    type)".
    """
    quotas, prefix = client.google.world.quotas, (PROJECT, REGION, "aiplatform.googleapis.com/custom_model_serving_")
    quotas[*prefix[:2], prefix[2] + "cpus"] = 7
    quotas[*prefix[:2], prefix[2] + "nvidia_t4_gpus"] = 1
    client.create()
    client.register()
    refused("RESOURCE_EXHAUSTED", "custom_model_serving_cpus", client.deploy, resources={"max_replica_count": 4})
    t4 = {"machine_type": "n1-standard-2", "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 1}
    gpus = {"machine_spec": t4, "max_replica_count": 2}
    refused("RESOURCE_EXHAUSTED", "custom_model_serving_nvidia_t4_gpus", client.deploy, resources=gpus)
    assert not client.deploy("1", resources={"max_replica_count": 3}).error.message
    refused("RESOURCE_EXHAUSTED", "custom_model_serving_cpus", client.deploy, "2")
    quotas[*prefix[:2], prefix[2] + "preemptible_cpus"] = 2
    assert not client.deploy("2", resources={"spot": True}).error.message
    refused("RESOURCE_EXHAUSTED", "serving_preemptible_cpus", client.deploy, "3", resources={"spot": True})
    client.done(client.endpoints.undeploy_model(endpoint=ENDPOINT, deployed_model_id="1"))
    assert not client.deploy("3").error.message


def test_a_deployment_takes_effect_when_its_servers_are_healthy(client):
    """The id exists once, also while it is being deployed. Source (read): `DeployModelRequest.traffic_split` ("To refer
    to the ID of the just being deployed Model, a "0" should be used"), `DeployedModel`, `DeployModelOperationMetadata`.
    """
    client.create()
    client.register("--start-seconds", "0.5")
    before = client.get()
    operation = client.start_deploying("12", {"0": 100}).operation
    assert not operation.done
    metadata = vertex.DeployModelOperationMetadata()
    assert operation.metadata.Unpack(vertex.DeployModelOperationMetadata.pb(metadata))
    assert metadata.deployment_stage == vertex.DeploymentStage.STARTING_DEPLOYMENT
    refused("ALREADY_EXISTS", "already exists", client.deploy, "12")
    refused("FAILED_PRECONDITION", "being deployed", client.endpoints.delete_endpoint, name=ENDPOINT)
    refused("INVALID_ARGUMENT", "do not exist", client.deploy, "13", {"12": 50, "0": 50})
    assert client.get() == before
    while not (operation := client.endpoints.get_operation({"name": operation.name})).done:
        time.sleep(0.02)
    assert operation.metadata.Unpack(vertex.DeployModelOperationMetadata.pb(metadata))
    assert metadata.deployment_stage == vertex.DeploymentStage.SUCCESSFULLY_DEPLOYED
    response = vertex.DeployModelResponse()
    assert operation.response.Unpack(vertex.DeployModelResponse.pb(response))
    found = client.get()
    (deployed,) = found.deployed_models
    assert (deployed.id, deployed.model_version_id, deployed.display_name) == ("12", "1", "digits")
    assert (deployed.status.available_replica_count, deployed.dedicated_resources.max_replica_count) == (1, 1)
    assert deployed.model == response.deployed_model.model == f"projects/{NUMBER}/locations/{REGION}/models/digits"
    assert (dict(found.traffic_split), found.etag != before.etag) == ({"12": 100}, True)
    refused("ALREADY_EXISTS", "already exists", client.deploy, "12")


def test_a_container_that_is_never_healthy_or_ends_fails_the_operation(client):
    """Nothing remains of it. Source (read): the messages are quoted on
    https://docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/predictions/get-batch-predictions
    and in googleapis/python-aiplatform#4559; `ModelContainerSpec.deployment_timeout` in model.proto.
    """
    client.create()
    client.register("--never-healthy", deployment_timeout={"seconds": 1})
    client.register("--exit", "3")
    for model, sentence in (("digits@1", "model server never became ready"), ("digits@2", "exited unexpectedly")):
        operation = client.deploy("1", {"0": 100}, model=model)
        assert (operation.error.code, sentence in operation.error.message) == (9, True)
        metadata = vertex.DeployModelOperationMetadata()
        assert operation.metadata.Unpack(vertex.DeployModelOperationMetadata.pb(metadata))
        assert metadata.deployment_stage == vertex.DeploymentStage.FAILED_TO_DEPLOY
    found = client.get()
    assert (list(found.deployed_models), dict(found.traffic_split)) == ([], {})
    client.google.region.endpoints.patience = 20
    client.register()
    assert not client.deploy("1", model="digits@3").error.message
    logged = [entry for entry in client.google.log.entries if "prediction_container" in entry["logName"]]
    assert {entry["jsonPayload"]["message"] for entry in logged} == {"the stand-in listens", "the stand-in ends"}
    assert {entry["resource"]["labels"]["endpoint_id"] for entry in logged} == {"digits"}


def test_traffic_adds_up_to_100_over_deployed_models_or_is_empty(client):
    """Source (read): `Endpoint.traffic_split` in endpoint.proto."""
    client.create()
    client.register()
    client.deploy("1", {"0": 100})
    client.deploy("2")
    assert dict(client.get().traffic_split) == {"1": 100}

    def split(**shares: int) -> dict[str, int]:
        traffic = {name.removeprefix("id"): share for name, share in shares.items()}
        endpoint = {"name": ENDPOINT, "traffic_split": traffic}
        return dict(
            client.endpoints.update_endpoint(endpoint=endpoint, update_mask={"paths": ["traffic_split"]}).traffic_split
        )

    for shares in ({"id1": 99}, {"id1": 60, "id2": 60}):
        refused("INVALID_ARGUMENT", "must add up to 100", split, **shares)
    refused("INVALID_ARGUMENT", "between 0 and 100", split, id1=-10, id2=110)
    refused("INVALID_ARGUMENT", "ID(s) [3] do not exist", split, id1=50, id3=50)
    assert split(id1=95, id2=5) == {"1": 95, "2": 5}
    assert split(id1=0, id2=100) == {"1": 0, "2": 100}
    assert split() == {}
    refused("FAILED_PRECONDITION", "doesn't have traffic_split", client.predict, 1)


def test_a_model_with_traffic_is_undeployed_only_with_a_split_that_unassigns_it(client):
    """Source (read): `UndeployModelRequest.traffic_split`; deleting an endpoint with models fails:
    googleapis/python-aiplatform#1441.
    """
    client.create()
    client.register()
    client.deploy("1", {"0": 100})
    client.deploy("2", {"1": 90, "0": 10})

    def undeploy(identity: str, traffic: dict[str, int] | None = None) -> Any:
        started = client.endpoints.undeploy_model(endpoint=ENDPOINT, deployed_model_id=identity, traffic_split=traffic)
        return client.done(started)

    refused("FAILED_PRECONDITION", "has 10% of the traffic", undeploy, "2")
    refused("FAILED_PRECONDITION", "has 5% of the traffic", undeploy, "2", {"1": 95, "2": 5})
    refused("INVALID_ARGUMENT", "must add up to 100", undeploy, "2", {"1": 90})
    refused("INVALID_ARGUMENT", "ID(s) [0] do not exist", undeploy, "2", {"1": 50, "0": 50})
    refused("NOT_FOUND", "DeployedModel 3", undeploy, "3")
    refused("FAILED_PRECONDITION", "deployed model", client.endpoints.delete_endpoint, name=ENDPOINT)
    servers = client.google.region.endpoints.deployment("digits", "2").replicas
    assert not undeploy("2", {"1": 100}).error.message
    assert not any(server.process.is_running for server in servers)
    assert dict(client.get().traffic_split) == {"1": 100}
    assert not undeploy("1").error.message
    found = client.get()
    assert (list(found.deployed_models), dict(found.traffic_split)) == ([], {})
    client.done(client.endpoints.delete_endpoint(name=ENDPOINT))
    refused("NOT_FOUND", "digits", client.get)


def test_replicas_are_mutated_within_the_rules(client):
    """Source (read): `MutateDeployedModelRequest` in endpoint_service.proto."""
    client.create()
    client.register()
    client.deploy("1", {"0": 100})
    counts = ("dedicated_resources.min_replica_count", "dedicated_resources.max_replica_count")

    def mutate(*paths: str, identity: str = "1", **resources: int) -> Any:
        deployed = {"id": identity, "dedicated_resources": resources}
        return client.done(
            client.endpoints.mutate_deployed_model(
                endpoint=ENDPOINT, deployed_model=deployed, update_mask={"paths": list(paths)}
            )
        )

    refused("INVALID_ARGUMENT", "update_mask", mutate)
    refused("INVALID_ARGUMENT", "cannot be mutated", mutate, "dedicated_resources.machine_spec")
    refused("NOT_FOUND", "DeployedModel 2", mutate, *counts, identity="2", min_replica_count=1)
    refused("INVALID_ARGUMENT", "max_replica_count 1", mutate, counts[0], min_replica_count=2)
    client.google.world.quotas[PROJECT, REGION, "aiplatform.googleapis.com/custom_model_serving_cpus"] = 6
    refused("RESOURCE_EXHAUSTED", "serving_cpus", mutate, *counts, min_replica_count=2, max_replica_count=4)
    for count in (3, 1):
        assert not mutate(*counts, min_replica_count=count, max_replica_count=3).error.message
        (deployed,) = client.get().deployed_models
        assert deployed.status.available_replica_count == deployed.dedicated_resources.min_replica_count == count


def test_a_deployment_without_free_machines_fails_the_operation(client):
    """The call succeeds; the operation ends with code 14, UNAVAILABLE, and the endpoint stays as it was.

    Source (reported): GoogleCloudPlatform/PerfKitBenchmarker, test of Vertex AI models ("503 … 14: …").
    """
    client.create()
    client.register()
    sentence = "Machine type temporarily unavailable, please deploy with a different machine type or retry."
    client.google.region.servers.stock_out = sentence
    error = client.deploy("1").error
    assert (error.code, error.message) == (14, sentence)
    assert not client.get().deployed_models


def test_a_deletion_is_an_operation_of_the_location(client):
    """Its name does not contain the resource's. Source (recorded): deletions of pipeline jobs and tensorboards in KCC
    (vertexaipipelinejob at 729252c2f5, vertexaitensorboard at 0d9461e184); none of an endpoint was recorded.
    """
    client.create()
    operation = client.endpoints.delete_endpoint(name=ENDPOINT).operation
    assert operation.name.startswith(f"{ENDPOINT.partition('/endpoints/')[0]}/operations/")


def test_models_are_deployed_at_the_same_time(client):
    """Source (read): none; an assumption on which no command relies."""
    client.create()
    client.register("--start-seconds", "0.3")
    started = [client.start_deploying(identity) for identity in ("1", "2", "3")]
    assert [client.done(one).error.message for one in started] == [""] * 3
    assert {one.id for one in client.get().deployed_models} == {"1", "2", "3"}


def test_an_endpoint_needs_permissions(client):
    """Source (read): https://cloud.google.com/vertex-ai/docs/general/iam-permissions"""
    client.create()
    client.google.world.owners.clear()
    refused("PERMISSION_DENIED", "aiplatform.endpoints.get", client.get)
    refused("PERMISSION_DENIED", "aiplatform.endpoints.deploy", client.deploy)
    refused("PERMISSION_DENIED", "aiplatform.endpoints.predict", client.predict, 1)


def test_an_operation_is_waited_for(client):
    """Google's client returns the bytes of the answer. Source (read): google.longrunning.Operations.WaitOperation."""
    client.create()
    client.register("--start-seconds", "0.3")
    operation = client.start_deploying("1").operation
    request = {"name": operation.name, "timeout": {"seconds": 20}}
    assert operations_pb2.Operation.FromString(client.endpoints.wait_operation(request)).done
