"""`build.requirements: auto`: a project's lock file becomes the images' packages, as installed commands show it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.installed.case import Case, Project

pytestmark = pytest.mark.timeout(1800)  # its commands have time limits

BUILT = "--target vertex --set vertex.image=null --set vertex.serving_image=null --set build.requirements=auto"
LOCK = """
lock-version = "1.0"
created-by = "uv"
[[packages]]
name = "{name}"
version = "{version}"
wheels = [{{ url = "https://index.example/{name}-{version}-py3-none-any.whl", hashes = {{ sha256 = "{digest}" }} }}]
"""


def test_a_lock_is_checked_and_built_and_one_that_contradicts_the_images_is_refused(
    make_project: Callable[..., Project],
) -> None:
    project = make_project("vertex")
    project.commit()
    lock = project.folder / "pylock.toml"
    # The doctor exits with 1: no image was built in this project before.
    project.output(Case("nothing", f"doctor {BUILT}", 1, text="✗ image context .* has no lock file"))
    (project.folder / "pyproject.toml").write_text('[project]\nname = "demo"\ndependencies = ["lightgbm>=4"]\n')
    text = "! locked packages pyproject.toml is no lock file: .* fix: uv lock, which writes uv.lock"
    project.output(Case("unlocked", f"doctor {BUILT}", 1, text=text))
    lock.write_text(LOCK.format(name="lightgbm", version="4.6.0", digest="ab" * 32))
    text = "✓ image context steps-cpu:.* ✓ locked packages pylock.toml"
    first = project.output(Case("locked", f"doctor {BUILT}", 1, text=text))
    lock.write_text(LOCK.format(name="lightgbm", version="4.6.1", digest="cd" * 32))
    second = project.output(Case("locked", f"doctor {BUILT}", 1, text=text))
    assert first != second  # the images' tags
    project.output(
        Case("build", f"config build {BUILT}", text="with cloud-build .* image .*/slipway/serving-cpu@sha256:")
    )
    lock.write_text(LOCK.format(name="numpy", version="1.26.4", digest="ab" * 32))
    refused = r"pylock.toml and the image steps-cpu have other versions of numpy 1.26.4 \(image: .* fix: printf"
    project.output(Case("conflict", f"config build {BUILT}", 2, text=refused))
