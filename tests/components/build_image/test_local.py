"""The commands of local builders, and pip's configuration inside the build."""

from __future__ import annotations

import gzip
import io
import json
import shlex
import sys
import tarfile
from pathlib import Path

import pytest

from slipway.components.build_image import local
from slipway.components.step import WorkFailed

RECORDER = """import json, pathlib, sys
arguments = sys.argv[1:]
secrets = [part.partition("src=")[2] for part in arguments if part.startswith("id=")]
record = {{"arguments": arguments, "secrets": [pathlib.Path(path).read_text() for path in secrets]}}
record["context"] = sorted(path.name for path in pathlib.Path(arguments[-1]).glob("*"))
pathlib.Path({path!r}).open("a").write(json.dumps(record) + "\\n")
print("STEP 1")
sys.exit(4 if "broken" in " ".join(arguments) else 0)
"""


def archive() -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as opened:
        opened.addfile(tarfile.TarInfo("Dockerfile"), io.BytesIO())
    return gzip.compress(plain.getvalue())


@pytest.fixture(params=["docker", "podman", "buildah"])
def builder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A program of a builder's name that writes down what it is told."""
    script = tmp_path / request.param
    program = tmp_path / "recorder.py"
    program.write_text(RECORDER.format(path=str(tmp_path / "told")))
    script.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, str(program)])} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(local, "PIP_FILES", ())
    for name in ("CONFIG_FILE", "CERT", "INDEX_URL", "EXTRA_INDEX_URL", "PROXY", "TIMEOUT"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    return str(request.param)


def told(tmp_path: Path) -> list[dict[str, list[str]]]:
    return [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]


@pytest.mark.usefixtures("no_tar_filters")
def test_arguments_labels_and_the_machines_package_index_are_handed_over(
    builder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = tmp_path / "ca.pem"
    certificates.write_text("CERTIFICATE")
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:password@index.example/simple")
    monkeypatch.setenv("PIP_CERT", str(certificates))
    log = io.StringIO()
    local.build(builder, archive(), "r.example/x:1", {"BASE": "b"}, {"a.b": "c d"}, log)
    (record,) = told(tmp_path)
    arguments = " ".join(record["arguments"])
    assert "--tag r.example/x:1 --build-arg BASE=b --label a.b=c d --secret id=pip," in arguments
    assert "password" not in arguments
    configuration, mounted = record["secrets"]
    assert "index-url = https://me:password@index.example/simple" in configuration
    assert f"cert = {local.CERTIFICATES}" in configuration
    assert mounted == "CERTIFICATE"
    assert record["context"] == ["Dockerfile"]
    assert log.getvalue() == "STEP 1\n"


def test_only_a_registry_on_this_machine_goes_without_tls(builder: str, tmp_path: Path) -> None:
    local.push(builder, "r.example/x:1", io.StringIO())
    local.push(builder, "localhost:5000/x:1", io.StringIO())
    away, here = (record["arguments"] for record in told(tmp_path))
    assert away == ["push", "r.example/x:1"]
    assert ("--tls-verify=false" in here) == (builder != "docker")


def test_a_builder_that_fails_ends_with_its_last_lines(builder: str, tmp_path: Path) -> None:
    with pytest.raises(WorkFailed, match="failed with exit code 4") as error:
        local.build(builder, archive(), "r.example/broken:1", {}, {}, io.StringIO())
    assert error.value.traceback == "STEP 1"


def test_pips_later_files_and_its_environment_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "a.conf", tmp_path / "b.conf"
    first.write_text("[global]\nindex-url = https://a.example\ntimeout = 5\nfind-links = /wheels\n")
    second.write_text(
        "[global]\nindex-url = https://b.example\nextra-index-url = file:///somewhere\n[install]\ntimeout = 6\n"
    )
    monkeypatch.setattr(local, "PIP_FILES", (str(first),))
    settings, certificates = local.pip_settings({"PIP_CONFIG_FILE": str(second), "PIP_PROXY": "http://p.example"})
    assert settings == {"index-url": "https://b.example", "timeout": "6", "proxy": "http://p.example"}
    assert certificates is None
