"""The artifact type of a registered version.

In a separate module: kfp imports it inside the step's container, where kfp.dsl has no decorators.
"""

from __future__ import annotations

from kfp.dsl import Artifact


class VertexModel(Artifact):
    """A version in Vertex AI Model Registry; Vertex AI shows the lineage of artifacts of this type."""

    schema_title = "google.VertexModel"
    schema_version = "0.0.1"
