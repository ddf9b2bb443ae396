"""A stand-in for gcsfuse: the mount point becomes a link to the bucket's folder, or to all buckets' without a name."""

import json
import os
import sys
from pathlib import Path

HOME = Path(os.environ["SLIPWAY_TEST_MACHINE"])
MACHINE = json.loads((HOME / "machine.json").read_text())
# Flags with a value, as `gcsfuse --help` lists them; the others that are known have none.
VALUES = (
    "o",
    "file-mode",
    "dir-mode",
    "uid",
    "gid",
    "only-dir",
    "stat-cache-ttl",
    "type-cache-ttl",
    "rename-dir-limit",
)
VALUES += (
    "log-file",
    "log-format",
    "metadata-cache-ttl-secs",
    "kernel-list-cache-ttl-secs",
    "max-retry-sleep",
    "app-name",
)
PLAIN = ("implicit-dirs", "foreground", "debug_fuse", "enable-streaming-writes", "enable-streaming-writes=false")


def main():
    flags, arguments = {}, sys.argv[1:]
    while arguments and arguments[0].startswith("-"):
        name, equals, value = arguments.pop(0).lstrip("-").partition("=")
        if name not in (*VALUES, *PLAIN):
            sys.exit(f"gcsfuse: unknown flag: --{name}")
        if name in VALUES:
            value = value if equals else arguments.pop(0)
            flags[name] = f"{flags[name]},{value}" if name == "o" and name in flags else value
    *bucket, point = arguments
    if bucket and bucket[0] not in MACHINE["buckets"]:
        sys.exit(f"Error: mountWithStorageHandle: bucket {bucket[0]} doesn't exist")
    folder = Path(point)
    if not folder.is_dir() or any(folder.iterdir()):
        sys.exit(f"Error: mount point {point} is not an empty folder")
    folder.rmdir()
    folder.symlink_to(Path(MACHINE["mounted"], *bucket))
    (HOME / "mounts").mkdir(exist_ok=True)
    (HOME / "mounts" / point.replace("/", "%")).write_text(json.dumps(flags))


main()
