"""Settings of the augmentation of training images (`train.augment`)."""

from __future__ import annotations

from pydantic import Field, NonNegativeFloat, NonNegativeInt

from slipway.trainer.hooks import Function
from slipway.trainer.settings import Settings


class AugmentSettings(Settings):
    """Random augmentation of training images, drawn for each image in each step; everything is off by default."""

    flip: bool = Field(default=False, description="Mirror half of the images horizontally.")
    shift: NonNegativeInt = Field(
        default=0,
        description="Largest shift in pixels, vertically and horizontally; uncovered pixels are black.",
    )
    brightness: float = Field(
        default=0.0, ge=0, le=1, description="Largest value added to or subtracted from all pixels (pixels: 0 to 1)."
    )
    contrast: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Contrast c multiplies each pixel's distance from the image's mean by a factor between 1 - c and "
        "1 + c.",
    )

    crop: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Largest fraction of height and width that a random crop removes. What is left is resized to the "
        "full size.",
    )
    rotation: float = Field(
        default=0.0, ge=0, le=180, description="Largest rotation in degrees, either way; uncovered pixels are black."
    )
    erase: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Largest height and width of a black rectangle at a random place, as fractions of the image's.",
    )
    mixup: NonNegativeFloat | None = Field(
        default=0.0,
        description="Parameter alpha of the Beta distribution of mixup's factors, such as 0.2: each image and its loss "
        "are blended with another image of the batch and the loss for its label. 0 or null: off. Not for regression, "
        "and only where the image is the network's one input.",
    )

    function: Function | None = Field(
        default=None,
        description="Custom augmentation after the other ones, as module:function: (images, seed) -> images, float32 "
        "in [0, 1], [batch, height, width, channels]; `seed` is for keras.random.",
    )

    @property
    def is_on(self) -> bool:
        """Whether any augmentation is on."""
        return any(self.model_dump().values())
