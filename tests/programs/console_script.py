"""A console script with the path and the arguments that follow, as pip writes `slipway`."""

import sys

from slipway.pipelines.__main__ import main

if __name__ == "__main__":
    del sys.argv[0]
    __package__ = None  # by which click tells a script from a module
    main()
