"""Settings of the model registry."""

from __future__ import annotations

from pydantic import Field

from slipway.trainer.config import Settings


class RegisterSettings(Settings):
    """Where model versions are registered."""

    registry: str = Field(
        default="models",
        description="Folder of the local registry. Not used on Vertex AI, which has its own Model Registry.",
    )
    model: str | None = Field(
        default=None,
        pattern=r"^[a-z][a-z0-9-]*$",
        description="Name of the model in the registry; null: the name of the configuration.",
    )
