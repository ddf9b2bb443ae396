"""Start imitations of the cloud's services in this process: `python -m tests.fakes serve FOLDER`.

It prints the environment that points the `slipway` command of another process to them, and serves until SIGTERM:

    python -m tests.fakes serve /tmp/services &
    . /tmp/services/environment.sh; cat /tmp/services/vertex.yaml >> slipway.yaml; slipway doctor --target vertex
    curl $SLIPWAY_TEST_CONTROL/faults -d '{"method": "CreatePipelineJob", "fault": 503, "times": 2}'

FOLDER has the files of the sections vertex, tpu, kubeflow and track. `tests/fakes/control.py` has all that can be asked
for at the control address.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from pathlib import Path

# Model servers are started beside gRPC's threads, whose fork handlers now and then block the new process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

from tests.fakes.control import Control
from tests.fakes.services import KINDS, Services

CONTROL_VARIABLE = "SLIPWAY_TEST_CONTROL"


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    options = _options()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with Services(options.folder.absolute(), options.only, options.bare) as services, Control(services) as control:
        environment = {**services.environment, CONTROL_VARIABLE: control.url}
        services.write(environment)
        if options.json:
            print(json.dumps({"environment": environment, "sections": services.sections}), flush=True)
        else:
            print((services.folder / "environment.sh").read_text(), end="", flush=True)
        ended.wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fakes")
    serve = parser.add_subparsers(required=True).add_parser("serve", help="start services until SIGTERM")
    serve.add_argument("folder", type=Path, metavar="FOLDER", help="for their files")
    serve.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, help="start only these")
    serve.add_argument("--bare", action="store_true", help="a project without bucket, accounts and roles")
    serve.add_argument("--json", action="store_true", help="print environment and sections as one line of JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
