"""ModelService: models, versions and aliases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from google.cloud import aiplatform_v1 as vertex

from tests.fakes.errors import ServiceError
from tests.fakes.filters import matcher
from tests.fakes.paging import page_of
from tests.fakes.vertex.operations import Operations
from tests.fakes.vertex.shapes import (
    IMAGE,
    check_display_name,
    check_key,
    check_labels,
    check_object,
    invalid,
    project_of,
    resource_of,
)
from tests.fakes.world import World

# UploadModelRequest.model_id
MODEL_ID = re.compile(r"[a-z_][a-z0-9_-]{0,62}")
ALIAS = re.compile(r"[a-z][a-zA-Z0-9-]{0,126}[a-z0-9]")


class ModelService:
    """Versions by model, the oldest first."""

    def __init__(self, world: World, region: str, operations: Operations) -> None:
        self.world = world
        self.region = region
        self.models: dict[str, list[vertex.Model]] = {}
        self._operations = operations

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "UploadModel": (vertex.UploadModelRequest, self._upload),
            "GetModel": (vertex.GetModelRequest, self._get),
            "ListModels": (vertex.ListModelsRequest, self._list),
            "ListModelVersions": (vertex.ListModelVersionsRequest, self._list_versions),
            "MergeVersionAliases": (vertex.MergeVersionAliasesRequest, self._merge),
        }

    def _upload(self, request: vertex.UploadModelRequest, caller: str) -> Any:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.models.upload", f"projects/{project.id}")
        model = request.model
        check_display_name(model.display_name)
        check_labels(model.labels)
        check_key(self.world, project, model.encryption_spec.kms_key_name, self.region)
        check_object(model.artifact_uri, "artifact_uri")
        if not IMAGE.fullmatch(model.container_spec.image_uri):
            raise invalid(f"Invalid container image URI: {model.container_spec.image_uri!r}.")
        for alias in model.version_aliases:
            _check_alias(alias)
        parent = f"projects/{project.number}/locations/{self.region}"
        identity = request.parent_model.rpartition("/")[2] or request.model_id or str(self.world.number())
        if not MODEL_ID.fullmatch(identity):
            raise invalid(f"Invalid model_id {identity!r}: it must match [a-z_][a-z0-9_-]{{0,62}}.")
        name = f"{parent}/models/{identity}"
        if request.parent_model and name not in self.models:
            raise ServiceError(404, f"The model {request.parent_model} does not exist.")
        if not request.parent_model and name in self.models:
            raise ServiceError(409, f"The model {name} already exists.")
        return self._operations.start(name, lambda: self._add(name, model, first=not request.parent_model))

    def _add(self, name: str, model: vertex.Model, *, first: bool) -> vertex.UploadModelResponse:
        with self.world.lock:
            if first and name in self.models:
                raise ServiceError(409, f"The model {name} already exists.")
            versions = self.models.setdefault(name, [])
            added = vertex.Model(model)
            added.name, added.version_id = name, str(len(versions) + 1)
            # Of models with a custom container, as in the JSON of GoogleCloudPlatform/data-science-on-gcp#154.
            added.supported_deployment_resources_types = [vertex.Model.DeploymentResourcesType.DEDICATED_RESOURCES]
            added.create_time = added.version_create_time = datetime.now(UTC)
            wanted = [*model.version_aliases, *([] if versions else ["default"])]
            added.version_aliases = []
            versions.append(added)
            self._move(name, added, wanted)
            self.world.writes["modelVersion"] += 1
            return vertex.UploadModelResponse(model=name, model_version_id=added.version_id)

    def _get(self, request: vertex.GetModelRequest, caller: str) -> vertex.Model:
        return self.version(request.name, caller, "aiplatform.models.get")

    def _list(self, request: vertex.ListModelsRequest, caller: str) -> vertex.ListModelsResponse:
        project = project_of(self.world, request.parent, self.region)
        self.world.require(caller, "aiplatform.models.list", f"projects/{project.id}")
        passes = matcher(request.filter)
        found = [versions[-1] for versions in self.models.values() if passes(_fields(versions[-1]))]
        page, following = page_of(found, request.page_size, request.page_token)
        return vertex.ListModelsResponse(models=page, next_page_token=following)

    def _list_versions(self, request: vertex.ListModelVersionsRequest, caller: str) -> vertex.ListModelVersionsResponse:
        self._operations.pass_time()
        name = self.version(request.name, caller, "aiplatform.models.list").name
        passes = matcher(request.filter)
        found = [version for version in reversed(self.models[name]) if passes(_fields(version))]
        page, following = page_of(found, request.page_size, request.page_token)
        return vertex.ListModelVersionsResponse(models=page, next_page_token=following)

    def _merge(self, request: vertex.MergeVersionAliasesRequest, caller: str) -> vertex.Model:
        version = self.version(request.name, caller, "aiplatform.models.update")
        for alias in request.version_aliases:
            _check_alias(alias.removeprefix("-"))
        with self.world.lock:
            removed = {alias[1:] for alias in request.version_aliases if alias.startswith("-")}
            version.version_aliases = [alias for alias in version.version_aliases if alias not in removed]
            self._move(version.name, version, [a for a in request.version_aliases if not a.startswith("-")])
            self.world.writes["alias"] += 1
        return version

    def _move(self, name: str, to: vertex.Model, aliases: list[str]) -> None:
        """Set a version's aliases; an alias belongs to one version at a time."""
        for version in self.models[name]:
            version.version_aliases = [alias for alias in version.version_aliases if alias not in aliases]
        to.version_aliases = [*to.version_aliases, *aliases]

    def version(self, name: str, caller: str, permission: str) -> vertex.Model:
        """Return a version by its number or alias after @; by default the default version."""
        base, _, wanted = name.partition("@")
        _, full = resource_of(self.world, self.region, base, "models", caller, permission)
        for version in self.models.get(full, []):
            if (wanted or "default") in (version.version_id, *version.version_aliases):
                return version
        raise ServiceError(404, f"The model {name} does not exist.")


def _check_alias(alias: str) -> None:
    if not ALIAS.fullmatch(alias):
        raise invalid(f"Invalid version alias {alias!r}.")


def _fields(model: vertex.Model) -> Mapping[str, Any]:
    """Return a model's fields for filters."""
    return {"display_name": model.display_name, "labels": dict(model.labels), "model": model.name.rpartition("/")[2]}
