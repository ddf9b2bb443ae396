"""Runs at the start of each command of the tests: records the modules that its threads import, and large libraries.

Two threads that import modules which import each other get half of one: "cannot import name … from partially
initialized module". Commands therefore import before they start threads.
"""

import atexit
import os
import sys
import threading

# What gRPC and requests import with the first call; these import no modules that import others.
LEAVES = {"grpc._interceptor", "grpc._plugin_wrapping", "netrc"}
# These take seconds to import.
LARGE = {"google.cloud.aiplatform", "jax", "keras", "matplotlib", "tensorflow", "torch"}
FILE = os.environ.get("SLIPWAY_TEST_IMPORTS")


class Recorder:
    """Finds no module; records the name of each that is imported on a thread."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        thread = threading.current_thread()
        if thread is not threading.main_thread() and name not in LEAVES:
            record(f"{name} on {thread.name}")


def record(line):
    """Append a line to FILE."""
    with open(FILE, "a") as file:  # noqa: PTH123
        file.write(f"{line}\n")


def record_large():
    """Record the large libraries that were imported."""
    for name in LARGE & set(sys.modules):
        record(name)


if FILE:
    sys.meta_path.insert(0, Recorder)
    atexit.register(record_large)
