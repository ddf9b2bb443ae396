"""What a Kubernetes API server accepts, fills in and refuses, driven through the real kubernetes client.

The tests run against the fake; `make test-cluster` runs them against a real kube-apiserver, without controllers.
Source of all that is marked as recorded: requests to kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import yaml
from kubernetes import watch

from tests.fakes.kubernetes.server import NAMESPACE
from tests.fidelity.kubernetes_client import API_VERSION, TRAINER, Clients, labelled, pod, refused, runtime, train_job

pytestmark = pytest.mark.slow
RUNTIMES = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainingruntimes"
JOBS = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/trainjobs"


def other() -> dict[str, Any]:
    """Return a TrainJob without its runtime."""
    return train_job(runtimeRef={"apiGroup": TRAINER[0], "kind": "TrainingRuntime", "name": "other"})


# Decoding


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("{", 400, "unrecognized (must be of type TrainingRuntime): couldn't get version/kind; json parse error: "),
        ("", 400, "json parse error: unexpected end of JSON input (<empty>)"),
        ({"apiVersion": API_VERSION, "metadata": {"name": "a"}}, 400, "Object 'Kind' is missing in '{"),
        ({**runtime(), "kind": "TrainJob"}, 422, 'kind: Invalid value: "TrainJob": must be TrainingRuntime'),
        ({**runtime(), "apiVersion": f"{TRAINER[0]}/v2"}, 400, 'in version "v2" cannot be handled as a TrainingRuntim'),
        ({**runtime(), "metadata": {"name": "a", "resourceVersion": "1"}}, 500, "resourceVersion should not be set on"),
        (labelled(run=1), 400, "json: cannot unmarshal number into Go struct field ObjectMeta.labels of type string"),
    ],
)
def test_a_body_that_is_no_object_of_the_kind_is_refused(admin: Clients, body: Any, status: int, message: str) -> None:
    """A malformed, empty or unrecognized body is 400, another kind of the group 422, a resourceVersion 500.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    answered, found = admin.send("POST", RUNTIMES, body)
    assert (answered, message in found["message"]) == (status, True), found


def test_a_key_that_an_object_has_twice_is_refused_only_by_strict_validation(admin: Clients) -> None:
    """With fieldValidation=Strict, a duplicate key is 400 like an unknown one; else the last value counts.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    text = '{"kind":"x","apiVersion":"VERSION","kind":"TrainingRuntime","metadata":{"name":"a"}}'
    text = text.replace("VERSION", API_VERSION)
    status, found = admin.send("POST", f"{RUNTIMES}?fieldValidation=Strict", text)
    assert (status, found["message"].partition(": ")[2]) == (400, 'strict decoding error: duplicate field "kind"')
    assert admin.send("POST", RUNTIMES, text)[0] == 201


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


@pytest.mark.parametrize(
    ("method", "path", "media"),
    [
        ("POST", RUNTIMES, "text/plain"),
        ("PATCH", f"{RUNTIMES}/job", "application/strategic-merge-patch+json"),
        ("PATCH", f"{RUNTIMES}/job", "application/json"),
    ],
)
def test_a_body_of_another_media_type_is_unsupported(admin: Clients, method: str, path: str, media: str) -> None:
    """Objects are JSON or YAML; objects of CRDs have no strategic merge patches.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.create("trainingruntimes", runtime())
    status, found = admin.send(method, path, runtime(), media)
    assert (status, found["reason"]) == (415, "UnsupportedMediaType")
    assert "the body of the request was in an unknown format - accepted media types include: " in found["message"]


def test_an_object_may_be_yaml_and_posted_to_its_own_path(admin: Clients) -> None:
    """A POST to the path of one object of a CRD creates it as a POST to the list does.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    assert admin.send("POST", RUNTIMES, yaml.safe_dump(runtime()), "application/yaml")[0] == 201
    message = refused(403, "must be created before the TrainJob is created", admin.create, "trainjobs", other())
    assert admin.send("POST", f"{JOBS}/job", other()) == (403, message)
    assert admin.send("POST", f"{JOBS}/job", train_job())[0] == 201


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
    admin.custom.patch_namespaced_custom_object(
        *TRAINER, NAMESPACE, "trainingruntimes", "job", {"metadata": {"finalizers": None}}
    )
    admin.create("trainingruntimes", runtime())


def test_the_path_of_an_unknown_resource_is_no_page(admin: Clients) -> None:
    """Unknown resources and versions of a CRD's group are answered with a text and not a Status.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    for path in (f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/others", JOBS.replace("v1alpha1", "v9")):
        assert admin.send("GET", path) == (404, "404 page not found\n")


# Changes


