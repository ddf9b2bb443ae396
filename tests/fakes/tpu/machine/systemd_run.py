"""A stand-in for systemd-run: a unit's main process is told of a shutdown, and started again if it was killed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["SLIPWAY_TEST_MACHINE"])
PROPERTIES = ("After", "KillMode", "TimeoutStopSec", "Restart", "RestartSec")


def main():
    unit, properties, arguments = "", {}, sys.argv[1:]
    while arguments and arguments[0].startswith("--"):
        name, _, value = arguments.pop(0).removeprefix("--").partition("=")
        if name == "unit":
            unit = value
        elif name == "property" and value.partition("=")[0] in PROPERTIES:
            properties[value.partition("=")[0]] = value.partition("=")[2]
        elif name != "collect":
            sys.exit(f"systemd-run: unrecognized option '--{name}={value}'")
    units = HOME / "units"
    units.mkdir(exist_ok=True)
    if (units / unit).exists():
        sys.exit(f"Failed to start transient service unit: Unit {unit}.service was already loaded.")
    if os.fork():
        return
    os.setsid()

    def record():  # before the program begins, as systemd knows its units
        (units / unit).write_text(json.dumps({"pid": os.getpid(), **properties}))

    while True:
        child = subprocess.Popen(arguments, cwd="/", start_new_session=True, preexec_fn=record)
        if child.wait() == 0 or properties.get("Restart") != "on-failure" or (HOME / "shutdown").exists():
            break
        time.sleep(0.1)
    (units / unit).unlink()


main()
