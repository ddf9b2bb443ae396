"""Vertex AI Model Registry: register a run's model as the next version and manage the alias `champion`.

The model's name is its resource id, so a repeated upload of the first version conflicts instead of adding a model. Each
version has its run's id as a label: a repeated step finds the version that it has already registered.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipway.components.cloud.connection import Connection
from slipway.components.cloud.operations import POLL_SECONDS, completed
from slipway.components.cloud.retries import existing, is_conflict, is_transient, retried
from slipway.components.cloud.rules import label
from slipway.components.register_model.registry import CHAMPION, superseded
from slipway.core.formatting import interval, number
from slipway.core.values import JsonObject

RUN_LABEL = "slipway-run"
# Timeout of a model upload.
UPLOAD_SECONDS = 1800.0


@dataclass(frozen=True)
class RegisteredVersion:
    """A version: the model's resource name, its number, the URI of its files and whether it is the champion."""

    model: str
    number: str
    uri: str
    champion: bool

    @property
    def name(self) -> str:
        """The version's resource name."""
        return f"{self.model}@{self.number}"


@dataclass(frozen=True)
class Candidate:
    """A trained model to register.

    `uri` is its folder in Cloud Storage, `container` what serves it (ModelContainerSpec). `job` is the resource name of
    its pipeline job (lineage). `metrics` on the test split, their 95% confidence `intervals`, the `parameters` that a
    search has found and `note`, a sentence, go into the version's description.
    """

    model: str
    run_id: str
    uri: str
    container: JsonObject
    job: str
    metrics: Mapping[str, float]
    labels: Mapping[str, str]
    encryption_key: str | None = None
    note: str = ""
    intervals: Mapping[str, Sequence[float]] = field(default_factory=dict)
    parameters: JsonObject = field(default_factory=dict)


class ModelRegistry:
    """The registry of one project and region."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def champion(self, model: str) -> RegisteredVersion | None:
        """Return the version of `model` with the alias champion, or None."""
        return self._get(f"{self._name(model)}@{CHAMPION}")

    def register(self, candidate: Candidate, measured_against: str | None) -> tuple[RegisteredVersion, str | None]:
        """Register a run's model, and make it the champion unless the champion has changed since the verdict.

        Args:
            candidate: The model to register.
            measured_against: The resource name (with version) of the champion that the model was compared with; "" if
                there was none; None if no comparison was requested, in which case the alias always moves.

        Returns:
            The version, and the reason if it is not the champion.
        """
        version = self._version_of(candidate) or self._upload(candidate)
        current = self.champion(candidate.model)
        if current is not None and current.number == version.number:
            return current, None
        if measured_against is not None and (current.name if current else "") != measured_against:
            over = measured_against.rpartition("@")[2]
            return version, superseded(candidate.model, version.number, over, current.number if current else None)
        models = self._connection.models
        retried(lambda: models.merge_version_aliases(name=version.name, version_aliases=[CHAMPION]))
        return RegisteredVersion(version.model, version.number, version.uri, champion=True), None

    def _upload(self, candidate: Candidate) -> RegisteredVersion:
        """Upload as the next version; lost responses never lead to a second version of the run."""
        started = time.monotonic()
        operation = None
        while operation is None:
            try:
                operation = self._connection.models.upload_model(request=self._request(candidate)).operation
            except Exception as error:
                if not (is_transient(error) or is_conflict(error)) or time.monotonic() - started > UPLOAD_SECONDS:
                    raise
                for _ in range(4):  # the upload may still be running: wait for a version of this run
                    if (version := self._version_of(candidate)) is not None:
                        return version
                    time.sleep(POLL_SECONDS)
        completed(self._connection.models, operation, time.monotonic() + UPLOAD_SECONDS)
        version = self._version_of(candidate)
        if version is None:
            raise RuntimeError(f"{operation.name} is done, but {candidate.model} has no version of {candidate.run_id}")
        return version

    def _request(self, candidate: Candidate) -> JsonObject:
        model: JsonObject = {
            "display_name": candidate.model,
            "artifact_uri": candidate.uri,
            "container_spec": dict(candidate.container),
            "labels": {**candidate.labels, RUN_LABEL: label(candidate.run_id)},
            "version_description": _description(candidate),
            "pipeline_job": candidate.job,
        }
        if candidate.encryption_key:
            model["encryption_spec"] = {"kms_key_name": candidate.encryption_key}
        exists = self._get(self._name(candidate.model)) is not None
        target = {"parent_model": self._name(candidate.model)} if exists else {"model_id": candidate.model}
        return {"parent": self._connection.parent, "model": model, **target}

    def _version_of(self, candidate: Candidate) -> RegisteredVersion | None:
        """Return the version that this run has already registered, or None."""
        models = self._connection.models
        request = {
            "name": self._name(candidate.model),
            "filter": f'labels.{RUN_LABEL}="{label(candidate.run_id)}"',
        }
        versions = existing(lambda: list(models.list_model_versions(request)))
        return _version(versions[0]) if versions else None

    def _get(self, name: str) -> RegisteredVersion | None:
        model = existing(lambda: self._connection.models.get_model(name=name))
        return None if model is None else _version(model)

    def _name(self, model: str) -> str:
        return f"{self._connection.parent}/models/{model}"


def _description(candidate: Candidate) -> str:
    between = {name: f" (95%: {interval(low, high)})" for name, (low, high) in candidate.intervals.items()}
    text = ", ".join(f"{name} {number(value)}{between.get(name, '')}" for name, value in candidate.metrics.items())
    tuned = ", ".join(f"{name} {value}" for name, value in candidate.parameters.items())
    return ". ".join(part for part in (text, f"Tuned: {tuned}" if tuned else "", candidate.note) if part)


def _version(model: Any) -> RegisteredVersion:
    name = model.name.partition("@")[0]
    return RegisteredVersion(name, model.version_id, model.artifact_uri, CHAMPION in model.version_aliases)