def test_a_trainjobs_specification_is_immutable(admin: Clients) -> None:
    """A field that is set cannot change; one that was not set can be added.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs; the rules self == oldSelf in
    TRAINER/pkg/apis/trainer/v1alpha1/trainjob_types.go, which are checked only if there is an old value.
    """
    admin.create("trainingruntimes", runtime())
    admin.create("trainjobs", train_job())
    patch = admin.custom.patch_namespaced_custom_object
    arguments = (*TRAINER, NAMESPACE, "trainjobs", "job")
    assert patch(*arguments, {"spec": {"trainer": {"numNodes": 3}}})["spec"]["trainer"] == {"numNodes": 3}
    refused(422, "field is immutable", patch, *arguments, {"spec": {"trainer": {"numNodes": 4}}})


def test_a_json_patch_changes_an_object(admin: Clients) -> None:
    """A list of operations is applied in order, or not at all.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs; a failed operation:
    https://datatracker.ietf.org/doc/html/rfc6902#section-5
    """
    admin.create("trainingruntimes", labelled(a="b"))
    media, path = "application/json-patch+json", f"{RUNTIMES}/job"
    operations = [
        {"op": "test", "path": "/metadata/labels/a", "value": "b"},
        {"op": "replace", "path": "/metadata/labels/a", "value": "c"},
        {"op": "add", "path": "/metadata/annotations", "value": {"x/y": "z"}},
        {"op": "remove", "path": "/metadata/annotations/x~1y"},
    ]
    status, found = admin.send("PATCH", path, operations, media)
    assert (status, found["metadata"]["labels"]) == (200, {"a": "c"})
    assert admin.send("PATCH", path, operations, media)[0] == 422


def test_an_apply_names_its_manager(admin: Clients) -> None:
    """Server-side apply without a fieldManager is 422; it adds to what other managers have set.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    made = admin.create("trainingruntimes", runtime())
    status, found = admin.send("PATCH", f"{RUNTIMES}/job", runtime(), "application/apply-patch+yaml")
    assert (status, "fieldManager: Required value: is required for apply patch" in found["message"]) == (422, True)
    path, applied = f"{RUNTIMES}/job?fieldManager=tests", labelled(a="b")
    applied["spec"] = {}
    status, found = admin.send("PATCH", path, yaml.safe_dump(applied), "application/apply-patch+yaml")
    assert (status, found["metadata"]["labels"]) == (200, {"a": "b"})
    assert found["spec"]["template"] == made["spec"]["template"]


def test_a_replacement_names_the_version_that_it_replaces(admin: Clients) -> None:
    """A PUT of a CRD's object has its resourceVersion (422), that of the server (409), and the name of the path (400).

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    made = admin.create("trainingruntimes", runtime())
    put = admin.custom.replace_namespaced_custom_object
    arguments = (*TRAINER, NAMESPACE, "trainingruntimes", "job")
    refused(
        422, "metadata.resourceVersion: Invalid value: 0: must be specified for an update", put, *arguments, runtime()
    )
    other = {**made, "metadata": {**made["metadata"], "name": "other"}}
    message = "the name of the object (other) does not match the name on the URL (job)"
    refused(400, message, put, *arguments, other)
    made["metadata"]["labels"] = {"a": "b"}
    put(*arguments, made)
    refused(409, "the object has been modified; please apply your changes", put, *arguments, made)


def test_a_dry_run_stores_nothing(admin: Clients) -> None:
    """With dryRun=All the answer is that of a real request; another value is 422.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    made = admin.create("trainingruntimes", runtime(), dry_run="All")
    assert made["metadata"].keys() >= {"uid", "creationTimestamp", "namespace"}
    refused(404, "not found", admin.get, "trainingruntimes")
    admin.create("trainingruntimes", runtime())
    refused(409, "already exists", admin.create, "trainingruntimes", runtime(), dry_run="All")
    admin.delete("trainingruntimes", dry_run="All")
    assert admin.get("trainingruntimes")["metadata"]["name"] == "job"
    status, found = admin.send("POST", f"{RUNTIMES}?dryRun=Bogus", runtime())
    assert (status, 'dryRun: Unsupported value: ["Bogus"]: supported values: "All"' in found["message"]) == (422, True)


def test_the_status_of_an_object_has_a_path_of_its_own(admin: Clients) -> None:
    """GET of the subresource returns the object; a patch of the object leaves its status as it is.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.create("trainingruntimes", runtime())
    admin.create("trainjobs", train_job())
    status, found = admin.send("GET", f"{JOBS}/job/status")
    assert (status, found["kind"]) == (200, "TrainJob")
    patch = {"status": {"jobsStatus": [{"name": "bogus"}]}}
    patched = admin.custom.patch_namespaced_custom_object(*TRAINER, NAMESPACE, "trainjobs", "job", patch)
    assert "bogus" not in str(patched.get("status"))


# Deletion


