"""`python -m pipelines` is the same as `slipway`."""

from pipelines.cli import main

main()
