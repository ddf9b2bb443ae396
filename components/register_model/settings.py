"""Settings of the model registry."""

from __future__ import annotations

from pydantic import Field

from slipway.trainer.config import Settings


class RegisterSettings(Settings):
    """Where versions are registered: `registry` is the local registry's folder, `model` the model's name in it."""

    registry: str = "models"
    model: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9-]*$")
