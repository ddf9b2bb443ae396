"""`python -m slipway.trainer` with a fault, which is a function of tests.trainer.faults."""

import runpy
import sys

from tests.trainer import faults

if __name__ == "__main__":
    getattr(faults, sys.argv.pop(1))()
    runpy.run_module("slipway.trainer", run_name="__main__", alter_sys=True)
