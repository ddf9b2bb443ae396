"""Photographs as people have them: `slipway init --images`, a run, predictions and the server."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from slipway.core import manifest
from tests import photographs
from tests.end_to_end.workspace import Workspace
from tests.photographs import CLASSES, KINDS, ORIENTATIONS, has_heic, heic, jpeg, saved, scene, stored
from tests.ports import free_port

COUNT, DAMAGED = 3 * (len(KINDS) + 24), 5
PROJECT = "my project"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A workspace with a project that was written for a folder of photographs, and has a champion."""
    found = Workspace(tmp_path_factory.mktemp("work space"))
    photographs.write(found.path / "photos", COUNT, (200, 900), DAMAGED)
    return found


@pytest.fixture(scope="module")
def said(workspace: Workspace) -> str:
    """What `slipway init --images` says."""
    result = workspace.slipway("init", PROJECT, "--images", "photos")
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def project(workspace: Workspace, said: str) -> Workspace:
    assert f"cd {PROJECT!r} && slipway run" in said
    workspace.path = workspace.path / PROJECT
    # As it was written, but for smaller images: tests/end_to_end/test_wheel.py trains on those of 224 x 224 pixels.
    result = workspace.slipway("run", "--require-promotion", "--set", "data.image_size=[96, 96]")
    assert result.returncode == 0, result.stdout + result.stderr
    return workspace


def test_init_says_in_one_screen_what_there_is(said: str) -> None:
    rows = dict(re.findall(r"^(\w+) {2,}(.*)$", said, re.MULTILINE))
    assert said.startswith(f"photos: {COUNT + DAMAGED} images, ")
    assert said.count("\n") < 24
    assert set(re.findall(r"[A-Z]{3,}", rows["formats"])) == {
        {"jpg": "JPEG"}.get(ending, ending.upper()) for ending, _ in KINDS.values()
    }
    assert "3 from CMYK to RGB" in rows["converted"] and "turned upright by their EXIF" in rows["converted"]
    assert rows["unusable"].startswith(f"{DAMAGED}: ") and rows["unusable"].endswith("; and 2 more")
    assert all(name in rows["labels"] for name in CLASSES)


def test_the_configuration_trains_at_once_and_drops_nothing_that_can_be_used(project: Workspace) -> None:
    settings = yaml.safe_load((project.path / "slipway.yaml").read_text())
    assert settings["data"]["image_size"] == [224, 224]
    record = project.record()
    assert record["verdict"]["decision"] == "promote"
    (folder,) = (project.path / "datasets" / "photos").glob("*/manifest.json")
    about = manifest.read(folder.parent)
    assert sum(split.examples for split in about.splits.values()) == COUNT
    assert about.skipped_count == DAMAGED
    assert set(about.encodings) == {"jpeg", "png"}
    (note,) = [note for note in about.notes if "differently" in note]
    assert all(f"from {each} to " in note for each in ("WEBP", "TIFF", "GIF", "BMP", "CMYK"))
    assert re.search(r"\d+ turned upright", note) and re.search(r"\d+ resized", note)


def probabilities(project: Workspace, folder: Path) -> dict[str, list[float]]:
    """Return what `slipway predict` says about the files of a folder."""
    result = project.slipway("predict", "my-project", str(folder))
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return {Path(each["input"]).name: each["prediction"]["probabilities"] for each in found}


def test_a_turned_photograph_has_the_prediction_of_the_upright_one(project: Workspace, tmp_path: Path) -> None:
    seen, without = [], []
    for orientation in ORIENTATIONS:
        image = stored(scene(360, 480, 2, seed=orientation), orientation)
        data = jpeg(image, orientation)
        (tmp_path / f"{orientation} exif.jpg").write_bytes(data)
        (tmp_path / f"{orientation} without.jpg").write_bytes(jpeg(image, None))
        with Image.open(io.BytesIO(data)) as decoded:
            pixels = Image.fromarray(np.asarray(decoded))
        inverse = {6: 8, 8: 6}.get(orientation, orientation)
        (tmp_path / f"{orientation} upright.png").write_bytes(saved(stored(pixels, inverse), "PNG"))
        (tmp_path / f"{orientation} exif.png").write_bytes(saved(pixels, "PNG", exif=photographs.exif_of(orientation)))
    found = probabilities(project, tmp_path)
    for orientation in ORIENTATIONS:
        upright = found[f"{orientation} upright.png"]
        assert found[f"{orientation} exif.jpg"] == pytest.approx(upright, abs=0.03)
        assert found[f"{orientation} exif.png"] == pytest.approx(upright, abs=1e-4)
        seen.append(np.abs(np.subtract(found[f"{orientation} exif.jpg"], upright)).max())
        without.append(np.abs(np.subtract(found[f"{orientation} without.jpg"], upright)).max())
    assert max(without) > 5 * max(seen)  # the network tells them apart


