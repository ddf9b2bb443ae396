"""`python -m slipway`, which is the console script `slipway`."""

from slipway.pipelines.__main__ import main

if __name__ == "__main__":
    main()
