"""`python -m pipelines` is the same as `slipway`."""

from slipway.pipelines.cli import main

main()
