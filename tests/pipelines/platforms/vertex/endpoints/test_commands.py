"""`slipway endpoints …`, the checks before a deployment, and the step `deploy`."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from slipway.components.deploy.component import deploy_model
from slipway.components.deploy.probes import Answer, Example, Tally
from slipway.components.deploy.settings import CheckSettings
from slipway.core.errors import UserError
from slipway.pipelines.hardware import prices
from slipway.pipelines.platforms.vertex.endpoints.files import FILES
from slipway.pipelines.terminal import console
from tests.fakes.errors import ServiceError
from tests.fakes.google import PROJECT, REGION
from tests.fakes.ready import BUCKET

QUOTA = "aiplatform.googleapis.com/custom_model_serving_cpus"


def test_apply_creates_and_changes_an_endpoint_and_diff_shows_what_it_would(workspace):
    assert "to create it: slipway endpoints apply digits" in workspace.slipway("endpoints", "diff").stdout
    workspace.google.faults.plan("CreateEndpoint", ServiceError(403, "The caller does not have permission"))
    refused = workspace.slipway("endpoints", "apply", "digits").stderr
    assert "may not apply the endpoint digits: aiplatform.endpoints.create is missing" in refused
    assert "created" in workspace.slipway("endpoints", "apply", "digits").stdout
    assert "unchanged: matches" in workspace.slipway("endpoints", "apply").stdout
    workspace.register()
    workspace.deployed()
    workspace.write(labels={"team": "a"}, max_replicas=2, min_replicas=2, machine="e2-standard-2")
    diff = workspace.slipway("endpoints", "diff").stdout
    for line in (
        "labels: not set → team=a",
        "min_replicas: 1 → 2",
        "max_replicas: 1 → 2",
        "machine: n1-standard-2 → e2-standard-2",
    ):
        assert line in diff
    applied = workspace.slipway("endpoints", "apply")
    assert applied.exit_code == 0, applied.output
    assert "changed labels: not set → team=a" in applied.stdout
    assert "slipway deploy --endpoint digits" in applied.stdout, "Vertex AI cannot change the machine"
    (model,) = workspace.endpoint.deployed_models
    assert model.dedicated_resources.min_replica_count == 2
    assert workspace.traffic == {"digits@1": 100}
    workspace.deployed()
    assert workspace.versions == ["digits@1", "digits@1"], "the same version, on the other machine"
    assert "unchanged: matches" in workspace.slipway("endpoints", "apply").stdout


def test_a_dedicated_endpoint_has_its_own_time_out(workspace):
    workspace.write(dedicated=True, request_timeout=30)
    assert workspace.slipway("endpoints", "apply").exit_code == 0
    workspace.write(dedicated=True, request_timeout=90)
    assert "request_timeout: 30 → 90" in workspace.slipway("endpoints", "diff").stdout
    assert workspace.slipway("endpoints", "apply").exit_code == 0
    assert workspace.endpoint.client_connection_config.inference_timeout.total_seconds() == 90
    workspace.write()
    assert "Vertex AI cannot change this: slipway endpoints delete" in workspace.slipway("endpoints", "apply").stdout


def test_list_shows_traffic_versions_replicas_and_what_a_day_costs(workspace, monkeypatch):
    monkeypatch.setattr(console, "_width", 150)
    for _ in range(2):
        workspace.register()
        workspace.deployed()
    text = workspace.slipway("endpoints", "list").stdout
    (serving,) = [line.split() for line in text.splitlines() if "digits@2" in line]
    assert serving[:6] == ["digits", "digits@2", "100%", "1", "(1", "to"]
    per_day = 24 * 2 * prices.table()["machines"]["n1-standard"][REGION][0]
    assert f"at least ${per_day:.2f}" in text
    now = json.loads(workspace.slipway("status", "--all", "--json").stdout)
    assert [(each["run_id"], each["steps"]) for each in now] == [("digits: digits@2", []), ("digits: digits@1", [])]
    assert now[0]["per_hour"] == pytest.approx(per_day / 24)
    assert "deployed" in workspace.slipway("status", "--all").stdout
    monkeypatch.setattr(prices, "_read", lambda _path: {"date": "", "machines": {}, "accelerators": {}})
    assert "24 machine hours" in workspace.slipway("endpoints", "list").stdout
    assert "digits@1 (previous)" in text
    workspace.write(price_per_hour=0.5)
    (found,) = json.loads(workspace.slipway("endpoints", "show", "digits", "--json").stdout)
    assert [model["cost_per_day"] for model in found["models"]] == [[12, 12], [12, 12]]
    workspace.write()
    (workspace.folder / "configs/endpoints/other.yaml").write_text("configuration: configs/digits.yaml\n")
    (workspace.folder / "configs/endpoints/digits.yaml").unlink()
    assert "no file; to delete it: slipway endpoints delete digits" in workspace.slipway("endpoints", "diff").stdout
    (workspace.folder / "configs/endpoints/other.yaml").unlink()
    assert "digits@2" in workspace.slipway("endpoints", "list", "-c", "configs/digits.yaml").stdout


def test_delete_asks_and_removes_everything(workspace):
    workspace.register()
    workspace.deployed()
    refused = workspace.slipway("endpoints", "delete", "digits")
    assert refused.exit_code == 2
    assert "deleting requires confirmation" in refused.stderr
    assert workspace.traffic == {"digits@1": 100}
    deleted = workspace.slipway("endpoints", "delete", "digits", "--yes")
    assert deleted.exit_code == 0, deleted.output
    assert workspace.endpoints.get("slipway-digits") is None
    again = workspace.slipway("endpoints", "delete", "digits", "--yes")
    assert (again.exit_code, again.stdout.split("\n")[:2]) == (0, ["digits: absent", "  nothing to delete"])
    never = workspace.slipway("endpoints", "delete", "something-else", "--yes")
    assert (never.exit_code, "there is no endpoint something-else: nothing to delete" in never.stderr) == (0, True)


def test_of_two_deletions_at_once_none_fails(workspace, monkeypatch):
    from slipway.components.deploy.service import Endpoints

    workspace.register()
    workspace.deployed()
    move = Endpoints.move

    def overtaken(self, endpoint_id, wanted):
        monkeypatch.setattr(Endpoints, "move", move)
        assert workspace.slipway("endpoints", "delete", "digits", "--yes").exit_code == 0
        return move(self, endpoint_id, wanted)

    monkeypatch.setattr(Endpoints, "move", overtaken)
    second = workspace.slipway("endpoints", "delete", "digits", "--yes")
    assert second.exit_code == 0, second.output
    assert workspace.endpoints.get("slipway-digits") is None


def test_what_vertex_ai_does_not_end_in_time_is_no_traceback(workspace):
    workspace.register()
    workspace.deployed()
    workspace.write(min_replicas=2, max_replicas=2, timeout=1e-9)
    result = workspace.slipway("endpoints", "apply")
    assert result.exit_code == 2, result.output
    assert "could not apply the endpoint digits in time; Vertex AI continues (projects/" in result.stderr


def test_what_cannot_be_deployed_is_refused_before_anything_costs_money(workspace):
    refused = workspace.slipway("deploy")
    assert "the Model Registry in europe-west4 has no model digits." in refused.stderr
    workspace.register()
    refused = workspace.slipway("deploy", "--version", "7")
    assert "there is no version of digits '7'." in refused.stderr
    workspace.google.world.quotas[PROJECT, REGION, QUOTA] = 3
    workspace.write(max_replicas=2)
    refused = workspace.slipway("deploy")
    assert refused.exit_code == 2
    assert (
        f"for 1 deployed model of up to 2 replicas, Vertex AI reserves 4 of {QUOTA}; the limit is 3" in refused.stderr
    )
    workspace.write(id="12345")
    refused = workspace.slipway("deploy")
    assert "there is no endpoint 12345" in refused.stderr
    workspace.write(check={"requests": None})
    refused = workspace.slipway("deploy")
    assert "has no test examples with which to check it" in refused.stderr
    assert workspace.endpoints.all() == []


def test_the_stored_examples_are_sent(workspace):
    stored = {"instances": [{"pixel": 5}], "values": [[0.1, 0.9]]}
    workspace.google.storage.write(BUCKET, "runs/digits-1/model/examples.json", json.dumps(stored).encode())
    workspace.register()
    workspace.write(check={"requests": None})
    result = workspace.slipway("deploy")
    assert result.exit_code == 3, "the stand-in's answers have no probabilities"
    assert "An answer has none of probabilities and prediction" in result.stderr


def test_the_step_deploys_the_champion_and_fails_if_it_is_withdrawn(workspace):
    workspace.register()
    place = json.dumps({"project": PROJECT, "region": REGION, "endpoints": dict(workspace.google.endpoints)})
    deployment = FILES.read_one(None).deployment.model_dump_json()

    registered = SimpleNamespace(metadata={"resourceName": "projects/p/models/digits@1", "champion": False})
    assert deploy_model.python_func(place, deployment, registered) == ""
    assert workspace.endpoints.all() == []
    registered.metadata["champion"] = True
    assert deploy_model.python_func(place, deployment, registered) == "digits@1"
    assert workspace.traffic == {"digits@1": 100}
    workspace.register("--failing", "1")
    registered.metadata["resourceName"] = "projects/p/models/digits@2"
    with pytest.raises(SystemExit):
        deploy_model.python_func(place, deployment, registered)
    assert workspace.traffic == {"digits@1": 100}


def tally(check, outcomes):
    """A tally of answers: seconds by the candidate, or an error."""
    found = Tally("7", CheckSettings(answers=5, **check))
    for one in outcomes:
        error = one if isinstance(one, str) else ""
        found.add(Example(None), Answer(0 if error else one, "7", None, error))
    return found


@pytest.mark.parametrize(
    ("check", "outcomes", "fault"),
    [
        ({}, [0.1] * 9 + ["down"], ""),
        ({}, [0.1] * 8 + ["down"] * 2, "2 of 10 requests failed"),
        ({"errors": 0}, [0.1] * 9 + ["down"], "1 of 10 requests failed"),
        ({"errors": 0}, ["down"], ""),
        ({"p50_ms": 150}, [0.1] * 6 + [0.2] * 4, ""),
        ({"p50_ms": 150}, [0.1] * 4 + [0.2] * 6, "The p50 latency of 10 answers is 200 ms, more than 150 ms."),
        ({"p99_ms": 150}, [0.1] * 9 + [0.2], ""),
        ({"p99_ms": 150}, [0.1] * 8 + [0.2] * 2, "The p99 latency of 10 answers is 200 ms, more than 150 ms."),
    ],
)
def test_what_decides_a_step(check, outcomes, fault):
    found = tally(check, outcomes).fault()
    assert found.startswith(fault)
    assert bool(found) == bool(fault)


@pytest.mark.parametrize(
    ("prediction", "wrong"),
    [
        ({"probabilities": [0.1, 0.905]}, ""),
        ({"probabilities": [0.2, 0.8]}, "An answer differs by 0.1 from the trained network's prediction"),
        ({"probabilities": [0.1, float("nan")]}, "An answer differs by nan"),
        ({"probabilities": [1.0]}, "An answer has none of"),
        ("text", "An answer has none of"),
        ({"prediction": "cat"}, "An answer has none of"),
        ({"probabilities": [[0.1, 0.9]]}, "An answer has none of"),
        ({"prediction": None}, "An answer has none of"),
    ],
)
def test_a_wrong_answer_decides_at_once(prediction, wrong):
    found = Tally("7", CheckSettings())
    found.add(Example(None, [0.1, 0.9]), Answer(0.1, "8", {"probabilities": [0.9, 0.1]}))
    assert found.fault() == "", "another model's answer"
    found.add(Example(None, [0.1, 0.9]), Answer(0.1, "7", prediction))
    assert found.fault().startswith(wrong)
    assert bool(found.fault()) == bool(wrong)


def test_a_user_error_in_a_file_is_one_of_the_command(workspace):
    workspace.write(machine="n1-standard-3")
    with pytest.raises(UserError):
        FILES.read_one(None)
    result = workspace.slipway("deploy")
    assert result.exit_code == 2
    assert "closest:  n1-standard-2\n" in result.stderr


def test_apply_waits_until_vertex_ai_has_changed_the_time_out_and_json_has_the_dns_name(workspace):
    workspace.write(dedicated=True, request_timeout=30)
    assert workspace.slipway("endpoints", "apply").exit_code == 0
    workspace.google.region.operations.looks = 20
    workspace.write(dedicated=True, request_timeout=90)
    assert workspace.slipway("endpoints", "apply").exit_code == 0
    assert workspace.endpoint.client_connection_config.inference_timeout.total_seconds() == 90
    (result,) = json.loads(workspace.slipway("endpoints", "show", "digits", "--json").stdout)
    assert result["dns"] == workspace.endpoint.dedicated_endpoint_dns != ""
