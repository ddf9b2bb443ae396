"""The files in a build context, and what its tag depends on."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from slipway.components.build_image.context import Context, make_context, revision
from slipway.components.build_image.images import image_kind
from slipway.components.build_image.project import project_content
from slipway.components.build_image.settings import ROOT_USER, ContentSettings
from slipway.core.errors import UserError
from tests.components.build_image.conftest import git

BASE = "docker.io/library/python:3.11-slim-bookworm"
SECRET = "hunter2-hunter2"


def context_of(tree: Path, role: str = "trainer", accelerator: str = "cpu", **options: object) -> Context:
    return make_context(tree, image_kind(tree, role, accelerator, run_as=ROOT_USER), BASE, **options)  # type: ignore[arg-type]


def members(context: Context) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(context.archive()), mode="r:gz") as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]


def test_each_image_holds_what_it_needs_and_no_more(tree: Path) -> None:
    files = set(members(context_of(tree)))
    names = ("__init__.py", "core/errors.py", "extensions.py", "trainer/__init__.py", "trainer/loop.py", "training.py")
    code = {f"code/slipway/{name}" for name in names}
    always = {"Dockerfile", "project/requirements.txt", "requirements/build-tools.txt"}
    assert files == code | always | {"requirements/trainer-cpu.txt"}
    names = ("components/__init__.py", "components/evaluate/report.html", "pipelines/google/__init__.py")
    steps = {f"code/slipway/{name}" for name in (*names, "pipelines/google/extension.py")}
    more = steps | {"code/slipway/serving/model.py", "requirements/steps-cpu.txt"}
    assert set(members(context_of(tree, "steps"))) == files - {"requirements/trainer-cpu.txt"} | more


def test_the_same_content_is_the_same_bytes_whatever_its_times_place_and_owner(tree: Path, tmp_path: Path) -> None:
    before = context_of(tree)
    other = shutil.copytree(tree, tmp_path / "elsewhere", symlinks=True)
    for path in other.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    after = context_of(other)
    assert after.archive() == before.archive()
    assert after.tag == before.tag


@pytest.mark.parametrize(
    ("name", "text", "moves"),
    [
        ("trainer/loop.py", "STEPS = 2\n", True),
        ("containers/Dockerfile", "FROM scratch\n", True),
        ("requirements/trainer-cpu.txt", "keras==4\n", True),
        ("slipway/core/errors.py", "ERRORS = 2\n", True),
        ("slipway/steps.py", "import kfp\n", False),
        ("README.md", "new words\n", False),
        ("tests/test_loop.py", "def test_more(): ...\n", False),
        ("components/evaluate/report.html", "<p>\n", False),
        ("requirements/steps-cpu.txt", "kfp==3\n", False),
    ],
)
def test_the_tag_moves_with_what_is_in_the_image_only(
    tree: Path, write: Callable[[str, str], Path], name: str, text: str, moves: bool
) -> None:
    before = context_of(tree).tag
    write(name, text)
    assert (context_of(tree).tag != before) == moves


def test_the_tag_depends_on_the_base_the_mode_and_the_kind(tree: Path) -> None:
    tags = {context_of(tree).tag, context_of(tree, accelerator="tpu").tag}
    tags.add(make_context(tree, image_kind(tree, "trainer", "cpu"), BASE + "@sha256:" + "0" * 64).tag)
    (tree / "trainer/loop.py").chmod(0o755)
    tags.add(context_of(tree).tag)
    assert len(tags) == 4


def test_no_secret_gets_in(tree: Path, write: Callable[[str, str], Path], tmp_path: Path) -> None:
    before = context_of(tree).tag
    outside = tmp_path / "key.json"
    outside.write_text(SECRET)
    for name in (".env", "trainer/.env", "trainer/token.secret", "trainer/__pycache__/x.pyc", "trainer/new.py"):
        write(name, SECRET)  # ignored by git, or not added
    for name in ("trainer/.env.production", "trainer/server.key", "trainer/id_rsa"):
        write(name, SECRET)
        git(tree, "add", "--force", name)  # tracked by mistake
    (tree / "trainer/link.json").symlink_to(outside)
    git(tree, "add", "trainer/link.json")
    context = context_of(tree)
    assert SECRET.encode() not in b"".join(members(context).values())
    assert context.tag == before


def test_a_file_that_someone_forgot_to_add_is_named(tree: Path, write: Callable[[str, str], Path]) -> None:
    forgotten = write("trainer/new.py", "x = 1\n")
    write("trainer/.env", SECRET)
    assert context_of(tree).excluded == (str(forgotten),)


def test_the_users_own_package_goes_in(tree: Path, write: Callable[[str, str], Path]) -> None:
    own = {"flowers": tree / "flowers", "single": write("single.py", "y = 2\n")}
    write("flowers/net.py", "z = 3\n")
    git(tree, "add", "flowers", "single.py")
    found = members(context_of(tree, own=own))
    assert found["code/flowers/net.py"] == b"z = 3\n"
    assert found["code/single.py"] == b"y = 2\n"
    assert "code/README.md" not in found


def test_the_project_and_its_requirements_go_in_and_move_the_tag(tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {"model.py": "import layers\n", "layers.py": "x = 1\n", "more.txt": "lightgbm==4.6.0\n"}.items():
        (folder / name).write_text(text)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")

    def context() -> Context:
        return context_of(tree, project=project_content(folder, ContentSettings(requirements="more.txt"), ["model"]))

    found = context()
    before = found.tag
    assert members(found)["code/layers.py"] == b"x = 1\n"
    assert members(found)["project/requirements.txt"] == b"lightgbm==4.6.0\n"
    assert found.project == {"code/layers.py", "code/model.py", "code/more.txt", "project/requirements.txt"}
    (folder / "more.txt").write_text("lightgbm==4.7.0\n")
    assert len({before, context().tag, context_of(tree).tag}) == 3


def test_a_lock_moves_the_tag_by_what_an_image_installs_of_it(tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "model.py").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    settings = ContentSettings(requirements="auto", exclude=("*.toml",))

    def locked(more: str, version: str = "1", settings: ContentSettings = settings) -> Context:
        wheel = f"https://index.example/lightgbm-{version}-py3-none-any.whl"
        (folder / "pylock.toml").write_text(
            f'lock-version = "1.0"\ncreated-by = "{more}"\n[[packages]]\nname = "lightgbm"\nversion = "{version}"\n'
            f'wheels = [{{ url = "{wheel}", hashes = {{ sha256 = "{version}" }} }}]\n'
        )
        return context_of(tree, project=project_content(folder, settings, ["model"]))

    first = locked("uv")
    assert members(first)["project/requirements.txt"].endswith(b"lightgbm==1 \\\n    --hash=sha256:1\n")
    assert locked("uv 2").tag == first.tag
    mirrored = settings.model_copy(update={"index": "https://mirror.example/simple"})
    assert len({first.tag, locked("uv", "2").tag, locked("uv", "1", mirrored).tag, context_of(tree).tag}) == 4


def test_an_own_package_that_git_does_not_track_is_refused(tree: Path, write: Callable[[str, str], Path]) -> None:
    folder = write("flowers/net.py", "z = 3\n").parent
    with pytest.raises(UserError) as error:
        context_of(tree, own={"flowers": folder})
    assert error.value.fix == f"git add {folder}"


def test_an_installed_slipway_gives_the_same_image_as_its_checkout(tree: Path, tmp_path: Path) -> None:
    before = context_of(tree)
    installed = tmp_path / "site-packages"
    shutil.copytree(tree / "slipway", installed / "slipway")  # follows the links, as a wheel does
    (installed / "slipway/trainer/__pycache__").mkdir()
    (installed / "slipway/trainer/__pycache__/loop.cpython-311.pyc").write_bytes(b"compiled")
    after = context_of(installed)
    assert after.archive() == before.archive()
    assert after.revision == metadata.version("slipway-ml")


def test_own_code_comes_from_git_wherever_slipway_is(tree: Path, tmp_path: Path) -> None:
    shutil.copytree(tree / "slipway", tmp_path / "site-packages/slipway")
    (tmp_path / "flowers").mkdir()
    with pytest.raises(UserError, match="not in a git checkout"):
        context_of(tmp_path / "site-packages", own={"flowers": tmp_path / "flowers"})


def test_a_combination_without_locked_packages_is_refused(tree: Path) -> None:
    with pytest.raises(UserError) as error:
        image_kind(tree, "trainer", "cpu", "jax")
    assert error.value.nearest == "trainer-cpu"


def test_the_revision_tells_of_changes(tree: Path, write: Callable[[str, str], Path]) -> None:
    commit = git(tree, "rev-parse", "HEAD").strip()
    assert revision(tree) == commit
    write("README.md", "new words\n")
    assert revision(tree) == f"{commit}-dirty"
