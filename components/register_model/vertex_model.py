"""The artifact of a registered version.

In a module of its own: kfp imports it inside the step's container, where kfp.dsl has no decorators.
"""

from __future__ import annotations

from kfp.dsl import Artifact


class VertexModel(Artifact):
    """A version in Vertex AI's Model Registry, of the type by which Vertex AI shows its lineage."""

    schema_title = "google.VertexModel"
    schema_version = "0.0.1"
