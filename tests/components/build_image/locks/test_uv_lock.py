"""The export of a uv.lock, beside that of uv itself."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from slipway.components.build_image.locks.export import exported
from slipway.components.build_image.locks.release import fits, holds
from slipway.core.errors import UserError
from tests.components.build_image.locks.conftest import INDEX, Index, Project

MARKERS = (
    "",
    "",
    " ; sys_platform == 'win32'",
    " ; sys_platform == 'linux'",
    " ; python_version < '3.12'",
    " ; python_version >= '3.12'",
    " ; platform_machine == 'aarch64'",
    " ; extra == 'x'",
)


def pins(text: str) -> dict[str, tuple[str, set[str]]]:
    """Return version and hashes by name of those requirements that apply in an image."""
    found = {}
    for block in re.sub(r"\\\n", " ", text).splitlines():
        hashes = set(re.findall(r"--hash=(\S+)", block))
        line = re.sub(r"--hash=\S+|#.*", "", block).strip()
        if line and not line.startswith("-"):
            requirement = Requirement(line)
            if requirement.marker is None or holds(requirement.marker):
                found[canonicalize_name(requirement.name)] = (str(requirement.specifier), hashes)
    return found


def compare(project: Project, path: Path, image: Path, *groups: str) -> dict[str, tuple[str, set[str]]]:
    """Compare the export with uv's, and that of uv's pylock.toml; return it."""
    text = exported(path, image, groups)
    chosen = [f"--group={group}" for group in groups]
    options = ["export", "--quiet", "--frozen", "--no-emit-project", "--no-default-groups", *chosen]
    of_uv, here = pins(project.uv(*options, "--format", "requirements-txt")), pins(text)
    assert {name: version for name, (version, _) in here.items()} == {name: v for name, (v, _) in of_uv.items()}
    assert all(hashes and hashes <= of_uv[name][1] for name, (_, hashes) in here.items())
    standard = project.folder / "pylock.toml"
    standard.write_text(project.uv(*options, "--format", "pylock.toml"))
    assert exported(standard, image).partition("\n")[2] == text.partition("\n")[2]
    return here


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_export_is_that_of_uv(project: Project, index: Index, image: Path, seed: int) -> None:
    """Of random packages, in two versions, with markers, extras and other versions in other environments."""
    draw = random.Random(seed)
    names = [f"p{number}" for number in range(9)]
    for number, name in enumerate(names):
        for version in ("1", "2"):
            later = draw.sample(names[number + 1 :], min(len(names) - number - 1, draw.randrange(4)))
            requires = [f"{other}{draw.choice(('', '[x]'))}{draw.choice(MARKERS)}" for other in later]
            requires.append(f"extra-of-{name} ; extra == 'x'")
            index.wheel(name, version, *requires)
        index.wheel(f"extra-of-{name}")
    first, second, forked = draw.sample(names, 3)
    dependencies = [
        f"{first}[x]", f"{second}<2{draw.choice(MARKERS[:6])}",
        f"{forked}==1 ; python_version < '3.12'", f"{forked}==2 ; python_version >= '3.12'",
    ]  # fmt: skip
    path = project.lock(dependencies, f'[dependency-groups]\ndev = ["p8"]\nmore = ["{names[4]}[x]"]\n')
    assert compare(project, path, image)[forked][0] == "==1"
    compare(project, path, image, "more")


def test_only_wheels_count_and_one_must_fit_the_images(project: Project, index: Index, image: Path) -> None:
    index.wheel("fast", "1", tag="cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64")
    index.wheel("fast", "1", tag="cp312-cp312-win_amd64")
    index.source("fast")
    index.source("slow")
    found = compare(project, project.lock(["fast"]), image)
    assert len(found["fast"][1]) == 2  # not the source's
    with pytest.raises(UserError, match=r"uv.lock has slow 1, which has no wheel for the images: Python 3.11") as error:
        exported(project.lock(["slow"]), image)
    assert "pip wheel --no-deps slow==1" in str(error.value.fix)


@pytest.mark.parametrize(
    ("wheel", "is_accepted"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-cp311-cp311-manylinux_2_31_x86_64.whl", True),
        ("a-1-cp38-abi3-manylinux2014_x86_64.whl", True),
        ("a-1-cp311-cp311-manylinux_2_34_x86_64.whl", False),
        ("a-1-cp312-cp312-manylinux_2_17_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-manylinux_2_17_aarch64.whl", False),
        ("a-1.tar.gz", False),
    ],
)
def test_wheels_fit_the_images_by_their_tags(wheel: str, is_accepted: bool) -> None:
    assert fits(wheel) is is_accepted


def test_what_the_image_has_is_not_installed_again_nor_what_that_needs(
    project: Project, index: Index, image: Path
) -> None:
    index.wheel("numpy", "2.3")
    index.wheel("tensorflow", "2.21", "numpy", "libclang", "tensorboard ; extra == 'board'")
    index.wheel("torch", "2.13+cpu")
    index.wheel("slipway-ml", "1", "kfp")
    for name in ("libclang", "tensorboard", "kfp", "mine"):
        index.wheel(name)
    path = project.lock(["tensorflow[board]", "torch", "slipway-ml", "mine"])
    image.write_text("tensorflow-cpu==2.21 \\\n    --hash=sha256:ab\nnumpy==2.3\ntorch==2.13\n")
    assert set(pins(exported(path, image))) == {"mine", "tensorboard"}
    image.write_text("\n".join([image.read_text(), "mine==1", "tensorboard==1"]))
    assert exported(path, image) == ""


def test_conflicts_are_named_at_once_and_the_fix_works(project: Project, index: Index, image: Path) -> None:
    for version in ("2.3", "2.4"):
        index.wheel("numpy", version)
        index.wheel("scipy", version, "numpy")
    index.wheel("mine", "1", "scipy")
    path = project.lock(["mine", "numpy"])
    image.write_text("numpy==2.3\n")
    image.with_name("steps-cpu.txt").write_text("scipy==2.3\n")
    with pytest.raises(UserError) as error:
        exported(path, image)
    assert error.value.message == (
        "uv.lock and the image trainer-cpu have other versions of numpy 2.4 (image: 2.3); with the image's, Slipway is "
        "tested."
    )
    fix = str(error.value.fix)
    assert fix == "uv lock --upgrade-package 'numpy==2.3' --upgrade-package 'scipy==2.3'"
    path.write_text(path.read_text().replace(INDEX, index.url))
    project.uv(*fix.replace("'", "").split()[1:], "--default-index", f"{index.url}/simple")
    assert pins(exported(path, image)).keys() == {"mine", "scipy"}
    assert pins(exported(path, image.with_name("steps-cpu.txt"))).keys() == {"mine", "numpy"}


def test_other_indexes_are_named_and_a_mirror_replaces_all(project: Project, index: Index, image: Path) -> None:
    index.wheel("common")
    index.wheel("more")
    index.wheel("special", index="extra")
    sources = '[tool.uv.sources]\nspecial = { index = "extra" }\n[[tool.uv.index]]\nname = "extra"\n'
    path = project.lock(["common", "more", "special"], f'{sources}url = "{index.url}/extra"\nexplicit = true\n')
    text = exported(path, image)
    assert [line for line in text.splitlines() if line.startswith("--")] == [
        "--require-hashes", "--only-binary :all:", f"--extra-index-url {INDEX}/extra",
    ]  # fmt: skip
    mirrored = exported(path, image, index="https://mirror.example/simple")
    assert "--index-url https://mirror.example/simple\n" in mirrored
    assert INDEX not in mirrored and "extra-index" not in mirrored


def test_a_wheel_at_a_url_is_installed_from_there(project: Project, index: Index, image: Path) -> None:
    url = f"{index.url}/files/{index.wheel('direct', '3').name}"
    text = exported(project.lock([f"direct @ {url}"]), image)
    assert re.search(rf"^direct @ {INDEX}/files/direct-3-py3-none-any.whl \\\n    --hash=sha256:\w{{64}}$", text, re.M)


@pytest.mark.parametrize("kind", ["path", "git", "workspace"])
def test_folders_and_repositories_are_refused_but_the_project_itself_is_its_source(
    project: Project, index: Index, image: Path, kind: str
) -> None:
    index.wheel("common")
    other = project.folder / "other"
    (other / "src/other").mkdir(parents=True)
    (other / "src/other/__init__.py").write_text("")
    (other / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "1"\n')
    table = {"path": 'path = "other"', "workspace": "workspace = true"}.get(kind, f'git = "file://{other}"')
    if kind == "git":
        from tests.components.build_image.conftest import git

        git(other, "init", "--quiet")
        git(other, "add", "--all")
        git(other, "commit", "--quiet", "--message", "All of it")
    more = f"[tool.uv.sources]\nother = {{ {table} }}\n" + '[tool.uv.workspace]\nmembers = ["other"]\n' * (
        kind == "workspace"
    )
    with pytest.raises(UserError, match=r"uv.lock has other from .*other.*, which an image's build") as error:
        exported(project.lock(["common", "other"], more), image)
    assert "depend on a release of other" in str(error.value.fix)


def test_extras_of_the_project_itself_are_followed(project: Project, index: Index, image: Path) -> None:
    index.wheel("common")
    index.wheel("more")
    path = project.lock(["demo[all]"], '[project.optional-dependencies]\nall = ["common"]\nother = ["more"]\n')
    assert compare(project, path, image).keys() == {"common"}


def test_extras_that_exclude_each_other(project: Project, index: Index, image: Path) -> None:
    for version in ("1", "2"):
        index.wheel("common", version)
    more = (
        "[project.optional-dependencies]\na = ['common==1']\nb = ['common==2']\n[dependency-groups]\nc = ['common']\n"
    )
    conflicts = '[tool.uv]\nconflicts = [[{ extra = "a" }, { extra = "b" }]]\n'
    path = project.lock(["common"], more + conflicts)
    compare(project, path, image)
    with pytest.raises(UserError, match="exclude each other"):
        exported(path, image, ["c"])


def test_locks_that_are_not_for_the_images_are_refused(project: Project, index: Index, image: Path) -> None:
    index.wheel("common")
    index.wheel("more")
    path = project.lock(["common"])
    path.write_text(path.read_text().replace('requires-python = ">=3.11"', 'requires-python = ">=3.12"'))
    with pytest.raises(UserError, match=r"uv.lock is for Python >=3\.12; the images have 3\.11"):
        exported(path, image)
    only = "[tool.uv]\nenvironments = [\"sys_platform == 'win32'\"]\n"
    with pytest.raises(UserError, match="not for the images' platform"):
        exported(project.lock(["common"], only), image)
    path = project.lock(["common"])
    with pytest.raises(UserError, match="There is no dependency group 'dev'"):
        exported(path, image, ["dev"])
    declared = path.with_name("pyproject.toml")
    declared.write_text(declared.read_text().replace("'common'", "'common', 'more'"))
    with pytest.raises(UserError, match=r"uv.lock is older than pyproject.toml: it lacks more") as error:
        exported(path, image)
    assert error.value.fix == "uv lock"
    path.write_text(path.read_text().replace("version = 1\n", "version = 2\n", 1))
    with pytest.raises(UserError, match="has the format 2"):
        exported(path, image)
    path.write_text("version = 1\n[[package]]\nversion = '1'\n")
    with pytest.raises(UserError, match=r"uv.lock is damaged: KeyError: 'name'"):
        exported(path, image)
    path.write_text("version = [\n")
    with pytest.raises(UserError, match="cannot be read"):
        exported(path, image)
