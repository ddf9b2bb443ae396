"""Vertex AI Model Registry: one version per run, and the alias champion."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.rules import label
from slipway.components.register_model.vertex import model_registry
from slipway.components.register_model.vertex.component import find_champion, register_version
from slipway.components.register_model.vertex.model_registry import Candidate, ModelRegistry
from slipway.components.register_model.vertex.registration import register_in_model_registry
from slipway.serving.settings import container_spec
from tests.fakes.google import NUMBER, PROJECT, REGION, FakeGoogle
from tests.fakes.ready import SERVING_IMAGE

CONTAINER = container_spec(SERVING_IMAGE, "houses:load")

MODEL = f"projects/{NUMBER}/locations/{REGION}/models/digits"
JOB = f"projects/{NUMBER}/locations/{REGION}/pipelineJobs/digits-1"


def candidate(run: int) -> Candidate:
    return Candidate(
        model="digits",
        run_id=f"digits-{run}",
        uri=f"gs://bucket/runs/digits-{run}/model",
        container=CONTAINER,
        job=JOB,
        metrics={"accuracy": 0.98, "loss": 0.06},
        labels={"team": "vision"},
    )


@pytest.fixture(autouse=True)
def short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_registry, "POLL_SECONDS", 0.01)


@pytest.fixture
def registry(ready_google: FakeGoogle) -> ModelRegistry:
    return ModelRegistry(Connection(PROJECT, REGION, ready_google.endpoints))


def versions(google: FakeGoogle) -> list[Any]:
    return google.region.models.models.get(MODEL, [])


def test_the_first_model_is_registered_with_where_it_comes_from(ready_google: FakeGoogle, registry: ModelRegistry):
    assert registry.champion("digits") is None
    version, note = registry.register(candidate(1), "")
    assert (version.name, version.champion, note) == (f"{MODEL}@1", True, None)
    (kept,) = versions(ready_google)
    assert kept.pipeline_job == JOB
    served = kept.container_spec
    assert (served.image_uri, served.predict_route, served.health_route) == (SERVING_IMAGE, "/predict", "/health")
    assert [port.container_port for port in served.ports] == [8080]
    assert {variable.name: variable.value for variable in served.env} == {"SLIPWAY_SERVE_MODULE": "houses:load"}
    assert kept.artifact_uri == "gs://bucket/runs/digits-1/model"
    assert dict(kept.labels) == {"team": "vision", "slipway-run": "digits-1"}
    assert kept.version_description == "accuracy 0.9800, loss 0.0600"
    assert set(kept.version_aliases) == {"default", "champion"}
    champion = registry.champion("digits")
    assert champion is not None
    assert champion.uri == kept.artifact_uri


def test_the_next_one_that_beats_it_takes_its_place(ready_google: FakeGoogle, registry: ModelRegistry):
    first, _ = registry.register(candidate(1), "")
    second, note = registry.register(candidate(2), first.name)
    assert (second.number, second.champion, note) == ("2", True, None)
    assert ["champion" in version.version_aliases for version in versions(ready_google)] == [False, True]


def test_a_repeated_step_registers_once(ready_google: FakeGoogle, registry: ModelRegistry):
    first, _ = registry.register(candidate(1), "")
    again, note = registry.register(candidate(1), "")
    assert again == first
    assert note is None
    assert len(versions(ready_google)) == 1


def test_the_alias_stays_where_another_was_promoted_since_the_verdict(
    ready_google: FakeGoogle, registry: ModelRegistry
):
    registry.register(candidate(1), "")
    version, note = registry.register(candidate(2), "")
    assert version.champion is False
    assert note is not None
    assert "compared with no champion, and version 1 has become champion since" in note
    assert ["champion" in kept.version_aliases for kept in versions(ready_google)] == [True, False]
    third, _ = registry.register(candidate(3), None)
    assert third.champion


@pytest.mark.parametrize("seed", range(6))
def test_whatever_answers_are_lost_each_run_has_one_version(
    ready_google: FakeGoogle, registry: ModelRegistry, seed: int
):
    print(f"seed {seed}")
    ready_google.faults._random.seed(seed)
    ready_google.faults.share = 0.3
    champion = ""
    for run in range(1, 5):
        version, note = registry.register(candidate(run), champion)
        assert note is None
        champion = version.name
    ready_google.faults.share = 0.0
    kept = versions(ready_google)
    assert [version.labels["slipway-run"] for version in kept] == [f"digits-{run}" for run in range(1, 5)]
    assert ["champion" in version.version_aliases for version in kept] == [False, False, False, True]
    assert ready_google.faults.struck.total() > 0


def test_a_rejected_model_is_not_registered(ready_google: FakeGoogle):
    connection = Connection(PROJECT, REGION, ready_google.endpoints)
    given = {"model": "digits", "container": CONTAINER, "labels": {}, "encryption_key": None}
    with pytest.raises(ValueError, match="reject"):
        register_in_model_registry(
            connection, given, run_id="r", job=JOB, verdict="reject", champion="", uri="gs://b/m", metrics={}
        )
    assert not versions(ready_google)


def test_the_steps_find_the_champion_and_take_its_place(ready_google: FakeGoogle, tmp_path: Path):
    place = json.dumps({"project": PROJECT, "region": REGION, "endpoints": dict(ready_google.endpoints)})
    assert tuple(find_champion.python_func(place, "digits")) == ("", "")
    given = {"model": "digits", "container": CONTAINER, "labels": {}, "encryption_key": None}
    registered = SimpleNamespace(uri="", metadata={})
    tuned = {"parameters": '{"train.momentum": 0.5}'}
    register_version.python_func(
        place=place,
        candidate=json.dumps(given),
        run_id="digits-1",
        job=JOB,
        verdict="promote",
        champion="",
        model=SimpleNamespace(uri="gs://bucket/runs/digits-1/model", metadata=tuned),
        metrics=SimpleNamespace(metadata={"accuracy": 0.98, "display_name": "metrics", "unchecked": "No minimum."}),
        registered=registered,
    )
    assert registered.metadata == {
        "resourceName": f"{MODEL}@1",
        "version": "1",
        "champion": True,
        "checked": False,
        "parameters": '{"train.momentum": 0.5}',
    }
    assert versions(ready_google)[0].version_description == "accuracy 0.9800. Tuned: train.momentum 0.5. No minimum."
    assert registered.uri.endswith(f"/v1/{MODEL}@1")
    assert tuple(find_champion.python_func(place, "digits")) == ("gs://bucket/runs/digits-1/model", f"{MODEL}@1")


def test_a_label_keeps_what_a_label_may_have():
    assert label("Digits.2026/Ü-" + "x" * 80) == "digits-2026---" + "x" * 49
