#!/usr/bin/env python
"""A stand-in for Apache Beam's /opt/apache/beam/boot, which a machine without access to its registry cannot pull.

It accepts boot's arguments, receives the pipeline's options from the runner, and starts the same programs with the same
variables. It installs no staged packages: Slipway's pipelines have none. Where boot would create an environment of its
own or install Beam, it stops. Source (read): sdks/python/container/boot.go and piputil.go of apache/beam.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import NoReturn

POOL = ("apache_beam.runners.worker.worker_pool_main", "--service_port=50000")


def main() -> NoReturn:
    """Become a pool of workers, or one worker."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker_pool", action="store_true")
    for name in ("id", "provision_endpoint", "logging_endpoint", "artifact_endpoint", "control_endpoint"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--semi_persist_dir", default="/tmp")
    arguments = parser.parse_args()
    if arguments.worker_pool:
        become_python("-m", *POOL, f"--container_executable={__file__}")
    for name in ("id", "provision_endpoint"):
        if not getattr(arguments, name):
            sys.exit(f"No {name} provided.")
    if not os.environ.get("RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT"):
        sys.exit("boot would create an environment without the image's packages")
    if subprocess.run(["python", "-m", "pip", "show", "--quiet", "apache-beam"], check=False).returncode:
        sys.exit("boot would install Apache Beam, since pip does not find it")
    os.environ |= variables(arguments)
    become_python("-m", "apache_beam.runners.worker.sdk_worker_main")


def variables(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the variables of a worker, with what the runner's provision service says."""
    import grpc
    from apache_beam.portability.api import beam_provision_api_pb2, beam_provision_api_pb2_grpc, endpoints_pb2
    from google.protobuf import json_format, text_format

    with grpc.insecure_channel(arguments.provision_endpoint) as channel:
        service = beam_provision_api_pb2_grpc.ProvisionServiceStub(channel)
        request = beam_provision_api_pb2.GetProvisionInfoRequest()
        info = service.GetProvisionInfo(request, metadata=[("worker_id", arguments.id)], timeout=180).info
    found = {
        "WORKER_ID": arguments.id,
        "PIPELINE_OPTIONS": json_format.MessageToJson(info.pipeline_options),
        "SEMI_PERSISTENT_DIRECTORY": arguments.semi_persist_dir,
        "RUNNER_CAPABILITIES": " ".join(info.runner_capabilities),
    }
    for name in ("logging", "control"):
        address = getattr(info, f"{name}_endpoint").url or getattr(arguments, f"{name}_endpoint")
        descriptor = endpoints_pb2.ApiServiceDescriptor(url=address)
        found[f"{name.upper()}_API_SERVICE_DESCRIPTOR"] = text_format.MessageToString(descriptor)
    return found


def become_python(*arguments: str) -> NoReturn:
    """Replace this process by another one of the image's Python."""
    os.execvp("python", ["python", *arguments])


if __name__ == "__main__":
    main()
