"""Update the list prices by which costs are estimated."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "prices",
    requires=("google",),
    commands=(
        Command(
            "Prepare", "prices", "slipway.pipelines.prices.commands:prices",
            "The list prices by which costs are estimated.",
        ),
    ),
)  # fmt: skip
