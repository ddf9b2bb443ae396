"""What `build.requirements` stands for, and the exports of pylock.toml and pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from slipway.components.build_image.locks.export import exported, file_of
from slipway.core.errors import UserError

DIGEST = "ab" * 32
HEAD = 'lock-version = "1.0"\ncreated-by = "mine"\n'
WHEEL = f'wheels = [{{ url = "https://files.example/FILE", hashes = {{ sha256 = "{DIGEST}", md5 = "00" }} }}]\n'


def package(name: str, version: str = "1", more: str | None = None, marker: str = "") -> str:
    file = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    text = WHEEL.replace("FILE", file) if more is None else f"{more}\n"
    return f'[[packages]]\nname = "{name}"\nversion = "{version}"\n{marker}{text}'


@pytest.fixture
def pylock(tmp_path: Path, image: Path):
    """Return the export of a pylock.toml with this text after its head."""

    def export(text: str, *groups: str) -> str:
        (tmp_path / "pylock.toml").write_text(HEAD + text)
        return exported(tmp_path / "pylock.toml", image, groups)

    return export


def test_auto_is_the_first_of_the_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no lock file") as error:
        file_of(tmp_path, "auto")
    assert error.value.allowed == "pylock.toml, uv.lock, requirements.txt, pyproject.toml"
    for name in ("pyproject.toml", "requirements.txt", "uv.lock", "pylock.toml"):
        (tmp_path / name).touch()
        assert file_of(tmp_path, "auto").name == name
    assert file_of(tmp_path, "more.txt") == tmp_path / "more.txt"


def test_of_a_pylock_the_packages_of_the_images_platform_are_installed(pylock, image: Path) -> None:
    image.write_text("numpy==2.3\n")
    text = pylock(
        'default-groups = ["main"]\ndependency-groups = ["main", "more"]\n'
        + package("b") + package("numpy", "2.3")
        + package("a", "2", marker="marker = \"'main' in dependency_groups\"\n")
        + package("c", marker="marker = \"'more' in dependency_groups\"\n")
        + package("d", marker="marker = \"sys_platform == 'win32'\"\n")
    )  # fmt: skip
    assert text == (
        "# Exported from pylock.toml for trainer-cpu.\n--require-hashes\n--only-binary :all:\n"
        f"a==2 \\\n    --hash=sha256:{DIGEST}\nb==1 \\\n    --hash=sha256:{DIGEST}\n"
    )
    grouped = 'dependency-groups = ["more"]\n' + package("c", marker="marker = \"'more' in dependency_groups\"\n")
    assert pylock(grouped) == ""
    assert "c==1" in pylock(grouped, "more")


def test_an_archive_at_a_url_and_the_project_itself(pylock) -> None:
    archive = f'archive = {{ url = "https://f.example/a-3-py3-none-any.whl", hashes = {{ sha256 = "{DIGEST}" }} }}\n'
    project = '[[packages]]\nname = "demo"\ndirectory = { path = ".", editable = true }\n'
    text = pylock(f'{project}[[packages]]\nname = "a"\n{archive}')
    assert text.endswith(f"a @ https://f.example/a-3-py3-none-any.whl \\\n    --hash=sha256:{DIGEST}\n")


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (package("numpy", "2.4"), r"other versions of numpy 2.4 \(image: 2.3\)", "-c image.txt -o pylock.toml"),
        (
            package("a", more='vcs = { type = "git", url = "https://g.example/a", commit-id = "1" }'),
            "a from https",
            "rel",
        ),
        (package("a", more='directory = { path = "../a" }'), r"a from \.\./a", "depend on a release of a"),
        (
            package("a", more='wheels = [{ path = "x/a-1-py3-none-any.whl", hashes = { sha256 = "00" } }]'),
            "a from x",
            "",
        ),
        (
            package("a", more='sdist = { url = "https://f.example/a-1.tar.gz", hashes = { sha256 = "00" } }'),
            "a 1, which has no wheel for the images",
            "pip wheel --no-deps a==1",
        ),
        (
            package("a", more=WHEEL.replace("FILE", "a-1-cp312-cp312-win_amd64.whl")),
            "is not for the images: No wheel found",
            "uv pip compile pyproject.toml -o pylock.toml",
        ),
        (
            package("a", more='wheels = [{ url = "https://f.example/a-1-py3-none-any.whl", hashes = { md5 = "00" } }]'),
            "has no hash of a",
            "uv pip compile",
        ),
        ('requires-python = ">=3.12"\n' + package("a"), "is not for the images: python_full_version '3.11.9'", ""),
        (package("slipway-ml"), "has slipway-ml, with all that it needs", "uv export --format pylock.toml --prune"),
        ("packages = 1\n", "is not for the images: ", ""),
    ],
)
def test_what_no_image_can_have_is_refused(pylock, image: Path, text: str, message: str, fix: str) -> None:
    image.write_text("numpy==2.3\n")
    with pytest.raises(UserError, match=message) as error:
        pylock(text)
    assert (error.value.setting, error.value.value) == ("build.requirements", "pylock.toml")
    assert fix in str(error.value.fix)


def test_of_pyproject_what_the_image_lacks_is_installed_unlocked(tmp_path: Path, image: Path) -> None:
    image.write_text("numpy==2.3\ntensorflow-cpu==2.21\n")
    path = tmp_path / "pyproject.toml"
    start = '[project]\nname = "demo"\ndependencies = '
    path.write_text(
        f"{start}['numpy>=2', 'tensorflow', 'slipway-ml[cloud]', 'a[x]>=1,<2; sys_platform == \"linux\"', "
        "'b; sys_platform == \"win32\"']\n"
    )
    assert exported(path, image) == "# unlocked\na[x]<2,>=1\n"
    assert "--index-url https://mirror.example/simple" in exported(path, image, index="https://mirror.example/simple")
    path.write_text(f"{start}['numpy']\n")
    assert exported(path, image) == ""
    for text, message in (
        ("['numpy<2']", r"requires numpy<2; the image trainer-cpu has numpy 2.3"),
        ("['a @ git+https://g.example/a']", "has a from git"),
        ("['a b']", "invalid dependency: a b"),
        ("[]\ndynamic = ['dependencies']", "are dynamic"),
    ):
        path.write_text(f"{start}{text}\n")
        with pytest.raises(UserError, match=message):
            exported(path, image)


def test_other_lock_files_are_refused(tmp_path: Path, image: Path) -> None:
    (tmp_path / "poetry.lock").touch()
    with pytest.raises(UserError, match=r"poetry.lock is no lock file that Slipway reads"):
        exported(tmp_path / "poetry.lock", image)
