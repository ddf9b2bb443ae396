"""MetadataService: the contexts of experiments and of pipeline runs."""

from __future__ import annotations

import re
from typing import Any

from google.cloud import aiplatform_v1 as vertex

from tests.fakes.errors import ServiceError, not_found
from tests.fakes.vertex.shapes import invalid, project_of
from tests.fakes.world import World

STORE = "/metadataStores/default"
CONTEXT_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,127}")


class MetadataService:
    """Contexts by name; the store exists once a pipeline has run."""

    def __init__(self, world: World, region: str) -> None:
        self.world = world
        self.region = region
        self.contexts: dict[str, vertex.Context] = {}

    def methods(self) -> dict[str, tuple[Any, Any]]:
        return {
            "CreateContext": (vertex.CreateContextRequest, self._create),
            "AddContextChildren": (vertex.AddContextChildrenRequest, self._add_children),
        }

    def add(self, name: str, schema: str, parent: str | None = None) -> vertex.Context:
        """Return the context of a pipeline or of its run; create it if it does not exist."""
        made = vertex.Context(name=name, display_name=name.rpartition("/")[2], schema_title=schema)
        made.schema_version, made.parent_contexts = "0.0.1", [parent] if parent else []
        return self.contexts.setdefault(name, made)

    def _create(self, request: vertex.CreateContextRequest, caller: str) -> vertex.Context:
        place = self._place(request.parent.removesuffix(STORE), caller)
        if not self.contexts:
            raise not_found(f"The metadata store {request.parent}")
        if not CONTEXT_ID.fullmatch(request.context_id) or not request.context.schema_title:
            raise invalid(f"Invalid context {request.context_id!r}.")
        name = f"{place}/contexts/{request.context_id}"
        with self.world.lock:
            if name in self.contexts:
                raise ServiceError(409, f"Context {name} already exists.")
            made = vertex.Context(request.context)
            made.name = name
            self.contexts[name] = made
        return made

    def _add_children(
        self, request: vertex.AddContextChildrenRequest, caller: str
    ) -> vertex.AddContextChildrenResponse:
        parent, _, identity = request.context.partition(f"{STORE}/contexts/")
        name = f"{self._place(parent, caller)}/contexts/{identity}"
        for wanted in (name, *request.child_contexts):
            if wanted not in self.contexts:
                raise not_found(f"The context {wanted}")
        with self.world.lock:
            for child in request.child_contexts:
                parents = self.contexts[child].parent_contexts
                if name not in parents:
                    parents.append(name)
        return vertex.AddContextChildrenResponse()

    def _place(self, parent: str, caller: str) -> str:
        project = project_of(self.world, parent, self.region)
        self.world.require(caller, "aiplatform.contexts.create", f"projects/{project.id}")
        return f"projects/{project.number}/locations/{self.region}{STORE}"
