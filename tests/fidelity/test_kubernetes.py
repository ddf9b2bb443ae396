"""What a Kubernetes API server accepts, fills in and refuses, driven through the real kubernetes client.

The tests run against the fake; `make test-cluster` runs them against a real kube-apiserver, without controllers.
Source of all that is marked as recorded: requests to kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.kubernetes.server import NAMESPACE
from tests.fidelity.kubernetes_client import API_VERSION, TRAINER, Clients, labelled, pod, refused, runtime, train_job

pytestmark = pytest.mark.slow
RUNTIMES = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainingruntimes"
JOBS = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainjobs"


# Decoding


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"apiVersion": API_VERSION, "metadata": {"name": "a"}}, 400, "Object 'Kind' is missing in '{"),
        ({**runtime(), "kind": "TrainJob"}, 422, 'kind: Invalid value: "TrainJob": must be TrainingRuntime'),
        ({**runtime(), "apiVersion": f"{TRAINER[0]}/v2"}, 400, 'in version "v2" cannot be handled as a TrainingRuntim'),
        ({**runtime(), "metadata": {"name": "a", "resourceVersion": "1"}}, 500, "resourceVersion should not be set on"),
        (labelled(run=1), 400, "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"),
    ],
)
def test_a_body_that_is_no_object_of_the_kind_is_refused(admin: Clients, body: Any, status: int, message: str) -> None:
    """An unrecognized body is 400, another kind of the group 422, a resourceVersion 500.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    answered, found = admin.send("POST", RUNTIMES, body)
    assert (answered, message in found["message"]) == (status, True), found


def test_unknown_fields_of_a_trainjob_are_refused_only_by_strict_validation(admin: Clients) -> None:
    """By default, the server drops unknown fields with a warning; with fieldValidation=Strict it answers 400.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.create("trainingruntimes", runtime())
    job = train_job(trainer={"numNode": 2}, podTemplateOverrides=[])
    message = refused(400, "strict decoding error: ", admin.create, "trainjobs", job)["message"]
    assert 'unknown field "spec.trainer.numNode"' in message
    assert 'unknown field "spec.podTemplateOverrides"' in message
    create = admin.custom.create_namespaced_custom_object_with_http_info
    made, _, headers = create(*TRAINER, NAMESPACE, "trainjobs", job)
    assert made["spec"].keys() == {"runtimeRef", "trainer", "suspend", "managedBy"}
    assert "unknown field" in headers["Warning"]


def test_an_unknown_field_of_a_pod_is_refused_by_strict_validation(admin: Clients) -> None:
    """Kubernetes' own kinds are as strict as those of CRDs.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    create = admin.core.create_namespaced_pod
    message = 'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field "spec.bogus"'
    refused(400, message, create, NAMESPACE, pod(bogus=1), field_validation="Strict")


def test_a_body_of_another_media_type_is_unsupported(admin: Clients) -> None:
    """Objects are JSON or YAML.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    status, found = admin.send("POST", RUNTIMES, runtime(), "text/plain")
    assert (status, found["reason"]) == (415, "UnsupportedMediaType")
    assert "the body of the request was in an unknown format - accepted media types include: " in found["message"]


@pytest.mark.parametrize(
    ("mebibytes", "status", "message"),
    [
        (2, 500, "rpc error: code = ResourceExhausted desc = trying to send message larger than max ("),
        (4, 413, "Request entity too large: limit is 3145728"),
    ],
)
def test_an_object_that_is_too_large_is_refused(admin: Clients, mebibytes: int, status: int, message: str) -> None:
    """The server limits requests, its client the messages to etcd.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    body = runtime()
    container = body["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container["containers"][0]["env"] = [{"name": "A", "value": "x" * (mebibytes << 20)}]
    answered, found = admin.send("POST", RUNTIMES, body)
    assert (answered, found["message"].startswith(message)) == (status, True), found["message"][:200]


# Names and namespaces


def test_nothing_can_be_created_in_a_namespace_that_does_not_exist(admin: Clients) -> None:
    """A create in it is 404 for the namespace; a list of it is empty.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    create = admin.custom.create_namespaced_custom_object
    found = refused(404, 'namespaces "absent" not found', create, *TRAINER, "absent", "trainingruntimes", runtime())
    assert found["details"] == {"name": "absent", "kind": "namespaces"}
    assert admin.custom.list_namespaced_custom_object(*TRAINER, "absent", "trainjobs")["items"] == []
    assert admin.core.read_namespace(NAMESPACE).metadata.name == NAMESPACE
    refused(404, 'namespaces "absent" not found', admin.core.read_namespace, "absent")


def test_a_trainjob_whose_name_is_taken_is_a_conflict(admin: Clients) -> None:
    """A second create of one name is answered with 409 and AlreadyExists, as after a lost response.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.create("trainingruntimes", runtime())
    found = refused(409, '"job" already exists', admin.create, "trainingruntimes", runtime())
    assert found["reason"] == "AlreadyExists"
    assert found["details"] == {"name": "job", "group": TRAINER[0], "kind": "trainingruntimes"}


def test_an_object_that_is_being_deleted_keeps_its_name(admin: Clients) -> None:
    """A deleted object with a finalizer stays, with a grace period of 0; its name is still taken.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    kept = {**runtime(), "metadata": {"name": "job", "finalizers": ["slipway/kept"]}}
    admin.create("trainingruntimes", kept)
    for _ in range(2):
        metadata = admin.delete("trainingruntimes")["metadata"]
        assert (metadata["deletionGracePeriodSeconds"], "deletionTimestamp" in metadata) == (0, True)
    refused(409, "object is being deleted: trainingruntimes.", admin.create, "trainingruntimes", runtime())


def test_the_path_of_an_unknown_resource_is_no_page(admin: Clients) -> None:
    """Unknown resources and versions of a CRD's group are answered with a text and not a Status.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    for path in (f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/others", JOBS.replace("v1alpha1", "v9")):
        assert admin.send("GET", path) == (404, "404 page not found\n")


# Lists and logs


def test_a_selector_chooses_objects(admin: Clients) -> None:
    """Selectors of labels and fields choose objects; a field that has none is 400.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.create("trainingruntimes", labelled(a="b"))
    listing, arguments = admin.custom.list_namespaced_custom_object, (*TRAINER, NAMESPACE, "trainingruntimes")
    for selector, count in (("a=b", 1), ("a=c", 0)):
        assert len(listing(*arguments, label_selector=selector)["items"]) == count, selector
    assert len(listing(*arguments, field_selector="metadata.name=job")["items"]) == 1
    refused(400, "field label not supported", listing, *arguments, field_selector="spec.bogus=1")


def test_the_log_of_a_pod_without_a_node_is_empty(admin: Clients) -> None:
    """The answer is 204 without a body; a log of the last 0 seconds is 422.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.core.create_namespaced_pod(NAMESPACE, pod())
    log = admin.core.read_namespaced_pod_log_with_http_info
    assert log("p", NAMESPACE)[1:2] == (204,)
    refused(422, 'PodLogOptions "p" is invalid: sinceSeconds: Invalid value: 0', log, "p", NAMESPACE, since_seconds=0)
