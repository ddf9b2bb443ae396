"""Run a user's script, which may start steps: `python -m tests.programs.script FILE`."""

import runpy
import sys

if __name__ == "__main__":
    runpy.run_path(sys.argv[1], run_name="__main__")
