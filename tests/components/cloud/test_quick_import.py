"""A client of Vertex AI without those of its other services, and then all of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from slipway.components.cloud.quick_import import SERVICES, TYPES, import_module

client = import_module(f"{SERVICES}.job_service").JobServiceClient
job = import_module(f"{TYPES}.custom_job").CustomJob(display_name="first")
assert f"{SERVICES}.dataset_service" not in sys.modules
assert f"{TYPES}.dataset" not in sys.modules
try:
    import_module(f"{SERVICES}.no_such_service")
except ModuleNotFoundError as error:
    assert error.name == f"{SERVICES}.no_such_service", error.name
else:
    raise AssertionError("a module that does not exist was imported")

from google.cloud import aiplatform_v1
from google.cloud.aiplatform_v1 import *
from google.cloud.aiplatform_v1.types import *

assert aiplatform_v1.JobServiceClient is client
assert aiplatform_v1.CustomJob is CustomJob is type(job)
assert DatasetServiceClient and Dataset
assert not hasattr(aiplatform_v1, "NoSuchClient")
"""


@pytest.mark.extension("google")
def test_a_client_is_imported_alone_and_whoever_asks_for_more_finds_everything() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
