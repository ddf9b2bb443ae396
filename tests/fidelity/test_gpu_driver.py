"""How containers find NVIDIA's driver, which is not part of an image."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

DOCKERFILE = Path(__file__).parents[2] / "containers/Dockerfile"
REFERENCE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::\+([^{}]*))?\})")
# docker.io/library/python, and nvidia/cuda.
PYTHON = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
CUDA = {"PATH": "/usr/local/cuda/bin:/usr/bin", "LD_LIBRARY_PATH": "/usr/local/cuda/lib64"}


def built(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an image that containers/Dockerfile builds on a base with this environment.

    Source: "Environment replacement" in https://docs.docker.com/reference/dockerfile/: an instruction sees the values
    from before it.
    """
    environment = dict(base)
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")

    def value(found: re.Match[str]) -> str:
        name, braced, word = found.groups()
        now = environment.get(name or braced, "")
        return now if word is None else now and REFERENCE.sub(value, word)

    for line in text.splitlines():
        if line.startswith("ENV "):
            pairs = [pair.split("=", 1) for pair in shlex.split(line.removeprefix("ENV "))]
            environment |= {name: REFERENCE.sub(value, text) for name, text in pairs}
    return environment


def check_driver_paths(environment: Mapping[str, str]) -> None:
    """Check that programs and the dynamic linker find the driver where Vertex AI and GKE mount it."""
    libraries = environment["LD_LIBRARY_PATH"].split(":")
    assert libraries[:2] == ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib"]
    assert "" not in libraries, "the linker reads an empty path as the working folder"
    assert "/usr/local/nvidia/bin" in environment["PATH"].split(":")


@pytest.mark.parametrize("base", [PYTHON, CUDA])
def test_the_driver_is_mounted_where_only_the_images_variables_lead(base):
    """Vertex AI and GKE mount it at /usr/local/nvidia.

    Source (reported): https://github.com/huggingface/Google-Cloud-Containers/pull/167, where Vertex AI's team asks for
    both variables; verl#5295, compute-gpu-installation#46 and OpenDroneMap#2003 found no driver without them. Source
    (read): https://cloud.google.com/kubernetes-engine/docs/how-to/gpus#cuda.
    """
    environment = built(base)
    check_driver_paths(environment)
    assert environment["PATH"].startswith("/opt/slipway/bin:")
    assert environment["PATH"].endswith(base["PATH"])


def test_what_the_base_adds_to_the_loaders_path_is_kept():
    """Source (read): the Dockerfiles of nvidia/cuda set LD_LIBRARY_PATH,
    https://gitlab.com/nvidia/container-images/cuda"""
    assert built(CUDA)["LD_LIBRARY_PATH"].endswith(":/usr/local/cuda/lib64")


def test_an_image_asks_for_the_driver_but_for_no_gpu():
    """With "all", a pod that requests no GPU sees every GPU of its node; without compute, libcuda.so is not mounted.

    Source (read): https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html.
    (Reported): https://github.com/NVIDIA/k8s-device-plugin/issues/61
    """
    environment = built(PYTHON)
    assert "NVIDIA_VISIBLE_DEVICES" not in environment
    assert environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
