"""Update the list prices by which costs are estimated."""

from slipway.extensions import Command, Extension

EXTENSION = Extension(
    "prices",
    requires=("google",),
    commands=(
        Command(
            "", "prices", "slipway.pipelines.prices.command:prices",
            "Read Google Cloud's list prices, with the project of the configuration, and write the table that costs "
            "use.",
            ("slipway config prices -c my.yaml",),
            group="config",
        ),
    ),
)  # fmt: skip
