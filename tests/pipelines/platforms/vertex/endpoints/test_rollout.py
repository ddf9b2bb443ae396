"""`slipway deploy` and `slipway endpoints rollback` against the fake endpoints, with real servers behind them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import pytest

from slipway.components.deploy import rollout, service
from slipway.components.deploy.service import PREVIOUS, ROLLOUT, Traffic
from slipway.core.errors import UserError
from slipway.pipelines.platforms.vertex.endpoints.files import FILES


def moves(workspace, monkeypatch):
    """Record the traffic that every update of an endpoint sets."""
    found = []
    client = workspace.connection.serving.__class__
    update = client.update_endpoint

    def recorded(self, request, **options):
        found.append(dict(request["endpoint"].get("traffic_split", {})))
        return update(self, request=request, **options)

    monkeypatch.setattr(client, "update_endpoint", recorded)
    return found


def test_the_first_model_receives_all_traffic_and_the_next_one_step_by_step(workspace, clients, monkeypatch):
    workspace.register()
    first = workspace.deployed()
    assert workspace.traffic == {"digits@1": 100}
    assert "digits@1 has 100% of the traffic of digits" in first.stderr
    assert "unchanged" in workspace.deployed().stdout
    workspace.register()
    seen = moves(workspace, monkeypatch)
    stop = clients()
    result = workspace.deployed("--endpoint", "digits", "--json")
    answers = stop()
    assert workspace.traffic == {"digits@2": 100}
    assert workspace.versions == ["digits@1", "digits@2"], "to return to, the previous one stays"
    outcome = json.loads(result.stdout)
    old, new = workspace.endpoint.labels[PREVIOUS], outcome["deployed"]
    assert outcome["status"], outcome["previous"] == ("deployed", "digits@1")
    assert seen == [{new: 20, old: 80}, {new: 60, old: 40}, {new: 100}, {new: 100}]
    assert all(sum(split.values()) == 100 for split in seen)
    assert ROLLOUT not in workspace.endpoint.labels
    assert not [error for _, error in answers if error]
    assert {deployed for deployed, _ in answers} == {old, new}
    workspace.register()
    workspace.deployed()
    assert workspace.versions == ["digits@2", "digits@3"], "nothing returns to digits@1 any more"


@pytest.mark.parametrize(
    ("arguments", "check", "reason"),
    [
        (("--failing", "1"), {}, "requests failed, more than 0.01 of them: "),
        (("--seconds", "0.2"), {"p50_ms": 100}, "The p50 latency of "),
        (("--seconds", "0.2"), {"p99_ms": 100}, "The p99 latency of "),
    ],
    ids=["errors", "slow", "slow at times"],
)
def test_a_model_that_fails_a_check_is_withdrawn_at_once(workspace, clients, monkeypatch, arguments, check, reason):
    workspace.register()
    workspace.deployed()
    workspace.write(check=check)
    workspace.register(*arguments)
    seen = moves(workspace, monkeypatch)
    stop = clients()
    result = workspace.slipway("deploy", "--json")
    decided = len(seen)
    answers = stop()
    assert result.exit_code == 3, result.output
    outcome = json.loads(result.stdout)
    assert outcome["status"] == "rolled back"
    assert reason in outcome["reason"]
    old = workspace.endpoint.deployed_models[0].id
    assert seen == [{outcome["deployed"]: 20, old: 80}, {old: 100}], "one update returns all traffic"
    assert decided == 2
    assert workspace.traffic == {"digits@1": 100}
    assert workspace.versions == ["digits@1"]
    assert not [error for _, error in answers if error and "the stand-in fails" not in error]
    result = workspace.slipway("endpoints", "rollback")
    assert result.exit_code == 2
    assert "has no previous model to return to" in result.stderr


def test_a_model_is_checked_at_a_dedicated_endpoints_own_address(workspace):
    workspace.write(dedicated=True)
    workspace.register()
    outcome = json.loads(workspace.deployed("--json").stdout)
    assert ", 0 failed, p50" in outcome["results"]["100"]


def test_a_first_model_that_fails_is_withdrawn_and_nothing_serves(workspace):
    workspace.register("--failing", "1")
    result = workspace.slipway("deploy")
    assert result.exit_code == 3, result.output
    assert "no model has traffic now" in result.stderr
    assert workspace.versions == []


def test_rollback_is_one_update_and_repeated_it_changes_nothing(workspace, monkeypatch):
    for _ in range(2):
        workspace.register()
        workspace.deployed()
    seen = moves(workspace, monkeypatch)
    result = workspace.slipway("endpoints", "rollback", "--endpoint", "digits")
    assert result.exit_code == 0, result.output
    assert "digits@1 has all traffic again; digits@2 has none and stays deployed" in result.stderr
    assert workspace.traffic == {"digits@1": 100}
    assert len(seen) == 1
    assert workspace.versions == ["digits@1", "digits@2"]
    assert "to return to digits@2: slipway endpoints rollback --from 1" in result.stdout
    for repeated in (
        (
            "endpoints",
            "rollback",
        ),
        ("endpoints", "rollback", "--from", "2"),
    ):
        again = workspace.slipway(*repeated)
        assert (again.exit_code, "digits@1: unchanged" in again.stdout) == (0, True)
        assert workspace.traffic == {"digits@1": 100}
    for _ in range(2):
        assert workspace.slipway("endpoints", "rollback", "--from", "1").exit_code == 0
        assert workspace.traffic == {"digits@2": 100}
    unknown = workspace.slipway("endpoints", "rollback", "--from", "7")
    assert (unknown.exit_code, "Version 7 is not deployed" in unknown.stderr) == (2, False), unknown.stderr
    assert "version 7 is not deployed" in unknown.stderr


def test_of_two_rollbacks_at_once_one_moves_the_traffic(workspace, monkeypatch):
    for _ in range(2):
        workspace.register()
        workspace.deployed()
    since = datetime.now(UTC)
    assert workspace.slipway("endpoints", "rollback").exit_code == 0
    from slipway.pipelines.platforms.vertex.endpoints import operations

    assert operations.rollback(None, print, since).status == "unchanged"
    assert workspace.traffic == {"digits@1": 100}


def test_a_rollback_does_not_undo_what_another_command_has_just_deployed(workspace):
    from slipway.pipelines.platforms.vertex.endpoints import operations

    workspace.register()
    workspace.deployed()
    since = datetime.now(UTC)
    workspace.register()
    workspace.deployed()
    with pytest.raises(UserError, match=r"has just changed the endpoint .*: digits@2 has the traffic"):
        operations.rollback(None, print, since)
    assert operations.rollback(None, print, since, "2").status == "deployed", "the version is named"


def test_a_rollback_that_finds_its_work_done_does_not_claim_it(workspace, monkeypatch):
    from slipway.components.deploy.service import Endpoints

    for _ in range(2):
        workspace.register()
        workspace.deployed()
    read = Endpoints.existing

    def overtaken(self, endpoint_id):
        endpoint = read(self, endpoint_id)
        monkeypatch.setattr(Endpoints, "existing", read)
        assert "has all traffic again" in workspace.slipway("endpoints", "rollback").stderr
        return endpoint

    monkeypatch.setattr(Endpoints, "existing", overtaken)
    second = workspace.slipway("endpoints", "rollback")
    assert "digits@1 has all traffic; digits@2 has none and stays deployed" in second.stderr
    assert workspace.traffic == {"digits@1": 100}


def interrupted_at(workspace, monkeypatch, percent):
    """Start a rollout of the champion that is interrupted like by Ctrl-C at a step."""
    watch = rollout._Rollout.watch

    def killed(self, prober, at):
        if at == percent:
            raise KeyboardInterrupt
        return watch(self, prober, at)

    with monkeypatch.context() as patch:
        patch.setattr(rollout._Rollout, "watch", killed)
        result = workspace.slipway("deploy")
    assert result.exit_code == 130
    assert "To continue, repeat the command" in result.stderr


def test_an_interrupted_rollout_continues_where_it_stopped(workspace, monkeypatch):
    workspace.register()
    workspace.deployed()
    workspace.register()
    interrupted_at(workspace, monkeypatch, 60)
    assert workspace.traffic == {"digits@1": 40, "digits@2": 60}
    writes = workspace.google.world.writes["deployedModel"]
    workspace.register()
    refused = workspace.slipway("deploy")
    assert refused.exit_code == 2
    assert "the rollout of digits@2 on digits is not finished: it has 60% of the traffic." in refused.stderr
    assert "slipway deploy --endpoint digits --version 2" in refused.stderr
    seen = moves(workspace, monkeypatch)
    workspace.deployed("--version", "2")
    assert [max(split.values()) for split in seen] == [100, 100], "60% was set before"
    assert workspace.traffic == {"digits@2": 100}
    assert workspace.google.world.writes["deployedModel"] == writes, "nothing is deployed twice"


def test_a_first_rollout_that_was_interrupted_does_not_keep_the_next_version_waiting(workspace, monkeypatch):
    workspace.register()
    interrupted_at(workspace, monkeypatch, 100)
    assert ROLLOUT in workspace.endpoint.labels
    workspace.register()
    workspace.deployed()
    assert workspace.traffic == {"digits@2": 100}
    assert workspace.versions == ["digits@1", "digits@2"]


def test_an_interrupted_rollout_can_be_rolled_back(workspace, monkeypatch):
    workspace.register()
    workspace.deployed()
    workspace.register()
    interrupted_at(workspace, monkeypatch, 20)
    assert workspace.slipway("endpoints", "rollback").exit_code == 0
    assert workspace.traffic == {"digits@1": 100}
    assert ROLLOUT not in workspace.endpoint.labels
    workspace.deployed()
    assert workspace.traffic == {"digits@2": 100}


def test_a_rollout_ends_if_another_command_changes_the_traffic(workspace, monkeypatch):
    workspace.register()
    workspace.deployed()
    workspace.register()
    watch = rollout._Rollout.watch

    def meanwhile(self, prober, percent):
        workspace.slipway("endpoints", "rollback")
        return watch(self, prober, percent)

    monkeypatch.setattr(rollout._Rollout, "watch", meanwhile)
    result = workspace.slipway("deploy")
    assert result.exit_code == 2, result.output
    assert "another command or user has changed digits" in result.stderr
    assert workspace.traffic == {"digits@1": 100}


def give_by_hand(workspace, deployed):
    """Give a deployed model all traffic, as in the console: the labels stay."""
    endpoint = {"name": workspace.endpoint.name, "traffic_split": {deployed: 100}}
    workspace.connection.serving.update_endpoint(
        request={"endpoint": endpoint, "update_mask": {"paths": ["traffic_split"]}}
    )


def test_a_rollout_does_not_take_back_what_somebody_changes_by_hand(workspace, monkeypatch):
    workspace.register()
    workspace.deployed()
    workspace.register()
    watch = rollout._Rollout.watch

    def meanwhile(self, prober, percent):
        tally = watch(self, prober, percent)
        give_by_hand(workspace, workspace.endpoint.labels[PREVIOUS])
        return tally

    with monkeypatch.context() as patch:
        patch.setattr(rollout._Rollout, "watch", meanwhile)
        result = workspace.slipway("deploy")
    assert result.exit_code == 2, result.output
    assert "another command or user has changed digits" in result.stderr
    assert workspace.traffic == {"digits@1": 100}
    back = workspace.slipway("endpoints", "rollback")
    assert back.exit_code == 0, back.output
    assert "digits@1 has all traffic again; digits@2 has none" in back.stderr
    again = workspace.slipway("endpoints", "rollback", "--from", "1")
    assert "digits@2 has all traffic again; digits@1 has none" in again.stderr


def test_a_rollout_that_somebody_ended_by_hand_does_not_block_the_next_one(workspace, monkeypatch):
    for _ in range(2):
        workspace.register()
        workspace.deployed()
    workspace.register()
    third = workspace.endpoints.version("digits", "3")
    interrupted_at(workspace, monkeypatch, 20)
    deployment = FILES.read_one(None).deployment
    workspace.endpoints.deploy(deployment, third, "12345")  # as in the console
    give_by_hand(workspace, "12345")
    workspace.deployed()
    assert workspace.endpoint.labels[PREVIOUS] == "12345", "the model that somebody gave the traffic to"
    assert workspace.versions == ["digits@3", "digits@3"]


def test_a_write_with_an_old_etag_is_repeated_on_the_endpoint_as_it_is(workspace):
    workspace.register()
    workspace.deployed()
    (only,) = workspace.endpoint.deployed_models
    calls = []

    def wanted(endpoint):
        calls.append(endpoint.etag)
        if len(calls) == 1:  # another command is faster
            workspace.endpoints.move("slipway-digits", lambda one: Traffic(dict(one.traffic_split), rollout="7"))
        return Traffic({only.id: 100}, previous=only.id)

    workspace.endpoints.move("slipway-digits", wanted)
    assert len(set(calls)) == 2
    assert workspace.endpoint.labels[PREVIOUS] == only.id


def test_a_model_that_has_traffic_again_is_not_undeployed(workspace):
    workspace.register()
    workspace.deployed()
    (only,) = workspace.endpoint.deployed_models
    with pytest.raises(UserError, match="digits@1 has 100% of the traffic again, so it stays deployed"):
        workspace.endpoints.undeploy("slipway-digits", only.id, time.monotonic() + 10)
    assert workspace.traffic == {"digits@1": 100}


def test_traffic_that_does_not_sum_to_100_is_never_sent(workspace):
    workspace.register()
    workspace.deployed()
    with pytest.raises(ValueError, match="does not sum to 100"):
        workspace.endpoints.move("slipway-digits", lambda _: Traffic({"1": 40, "2": 59}))


def test_a_deployment_that_takes_longer_is_waited_for_by_the_next_command(workspace):
    workspace.register("--start-seconds", "2")
    result = workspace.slipway("deploy", "--timeout", "0.005")
    assert result.exit_code == 2, result.output
    assert "digits@1 is not deployed after 0.005 minutes; Vertex AI continues" in result.stderr
    assert "slipway deploy --endpoint digits --version 1, which waits for it and continues" in result.stderr
    workspace.deployed("--version", "1")
    assert workspace.versions == ["digits@1"]
    assert workspace.google.world.writes["deployedModel"] == 1


def lose_responses(workspace, monkeypatch, *names):
    """Lose the first response of these methods."""
    from google.api_core.exceptions import ServiceUnavailable

    client = workspace.connection.serving.__class__
    for name in names:
        call, lost = getattr(client, name), []

        def losing(self, *arguments, _call=call, _lost=lost, **options):
            answer = _call(self, *arguments, **options)
            if not _lost:
                _lost.append(True)
                raise ServiceUnavailable("the connection was lost")
            return answer

        monkeypatch.setattr(client, name, losing)


def test_a_rollback_whose_response_is_lost_does_not_return_to_the_bad_model(workspace, monkeypatch):
    for _ in range(2):
        workspace.register()
        workspace.deployed()
    lose_responses(workspace, monkeypatch, "update_endpoint")
    result = workspace.slipway("endpoints", "rollback")
    assert result.exit_code == 0, result.output
    assert "digits@1 has all traffic; digits@2 has none" in result.stderr
    assert workspace.traffic == {"digits@1": 100}


def test_lost_responses_deploy_nothing_twice(workspace, monkeypatch):
    lose_responses(workspace, monkeypatch, "create_endpoint", "deploy_model", "update_endpoint")
    workspace.register()
    workspace.deployed()
    assert workspace.versions == ["digits@1"]
    assert workspace.google.world.writes["deployedModel"] == 1
    assert len(service.Endpoints(workspace.connection).all()) == 1


def test_a_server_that_never_becomes_ready_is_explained(workspace):
    workspace.register("--exit", "3")
    result = workspace.slipway("deploy")
    assert result.exit_code == 2
    assert "The model's container ended instead of serving" in result.stderr
    assert workspace.versions == []
