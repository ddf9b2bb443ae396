"""Find a job's program: the folder or archive with its source, and how `train.module` imports it."""

from __future__ import annotations

import ast
import contextlib
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from slipway.core.errors import UserError
from slipway.pipelines.migrate.changes import Change, changes_in
from slipway.pipelines.migrate.job import LegacyJob
from slipway.pipelines.migrate.replacement import Notes

ARCHIVES = (".tar.gz", ".tgz", ".zip", ".whl")
# Not part of the program: how it was packaged.
PACKAGING = ("setup.py", "build", "dist")


@dataclass(frozen=True)
class Program:
    """A module's source: what has to change in it, and the archive from which it is unpacked, if it is in one."""

    module: str
    changes: tuple[Change, ...] = ()
    archive: Path | None = None

    def unpack(self, folder: Path) -> list[Path]:
        """Copy the archive's packages and modules into `folder`, and return them; nothing without an archive.

        Raises:
            UserError: One of them exists already.
        """
        if self.archive is None:
            return []
        with _unpacked(self.archive, self.module) as root:
            assert root is not None  # found when the job was read
            parts = [entry for entry in sorted(root.iterdir()) if _is_importable(entry)]
            for part in parts:
                if (folder / part.name).exists():
                    raise UserError(
                        f"{folder / part.name} already exists, and {self.archive} would be unpacked there.",
                        setting="packageUris",
                        value=str(self.archive),
                        fix=f"choose another folder for -o, or move {folder / part.name}",
                    )
            for part in parts:
                copy = shutil.copytree if part.is_dir() else shutil.copy
                copy(part, folder / part.name)
            return [folder / copied.name for copied in parts]


def find(module: str, job: LegacyJob, notes: Notes) -> Program:
    """Return a job's program: in its package path, else in its archives, else in this folder.

    Notes how the module is imported and which requirements it has, or that its source was not found.
    """
    uris, package_path = job.values["packageUris"], job.text("--package-path")
    archives = {uri: _path(uri) for uri in uris if "://" not in uri}
    program = None
    if package_path is not None:
        program = _in_folder(_path(package_path), module, notes)
    for uri, archive in archives.items() if program is None else ():
        if not archive.is_file():
            notes.decisions.append(f"train.module: {archive} does not exist here, so its source was not read.")
            continue
        with _unpacked(archive, module) as root:
            if root is not None:
                notes.changed.append(f"{uri} is unpacked next to the written configuration; git add it for the image")
                program = Program(module, _read(root, module, notes), archive)
                break
    if program is None and _has(Path.cwd(), module):
        notes.changed.append(f"{module} is in this folder; train.module imports it")
        program = Program(module, _read(Path.cwd(), module, notes))
    remote = [uri for uri in uris if "://" in uri]
    if remote and program is None:
        names = ",".join(uri.rpartition("/")[2] for uri in remote)
        notes.decisions.append(
            f"train.module: {', '.join(remote)} is not on this machine, so its source was not read. Copy it (gcloud "
            f"storage cp {' '.join(remote)} .), and name the copy: slipway migrate -- --config FILE --packages {names}."
        )
    for uri in uris if program is not None else ():
        if not uri.rpartition("/")[2].startswith(module.partition(".")[0]):
            notes.decisions.append(
                f"train.module: {uri} was installed as well; install it here, and pin it in build.requirements."
            )
    if program is None and not uris and package_path is None:
        notes.decisions.append(
            f"train.module: {module} is not in this folder, so its source was not read. Migrate in the program's "
            "folder, or name it with gcloud's flag: slipway migrate -- --config FILE --package-path FOLDER."
        )
    return program or Program(module)


def _in_folder(path: Path, module: str, notes: Notes) -> Program | None:
    """Return the program in a package path; None, and a note, if it is not there."""
    root = next((candidate for candidate in (path.parent, path) if path.is_dir() and _has(candidate, module)), None)
    if root is None:
        notes.decisions.append(f"train.module: there is no {module} in {path}, so its source was not read.")
        return None
    if root.resolve() != Path.cwd():
        notes.decisions.append(f"train.module: Slipway imports {module} from the folder where it is started: {root}.")
    else:
        notes.changed.append(f"{path} stays where it is; train.module imports it")
    return Program(module, _read(root, module, notes))


def _read(root: Path, module: str, notes: Notes) -> tuple[Change, ...]:
    """Return what has to change in a module below `root`; note the requirements of its setup.py."""
    requirements = _requirements(root / "setup.py")
    if requirements:
        notes.decisions.append(
            f"train.module: setup.py requires {', '.join(requirements)}; install what is missing here, and "
            "pin it in build.requirements for Vertex AI."
        )
    return tuple(changes_in(root, module))


def _requirements(setup: Path) -> list[str]:
    """Return the literal install_requires of a setup.py, or of the constant that it names."""
    try:
        tree = ast.parse(setup.read_text())
    except (OSError, ValueError, SyntaxError):
        return []
    named = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "install_requires":
            value = named.get(node.value.id, node.value) if isinstance(node.value, ast.Name) else node.value
            with contextlib.suppress(ValueError):
                return [str(requirement) for requirement in ast.literal_eval(value)]
            return [ast.unparse(value)]
    return []


@contextlib.contextmanager
def _unpacked(archive: Path, module: str) -> Iterator[Path | None]:
    """Unpack an archive, and provide the folder in it from which `module` is imported; None if it has none."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        try:
            if not archive.name.endswith(ARCHIVES):
                raise ValueError(f"its name does not end in {', '.join(ARCHIVES)}")
            if archive.name.endswith((".whl", ".zip")):
                shutil.unpack_archive(archive, root, "zip")
            else:
                with tarfile.open(archive, "r:gz") as opened:
                    opened.extraction_filter = lambda member, _folder: member  # Python 3.11.2 has no filters
                    opened.extractall(root, list(_members(opened)))
        except (OSError, ValueError, EOFError, shutil.ReadError, tarfile.TarError, zipfile.BadZipFile) as error:
            raise UserError(
                f"{archive} cannot be unpacked: {error}",
                setting="packageUris",
                value=str(archive),
                allowed="a source distribution (.tar.gz) or a wheel",
                fix="correct packageUris, or pass the program's folder with --package-path",
            ) from None
        yield next(
            (candidate for candidate in (root, *root.glob("*"), *root.glob("*/src")) if _has(candidate, module)), None
        )


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the archive's files and folders; programs need no links or devices."""
    for member in archive:
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"its member {member.name} is outside its folder")
        if member.isfile() or member.isdir():
            yield member


def _is_importable(path: Path) -> bool:
    if path.name in PACKAGING or path.name.startswith("."):
        return False
    return path.suffix == ".py" if path.is_file() else any(path.rglob("*.py"))


def _has(root: Path, module: str) -> bool:
    path = root.joinpath(*module.split("."))
    return path.with_name(f"{path.name}.py").is_file() or (path / "__main__.py").is_file()


def _path(text: str) -> Path:
    return Path(text.replace("\0", "")).expanduser()
