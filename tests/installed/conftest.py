"""Services in another process, and a project whose configuration points there."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.installed.case import Project, Services


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """All services; the project on Google Cloud is ready for runs."""
    process = Services(tmp_path_factory.mktemp("services") / "all")
    yield process
    process.stop()


@pytest.fixture(scope="session")
def template(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `slipway init` writes."""
    project = Project(services, tmp_path_factory.mktemp("template"))
    project.slipway("init demo")
    return project.folder / "demo"


@pytest.fixture
def make_project(services: Services, template: Path, tmp_path: Path) -> Callable[..., Project]:
    """Return a project with sections of the configuration that point to the services, and others."""

    def make(*sections: str, **more: object) -> Project:
        project = Project(services, shutil.copytree(template, tmp_path / "demo"))
        with (project.folder / "model.py").open("a") as file:
            file.write(f"# {tmp_path}\n")  # another project's images are no images of this one
        project.add(*sections, **more)
        return project

    return make