def test_a_deletion_has_preconditions(admin: Clients) -> None:
    """A deletion with the uid or the resourceVersion of another object is 409.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    made = admin.create("trainingruntimes", runtime())["metadata"]
    for name, key in (("UID", "uid"), ("ResourceVersion", "resourceVersion")):
        text = f'on TrainingRuntime.trainer.kubeflow.org "job": the {name} in the precondition (1) does not match'
        refused(409, text, admin.delete, "trainingruntimes", body={"preconditions": {key: "1"}})
    done = admin.delete("trainingruntimes", body={"preconditions": {"uid": made["uid"]}})
    assert (done["status"], done["details"]["uid"]) == ("Success", made["uid"])


def test_a_deletion_with_an_unknown_policy_is_refused(admin: Clients) -> None:
    """Dependents are deleted in the foreground, in the background, or kept.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.create("trainingruntimes", runtime())
    text = 'propagationPolicy: Unsupported value: "Bogus": supported values: '
    refused(422, text, admin.delete, "trainingruntimes", propagation_policy="Bogus")


def test_service_accounts_and_secrets_are_objects_like_others(admin: Clients) -> None:
    """An account can be created by who may, and secrets listed.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    path = f"/api/v1/namespaces/{NAMESPACE}"
    assert admin.send("POST", f"{path}/serviceaccounts", {"metadata": {"generateName": "tests-"}})[0] == 201
    assert admin.send("GET", f"{path}/secrets")[1]["kind"] == "SecretList"


def test_all_objects_of_a_kind_are_deleted_by_one_request(admin: Clients) -> None:
    """A DELETE of the list's path deletes those of the namespace.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    for name in "ab":
        admin.create("trainingruntimes", {**runtime(), "metadata": {"name": name}})
    assert admin.send("DELETE", RUNTIMES)[0] == 200
    assert admin.custom.list_namespaced_custom_object(*TRAINER, NAMESPACE, "trainingruntimes")["items"] == []


# Lists, watches and logs


def test_a_list_has_pages_in_the_order_of_names(admin: Clients) -> None:
    """With a limit, the answer has a token for the next page; a token of no page is 400.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    for name in "cab":
        admin.create("trainingruntimes", {**runtime(), "metadata": {"name": name}})
    listing, arguments = admin.custom.list_namespaced_custom_object, (*TRAINER, NAMESPACE, "trainingruntimes")
    first = listing(*arguments, limit=2)
    token = first["metadata"]["continue"]
    second = listing(*arguments, limit=2, _continue=token)
    assert [[one["metadata"]["name"] for one in page["items"]] for page in (first, second)] == [["a", "b"], ["c"]]
    assert second["metadata"]["continue"] == ""
    refused(400, "continue token", listing, *arguments, _continue="bogus")


def test_a_selector_that_cannot_be_parsed_is_refused(admin: Clients) -> None:
    """Selectors of labels and fields choose objects; a malformed one is 400 and chooses nothing.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.create("trainingruntimes", labelled(a="b"))
    listing, arguments = admin.custom.list_namespaced_custom_object, (*TRAINER, NAMESPACE, "trainingruntimes")
    for selector, count in (("a=b", 1), ("a!=b", 0), ("a in (b, c)", 1), ("a notin (b)", 0), ("a", 1), ("!a", 0)):
        assert len(listing(*arguments, label_selector=selector)["items"]) == count, selector
    assert len(listing(*arguments, field_selector="metadata.name=job")["items"]) == 1
    refused(400, "unable to parse requirement: found '' expected: '('", listing, *arguments, label_selector="a in")
    refused(400, "field label not supported", listing, *arguments, field_selector="spec.bogus=1")


def test_a_version_that_is_no_number_is_refused(admin: Clients) -> None:
    """A list from such a resourceVersion is 400, a watch 500.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    text = 'resourceVersion: Invalid value: "abc"'
    for query, expected in ((f"{JOBS}?resourceVersion=abc", 400), (f"{JOBS}?watch=1&resourceVersion=abc", 500)):
        status, found = admin.send("GET", query)
        assert (status, text in found["message"]) == (expected, True), found


def test_a_watch_begins_at_a_version(admin: Clients) -> None:
    """A watch reports the changes after the version that a list returned.

    Source (read): https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
    """
    listing, arguments = admin.custom.list_namespaced_custom_object, (*TRAINER, NAMESPACE, "trainingruntimes")
    admin.create("trainingruntimes", {**runtime(), "metadata": {"name": "before"}})
    version = listing(*arguments)["metadata"]["resourceVersion"]
    threading.Timer(0.1, admin.create, ("trainingruntimes", runtime())).start()
    for event in watch.Watch().stream(listing, *arguments, resource_version=version, timeout_seconds=20):
        assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "job")
        break


def test_the_log_of_a_pod_without_a_node_is_empty(admin: Clients) -> None:
    """The answer is 204 without a body; a log of the last 0 seconds is 422.

    Source (recorded): kube-apiserver 1.36.2 with Kubeflow Trainer 2.3.0's CRDs.
    """
    admin.core.create_namespaced_pod(NAMESPACE, pod())
    log = admin.core.read_namespaced_pod_log_with_http_info
    assert log("p", NAMESPACE)[1:2] == (204,)
    refused(422, 'PodLogOptions "p" is invalid: sinceSeconds: Invalid value: 0', log, "p", NAMESPACE, since_seconds=0)
