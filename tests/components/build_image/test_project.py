"""What a project adds to the images: its files by `build.include` and `build.exclude`, and its requirements."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from slipway.components.build_image.project import ProjectContent, check_requirements, project_content
from slipway.components.build_image.settings import ContentSettings
from slipway.core.errors import UserError
from tests.components.build_image.conftest import git

FILES = {
    ".gitignore": "runs/\nweights/\n",
    "README.md": "what it is\n",
    "slipway.yaml": "name: flowers\n",
    "model.py": "import layers\n",
    "layers/__init__.py": "",
    "layers/blocks.py": "x = 1\n",
    "tests/test_model.py": "def test(): ...\n",
    "labels.txt": "daisy\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    for name in ("weights/backbone.h5", "weights/old.h5", "runs/1/run.json", "notes.py", ".env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("untracked")
    return tmp_path


def content(folder: Path, *modules: str, **settings: object) -> ProjectContent:
    return project_content(folder, ContentSettings.model_validate(settings), modules or ["model"])


def test_all_tracked_files_that_a_run_may_need_are_included(folder: Path) -> None:
    found = content(folder)
    assert set(found.files) == {"model.py", "layers/__init__.py", "layers/blocks.py", "labels.txt"}
    assert found.untracked == ("notes.py",)  # .env and runs/ are not named


def test_ignored_files_are_included_on_demand_and_tracked_ones_excluded(folder: Path) -> None:
    found = content(folder, include=["weights/back*"], exclude=["labels.txt", "layers/blocks.py", "notes.py"])
    added = {".gitignore", "README.md", "slipway.yaml", "tests/test_model.py", "weights/backbone.h5"}
    assert set(found.files) == {"model.py", "layers/__init__.py"} | added
    assert found.untracked == ()
    assert set(content(folder, include=["weights"]).files) >= {"weights/backbone.h5", "weights/old.h5"}


def test_run_configurations_are_excluded_unless_included(folder: Path) -> None:
    (folder / "sweep.yaml").write_text("name: sweep\n")
    git(folder, "add", "sweep.yaml")
    sweep = (folder / "sweep.yaml").__eq__
    found = project_content(folder, ContentSettings(), ["model"], sweep)
    assert "sweep.yaml" not in found.files and "sweep.yaml" not in found.untracked
    asked = project_content(folder, ContentSettings(include=("sweep.yaml",)), ["model"], sweep)
    assert "sweep.yaml" in asked.files


def test_a_secret_is_not_included_even_on_demand(folder: Path) -> None:
    with pytest.raises(UserError, match=r"No file .* matches \.env"):
        content(folder, include=[".env"])


def test_a_pattern_without_a_file_names_the_closest_one(folder: Path) -> None:
    with pytest.raises(UserError) as error:
        content(folder, include=["weight/backbone.h5"])
    assert (error.value.setting, error.value.nearest) == ("build.include", "weights/backbone.h5")


@pytest.mark.parametrize(("module", "settings"), [("notes", {}), ("layers", {"exclude": ["layers"]})])
def test_a_module_that_would_be_missing_is_refused(folder: Path, module: str, settings: dict[str, object]) -> None:
    with pytest.raises(UserError, match="would not be in its image") as error:
        content(folder, "model", module, **settings)
    assert error.value.fix == f"git add {'layers' if module == 'layers' else 'notes.py'}"


def test_a_project_that_would_replace_slipway_is_refused(folder: Path) -> None:
    (folder / "slipway").mkdir()
    (folder / "slipway/__init__.py").touch()
    git(folder, "add", "slipway")
    with pytest.raises(UserError, match="would replace Slipway"):
        content(folder)
    assert "slipway/__init__.py" not in content(folder, exclude=["slipway"]).files


def test_a_project_without_git_is_refused_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        content(tmp_path)
    assert str(error.value.fix).startswith(f"git -C {tmp_path} init")


def test_without_git_the_content_is_what_it_would_track(folder: Path) -> None:
    git(folder, "add", "--all")
    tracked = content(folder)
    shutil.rmtree(folder / ".git")
    assert project_content(folder, ContentSettings(), ["model"], without_git=True) == tracked


def requirements(folder: Path, text: str) -> None:
    path, locked = folder / "requirements.txt", folder / "locked.txt"
    path.write_text(text)
    locked.write_text("numpy==2.3.1 \\\n    --hash=sha256:ab\nJinja2==3.1.6 \\\n    --hash=sha256:cd  # via kfp\n")
    check_requirements(path, locked)


def test_pinned_requirements_are_accepted(folder: Path) -> None:
    requirements(
        folder,
        "# extra\nlightgbm==4.6.0 \\\n    --hash=sha256:12 \\\n    --hash=sha256:34\n\nnumpy==2.3.1  # as there\n",
    )
    requirements(
        folder, "mine @ https://example.com/mine-1-py3-none-any.whl\njinja2==3.1.6 ; python_version > '3.10'\n"
    )


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("lightgbm==4.6.0\nscipy>=1\n", "Line 2 of .* does not pin scipy to a version: scipy>=1", "uv pip compile"),
        ("scipy\n", "Line 1 of .* does not pin scipy", "uv pip compile"),
        ("scipy==1.*\n", "does not pin", "uv pip compile"),
        (
            "a==1 \\\n  --hash=sha256:12\nnumpy==1.26.4\n",
            r"Line 3 of .* requires numpy==1.26.4; the image",
            "numpy==2.3.1",
        ),
        ("not a requirement\n", "Line 1 of .* is not a requirement", ""),
    ],
)
def test_requirements_that_give_no_fixed_image_are_refused(folder: Path, text: str, message: str, fix: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        requirements(folder, text)
    assert error.value.setting == "build.requirements"
    assert fix in str(error.value.fix)


def test_a_missing_requirements_file_names_the_closest(folder: Path) -> None:
    (folder / "requirements.txt").touch()
    with pytest.raises(UserError) as error:
        content(folder, requirements="requirement.txt")
    assert error.value.nearest == "requirements.txt"


def test_settings_of_packages_that_no_file_names_are_refused(folder: Path) -> None:
    (folder / "requirements.txt").write_text("lightgbm==4.6.0\n")
    for settings, message in (
        ({"index": "https://mirror.example/simple"}, "build.index is for packages of build.requirements"),
        ({"groups": ["gpu"], "requirements": "auto"}, "requirements.txt has no dependency groups that are locked"),
    ):
        with pytest.raises(UserError, match=message):
            content(folder, **settings)
    locked = folder / "locked.txt"
    locked.write_text("numpy==2.3.1\n")
    mirrored = content(folder, requirements="auto", index="https://mirror.example/simple").requirements_for(locked)
    assert mirrored is not None
    assert mirrored.read_bytes() == b"--index-url https://mirror.example/simple\nlightgbm==4.6.0\n"
