"""The parts of an image's URI, and which images are pinned."""

from __future__ import annotations

import pytest

from slipway.core.image_reference import ImageReference, check_pinned

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("image", "repository", "name", "tag", "digest"),
    [
        ("us-docker.pkg.dev/p/r/a/b:v1", "us-docker.pkg.dev/p/r", "a/b", "v1", None),
        (f"us-docker.pkg.dev/p/r/a@{DIGEST}", "us-docker.pkg.dev/p/r", "a", None, DIGEST),
        ("gcr.io/p/a/b:v1", "gcr.io/p", "a/b", "v1", None),
        ("localhost:5000/trainer", "localhost:5000", "trainer", None, None),
        (f"localhost:5000/x/trainer:1@{DIGEST}", "localhost:5000/x", "trainer", "1", DIGEST),
        ("python:3.11", "", "python", "3.11", None),
    ],
)
def test_parts(image: str, repository: str, name: str, tag: str | None, digest: str | None) -> None:
    assert ImageReference.parse(image) == ImageReference(repository, name, tag, digest)


@pytest.mark.parametrize("image", ["e.g/trainer:1", f"e.g/trainer@{DIGEST}", f"e.g/trainer:latest@{DIGEST}"])
def test_a_pinned_image_is_returned(image: str) -> None:
    assert check_pinned(image) == image


@pytest.mark.parametrize("image", ["e.g/trainer", "e.g/trainer:latest", "e.g:5000/trainer", "python"])
def test_an_image_that_may_change_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="a digest or an immutable tag"):
        check_pinned(image)


@pytest.mark.parametrize(
    ("image", "repository"),
    [
        (
            "europe-west4-docker.pkg.dev/p/r/trainer@sha256:" + "0" * 64,
            "projects/p/locations/europe-west4/repositories/r",
        ),
        ("europe-docker.pkg.dev/p/r", None),
        ("us-docker.pkg.dev/p/r/a/b:v1", "projects/p/locations/us/repositories/r"),
        ("europe-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest", None),
        ("docker.io/me/trainer:1", None),
        ("gcr.io/p/a/b:v1", "projects/p/locations/us/repositories/gcr.io"),
        ("us.gcr.io/p/trainer:v1", "projects/p/locations/us/repositories/us.gcr.io"),
        ("eu.gcr.io/p/trainer:v1", "projects/p/locations/europe/repositories/eu.gcr.io"),
        ("asia.gcr.io/example.com/p/trainer:v1", "projects/example.com:p/locations/asia/repositories/asia.gcr.io"),
        ("gcr.io/deeplearning-platform-release/tf2-gpu.2-15:m1", None),
        ("localhost:5000/trainer:1", None),
    ],
)
def test_the_repository_is_read_from_the_image(image: str, repository: str | None) -> None:
    assert ImageReference.parse(image).artifact_repository == repository