def test_every_format_is_predicted_on_and_served_alike(project: Workspace, tmp_path: Path) -> None:
    files = {}
    for number, (name, (ending, make)) in enumerate(KINDS.items()):
        files[f"{name}.{ending}"] = make(scene(300, 400, number % 3, seed=number), 1 + number % 8)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found = probabilities(project, tmp_path)
    assert found.keys() == files.keys()
    with server(project) as port:
        for name, data in files.items():
            assert served(port, data) == pytest.approx(found[name], abs=1e-4), name
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(port, "/predict", b"<html>not found</html>")
        assert b"The image cannot be decoded: it is not an image of a supported format." in refused.value.read()


@pytest.mark.skipif(not has_heic(), reason="pillow-heif, which decodes HEIC, is not installed or cannot write it")
def test_a_turned_heic_photograph_is_predicted_and_served_as_the_upright_one(
    project: Workspace, tmp_path: Path
) -> None:
    image = scene(360, 480, 2, seed=3)
    files = {f"{orientation}.heic": heic(image, orientation) for orientation in ORIENTATIONS}
    files["upside down.heic"] = heic(stored(image, 3), 1)
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found = probabilities(project, tmp_path)
    off = {name: np.abs(np.subtract(each, found["1.heic"])).max() for name, each in found.items()}
    assert off.pop("upside down.heic") > 5 * max(off.values())  # the network tells them apart
    with server(project) as port:
        for name, data in files.items():
            assert served(port, data) == pytest.approx(found[name], abs=1e-4), name


@contextlib.contextmanager
def server(project: Workspace) -> Iterator[int]:
    """Serve the champion; yields the port."""
    port = free_port()
    process = project.start("serve", "my-project", "--port", str(port))
    try:
        ask(port, "/health")
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=180)


def served(port: int, image: bytes) -> list[float]:
    """Return the probabilities that the server answers."""
    found: list[float] = ask(port, "/predict", image)["predictions"][0]["probabilities"]
    return found


def ask(port: int, path: str, body: bytes | None = None) -> Any:
    """Return the server's answer, once it has started."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, {"Content-Type": "image/jpeg"})
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(request, timeout=180) as response:
                text = response.read()
            return json.loads(text) if body is not None else text
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > deadline:
                raise
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.2)


# The weights of a backbone that nothing was learned with, and the statistics that its BatchNormalization has with them.
BACKBONE = """
import keras, numpy as np
keras.utils.set_random_seed(0)
made = keras.applications.MobileNetV3Small(include_top=False, weights=None, input_shape=(96, 96, 3))
for layer in made.layers:
    if isinstance(layer, keras.layers.BatchNormalization):
        layer.momentum = 0.0
made(np.random.default_rng(0).uniform(0, 255, (32, 96, 96, 3)).astype("float32"), training=True)
made.save_weights("MobileNetV3Small.weights.h5")
"""


@pytest.mark.long
def test_a_pretrained_backbone_is_fine_tuned_on_photographs(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    photographs.write(tmp_path / "my photos", 2 * COUNT, (200, 400))
    said = workspace.slipway("init", PROJECT, "--images", "my photos", "--template", "photos")
    assert said.returncode == 0, said.stderr
    workspace.path = tmp_path / PROJECT
    options = [part for each in ("data.image_size=[96, 96]", "train.batch_size=16") for part in ("--set", each)]
    refused = workspace.slipway("run", *options)
    assert refused.returncode == 2
    assert "error: there is no file MobileNetV3Small.weights.h5." in refused.stderr
    assert "python -m slipway.trainer.models.pretrained BACKBONE" in refused.stderr
    subprocess.run([sys.executable, "-c", BACKBONE], cwd=workspace.path, check=True)
    result = workspace.slipway("run", "--require-promotion", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    log = workspace.log("train")
    assert re.search(r"weights of (\d+) of \d+ layers read .*; keeping their own: head$", log, re.MULTILINE)
    assert re.findall(r"training (.*) with the learning rate (.*)", log) == [("head", "0.001"), ("*", "0.0001")]
    made_with = json.loads((workspace.path / "runs" / "latest" / "provenance.json").read_text())
    assert set(made_with["files"]) == {"MobileNetV3Small.weights.h5"}
    tests = subprocess.run(
        [sys.executable, "-m", "unittest", "discover", "tests"], cwd=workspace.path, capture_output=True, text=True
    )
    assert tests.returncode == 0, tests.stderr
