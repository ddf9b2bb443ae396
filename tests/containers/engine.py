"""Containers for tests on one machine, without a Docker engine or a remote registry.

A registry on loopback, buildah to build, podman's service for the Docker API, and a base image: the public one if it is
available, otherwise one made by debootstrap. All files are in one temporary folder.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from slipway.components.build_image.settings import BASE
from tests.ports import free_port

PROGRAMS = ("buildah", "podman", "crun", "docker-registry", "debootstrap", "unshare")
PACKAGES = "python3-minimal,python3-venv,ca-certificates"
# Where Google's images and a project's own are on Vertex AI; here, the registry on loopback stands for them.
REGISTRIES = ("gcr.io", "europe-west4-docker.pkg.dev", "docker.io/apache")
FREE_BYTES = 15 * 2**30
# No cgroups, the host's network, and no limits above the caller's: so containers run inside a sandbox, too.
CONTAINERS_CONF = """[containers]
cgroups = "disabled"
netns = "host"
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
runtime = "crun"
"""


def missing(folder: Path) -> str | None:
    """Return why container tests cannot run here and how to fix it; None if they can."""
    if platform.system() != "Linux" or os.getuid() != 0:
        return "container tests need Linux and root (mount namespaces)"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"container tests need {', '.join(absent)}: apt-get install {' '.join(absent)}"
    free = shutil.disk_usage(folder).free
    if free < FREE_BYTES:
        return f"container tests need {FREE_BYTES / 2**30:.0f} GiB in {folder}; {free / 2**30:.0f} are free"
    return None


class Engine:
    """A context manager. `environment` makes buildah, podman and the Docker API's clients use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.registry = f"localhost:{self.port}"
        self.base = f"{self.registry}/base:bookworm"
        self.storage_driver = "overlay" if _overlay_works(folder) else "vfs"
        self._processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "BUILDAH_ISOLATION": "chroot",
            "CONTAINERS_CONF": self._file("containers.conf", CONTAINERS_CONF),
            "CONTAINERS_STORAGE_CONF": self._file(
                "storage.conf",
                f'[storage]\ndriver = "{self.storage_driver}"\n'
                f'graphroot = "{folder}/images"\nrunroot = "{folder}/state"\n',
            ),
            "CONTAINERS_REGISTRIES_CONF": self._file(
                "registries.conf",
                "unqualified-search-registries = []\n"
                + "".join(
                    f'[[registry]]\nprefix = "{prefix}"\nlocation = "{self.registry}"\ninsecure = true\n'
                    for prefix in (self.registry, *REGISTRIES)
                ),
            ),
            "DOCKER_HOST": f"unix://{folder}/docker.sock",
        }

    def __enter__(self) -> Engine:
        try:
            self._start_registry()
            self._start_service()
            self._make_base()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(timeout=180)
        # Images' layers are mounted while a build works in them.
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (place := line.split()[1]).startswith(str(self.folder)):
                subprocess.run(["umount", "--lazy", place], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def manifest(self, repository: str, reference: str) -> dict[str, object]:
        """Return an image's manifest."""
        accept = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
        address = f"http://{self.registry}/v2/{repository}/manifests/{reference}"
        with urllib.request.urlopen(urllib.request.Request(address, headers={"Accept": accept})) as answer:
            return dict(json.load(answer))

    def blob(self, repository: str, digest: str) -> bytes:
        """Return a layer or a configuration."""
        with urllib.request.urlopen(f"http://{self.registry}/v2/{repository}/blobs/{digest}") as answer:
            return bytes(answer.read())

    def tags(self, repository: str) -> list[str]:
        """Return the tags of a repository."""
        with urllib.request.urlopen(f"http://{self.registry}/v2/{repository}/tags/list") as answer:
            return list(json.load(answer)["tags"])

    def build(self, folder: Path, image: str) -> None:
        """Build an image and push it to this registry, which stands for those of `REGISTRIES`."""
        here = f"{self.registry}/{image}"
        self._needed("buildah", "build", "--quiet", "--tag", here, str(folder))
        self._needed("buildah", "push", "--quiet", "--tls-verify=false", here)

    def _file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def _start_registry(self) -> None:
        configuration = (
            f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {self.folder}/registry\n"
            f"http:\n  addr: 127.0.0.1:{self.port}\nlog:\n  level: error\n"
        )
        self._start("docker-registry", "serve", self._file("registry.yml", configuration))
        _wait(lambda: urllib.request.urlopen(f"http://{self.registry}/v2/").status == 200, "the registry")

    def _start_service(self) -> None:
        # crun does not support machines with both cgroup versions; in a separate namespace, one can be unmounted.
        script = "umount /sys/fs/cgroup/unified 2>/dev/null; exec podman system service --time=0 unix://$0"
        path = str(self.folder / "docker.sock")
        self._start("unshare", "--mount", "sh", "-c", script, path)
        _wait(lambda: _answers(path), "podman's service")

    def _start(self, *command: str) -> None:
        with (self.folder / "services.log").open("ab") as log:
            self._processes.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def _make_base(self) -> None:
        if self._run("timeout", "60", "buildah", "pull", "--quiet", BASE).returncode == 0:
            self._needed("buildah", "tag", BASE, self.base)
        else:
            root = self.folder / "base"
            self._needed("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", f"{root}/root")
            (root / "Dockerfile").write_text("FROM scratch\nCOPY root /\n")
            self._needed("buildah", "build", "--quiet", "--tag", self.base, str(root))
            shutil.rmtree(root)
        self._needed("buildah", "push", "--quiet", "--tls-verify=false", self.base)

    def _needed(self, *command: str) -> None:
        done = self._run(*command)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)


def _overlay_works(folder: Path) -> bool:
    """Whether overlay mounts work; copying whole layers takes minutes and gigabytes."""
    parts = {name: folder / "probe" / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir(parents=True)
    options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
    command = ["mount", "-t", "overlay", "overlay", "-o", options, str(parts["merged"])]
    works = subprocess.run(command, capture_output=True, check=False).returncode == 0
    if works:
        subprocess.run(["umount", str(parts["merged"])], check=True)
    shutil.rmtree(folder / "probe")
    return works


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    return True


def _wait(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            if condition():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline, f"{what} does not start"
        time.sleep(0.1)
