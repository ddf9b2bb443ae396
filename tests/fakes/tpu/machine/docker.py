"""A stand-in for docker on a TPU VM: containers are processes, of images that the machine's account may pull.

It refuses what a TPU VM's docker would refuse or what would fail in the container: options it does not know, images
without a digest, a pull without `docker login`, no access to the TPU, and a mounted bucket that the image's user cannot
write to.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ["SLIPWAY_TEST_MACHINE"])
MACHINE = json.loads((HOME / "machine.json").read_text())
CONTAINERS = HOME / "containers"
# Options of `docker run`, and whether they have a value.
OPTIONS = {
    **dict.fromkeys(("--rm", "--privileged", "--init"), False),
    **dict.fromkeys(
        ("--name", "--net", "--network", "--user", "-u", "-v", "--volume", "-e", "--env", "--env-file"), True
    ),
    **dict.fromkeys(
        ("--shm-size", "--stop-timeout", "--log-driver", "--pull", "--entrypoint", "--workdir", "-w"), True
    ),
}
ALIASES = {"--network": "--net", "-u": "--user", "--volume": "-v", "--env": "-e", "-w": "--workdir"}


def fail(code, message):
    print(message, file=sys.stderr)
    sys.exit(code)


def registry(image):
    return image.partition("/")[0]


def check_image(image):
    if "@sha256:" not in image:
        fail(125, f"docker: this test pulls images by digest only, not {image}.")
    logins = json.loads((HOME / "docker.json").read_text()) if (HOME / "docker.json").exists() else {}
    if registry(image) not in logins:
        fail(
            125,
            f"docker: Error response from daemon: Head https://{registry(image)}/v2/: denied: Unauthenticated request. "
            'Unauthenticated requests do not have permission "artifactregistry.repositories.downloadArtifacts" on '
            "resource (or it may not exist).",
        )
    if image not in MACHINE["images"]:
        fail(
            125,
            f"docker: Error response from daemon: Head https://{registry(image)}/v2/…: denied: Permission "
            '"artifactregistry.repositories.downloadArtifacts" denied on resource (or it may not exist).',
        )


def login(arguments):
    options, rest = parse(arguments, {"-u": True, "-p": True, "--password-stdin": False})
    password = sys.stdin.read().strip() if "--password-stdin" in options else options.get("-p", [""])[0]
    user = (options.get("--user") or [""])[0]
    if user != "oauth2accesstoken" or password != f"fake.{MACHINE['email']}":
        fail(1, "Error response from daemon: Get https://…/v2/: denied: authentication failed")
    (HOME / "docker.json").write_text(json.dumps({rest[0].removeprefix("https://").rstrip("/"): user}))
    print("Login Succeeded")


def parse(arguments, known):
    options = {}
    while arguments and arguments[0].startswith("-"):
        name, equals, value = arguments.pop(0).partition("=")
        if name not in known:
            fail(125, f"unknown flag: {name}")
        if known[name]:
            options.setdefault(ALIASES.get(name, name), []).append(value if equals else arguments.pop(0))
        else:
            options[name] = ["true"]
    return options, arguments


def run(arguments):
    options, rest = parse(arguments, OPTIONS)
    image, command = rest[0], [*options.get("--entrypoint", []), *rest[1:]]
    check_image(image)
    mounts = {}
    for mount in options.get("-v", []):
        source, target = mount.split(":")[:2]
        mounts[target] = os.path.realpath(source)
        check_mount(source, (options.get("--user") or [MACHINE["images"][image]])[0])
    if "--privileged" not in options or options.get("--net") != ["host"]:
        fail(1, "RuntimeError: No TPU devices were found: docker run needs --privileged and --net=host.")
    environment = {}
    for path in options.get("--env-file", []):
        environment |= dict(line.split("=", 1) for line in Path(path).read_text().splitlines() if "=" in line)
    for variable in options.get("-e", []):
        name, equals, value = variable.partition("=")
        if equals or name in os.environ:
            environment[name] = value if equals else os.environ[name]
    kept = ("SLIPWAY_TEST_HOST", "SLIPWAY_TEST_REDIRECTS", "PYTHONPATH", "SSL_CERT_FILE", "TMPDIR", "HOME")
    environment = {
        "PATH": MACHINE["path"],
        **{name: os.environ[name] for name in kept},
        "SLIPWAY_TEST_MOUNTS": json.dumps(mounts),
        **MACHINE["containers"],
        **environment,
    }
    environment.pop("SLIPWAY_ACCELERATORS", None)  # this machine's processors stand in for the chips
    if command and command[0] in ("python", "python3"):
        command[0] = MACHINE["python"]
    child = subprocess.Popen(command, env=environment, cwd=HOME / "root")
    name = (options.get("--name") or [str(child.pid)])[0]
    CONTAINERS.mkdir(exist_ok=True)
    (CONTAINERS / name).write_text(str(child.pid))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: child.send_signal(number))
    code = child.wait()
    (CONTAINERS / name).unlink(missing_ok=True)
    sys.exit(code if code >= 0 else 128 - code)


def check_mount(source, user):
    """A bucket that root has mounted is only its own, unless it was mounted for others.

    Source: https://github.com/GoogleCloudPlatform/gcsfuse/blob/master/docs/mounting.md#access-permissions.
    """
    if user.partition(":")[0] in ("0", "root"):
        return
    for record in (HOME / "mounts").glob(f"{source.replace('/', '%')}*"):
        flags = json.loads(record.read_text())
        writable = flags.get("uid") == user.partition(":")[0] or all(
            int(flags.get(name, "0"), 8) & 0o2 for name in ("file-mode", "dir-mode")
        )
        if "allow_other" not in flags.get("o", "") or not writable:
            fail(1, f"PermissionError: [Errno 13] Permission denied: '/gcs' (user {user}, mounted with {flags})")


def stop(arguments, grace):
    """Send SIGTERM, and SIGKILL after `grace` seconds."""
    options, names = parse(arguments, {"-t": True, "--time": True, "-f": False, "--force": False})
    grace = float((options.get("-t") or options.get("--time") or [grace])[0])
    for name in names:
        send(name, signal.SIGTERM if grace else signal.SIGKILL)
        end = time.monotonic() + grace
        while (CONTAINERS / name).exists():
            if time.monotonic() > end:
                send(name, signal.SIGKILL)
            time.sleep(0.02)
        print(name)


def kill(arguments):
    options, names = parse(arguments, {"-s": True, "--signal": True})
    number = (options.get("-s") or options.get("--signal") or ["KILL"])[0].removeprefix("SIG")
    for name in names:
        send(name, signal.Signals[f"SIG{number}"])
        print(name)


def send(name, number):
    path = CONTAINERS / name
    if not path.exists():
        fail(1, f"Error response from daemon: No such container: {name}")
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(int(path.read_text()), number)


def main():
    command, *arguments = sys.argv[1:]
    if command == "login":
        login(arguments)
    elif command == "pull":
        check_image(parse(arguments, {"-q": False, "--quiet": False})[1][0])
    elif command == "run":
        run(arguments)
    elif command == "stop":
        stop(arguments, 10)
    elif command == "rm":
        stop(arguments, 0)
    elif command == "kill":
        kill(arguments)
    else:
        fail(1, f"docker: '{command}' is not a docker command.")


main()
