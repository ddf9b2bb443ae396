"""Local image builds with docker, podman or buildah, and pushes to the registry."""

from __future__ import annotations

import configparser
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from slipway.components.build_image.registry import is_loopback
from slipway.components.step import WorkFailed
from slipway.core.errors import UserError

# pip options that also apply inside a container; options with local paths do not.
PIP_KEYS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
PIP_FILES = ("/etc/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
CERTIFICATES = "/run/secrets/certificates.pem"
BUILD = {
    "docker": ("docker", "build"),
    "podman": ("podman", "build", "--layers"),
    "buildah": ("buildah", "build", "--layers"),
}
LAST_LINES = 20


def build(
    builder: str, archive: bytes, uri: str, arguments: Mapping[str, str], labels: Mapping[str, str], log: TextIO
) -> None:
    """Build an image from its context.

    Args:
        builder: docker, podman or buildah.
        archive: The context, a .tar.gz.
        uri: Registry, name and tag.
        arguments: The build arguments.
        labels: The image's labels.
        log: Receives the builder's output.

    Raises:
        UserError: The builder is not installed.
        WorkFailed: The build failed; contains the last lines of output.
    """
    if shutil.which(builder) is None:
        there = [name for name in BUILD if shutil.which(name)]
        raise UserError(
            f"{builder} is not installed.",
            setting="builder",
            value=builder,
            allowed=", ".join(BUILD),
            nearest=there[0] if there else None,
            fix=f"--builder {there[0]}" if there else f"install {builder}, or --builder cloud-build",
        )
    with tempfile.TemporaryDirectory(prefix="slipway-build-") as folder, _secrets() as secrets:
        with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
            opened.extraction_filter = lambda member, _folder: member  # our own; Python 3.11.2 has no filters
            opened.extractall(folder)
        command = [*BUILD[builder], "--file", f"{folder}/Dockerfile", "--tag", uri]
        for option, values in (("--build-arg", arguments), ("--label", labels)):
            command += [part for name, value in sorted(values.items()) for part in (option, f"{name}={value}")]
        command += [part for name, path in secrets.items() for part in ("--secret", f"id={name},src={path}")]
        _run([*command, folder], log)


def push(builder: str, uri: str, log: TextIO) -> None:
    """Push an image to its registry. Raises WorkFailed."""
    # A registry on this machine has no certificate; docker accepts that without an option.
    insecure = is_loopback(uri.partition("/")[0]) and builder != "docker"
    _run([builder, "push", *(["--tls-verify=false"] if insecure else []), uri], log)


def _run(command: list[str], log: TextIO) -> None:
    """Run a command, copying its output to `log` line by line."""
    environment = {**os.environ, "DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}
    tail: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            log.flush()
            tail = [*tail, line.rstrip()][-LAST_LINES:]
    if process.returncode:
        raise WorkFailed(f"{' '.join(command[:2])} failed with exit code {process.returncode}.", "\n".join(tail))


@contextmanager
def _secrets() -> Iterator[dict[str, Path]]:
    """Yield pip's configuration files for the build, by secret id; they are mounted, not stored in a layer."""
    settings, certificates = pip_settings(os.environ)
    if certificates is not None:
        settings["cert"] = CERTIFICATES
    with tempfile.TemporaryDirectory(prefix="slipway-pip-") as folder:
        parser = configparser.RawConfigParser()
        parser["global"] = settings
        path = Path(folder, "pip.conf")
        with path.open("w") as file:
            parser.write(file)
        path.chmod(0o600)
        yield {"pip": path} | ({"certificates": certificates} if certificates is not None else {})


def pip_settings(environment: Mapping[str, str]) -> tuple[dict[str, str], Path | None]:
    """Return this machine's pip options for reaching the package index, and its CA bundle if it has one.

    As in pip, later files override earlier ones, and PIP_* environment variables override files.
    """
    parser = configparser.RawConfigParser()
    files = [*PIP_FILES, environment.get("PIP_CONFIG_FILE", "")]
    parser.read([Path(name).expanduser() for name in files if name])
    options: dict[str, str] = {}
    for section in ("global", "install"):
        options |= dict(parser[section]) if parser.has_section(section) else {}
    for key in (*PIP_KEYS, "cert"):
        value = environment.get("PIP_" + key.upper().replace("-", "_"))
        options |= {key: value} if value else {}
    certificates = Path(options["cert"]) if options.get("cert") else None
    settings = {key: options[key] for key in PIP_KEYS if key in options and "file:" not in options[key]}
    return settings, certificates if certificates is not None and certificates.is_file() else None
