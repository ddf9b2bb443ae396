"""`python -m slipway.pipelines` is the same as `slipway`."""

from slipway.pipelines.cli.app import main

main()
