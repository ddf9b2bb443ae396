"""What the container images of a run contain, by which they are tagged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from slipway.components.build_image.build import ImageRequest, request_of
from slipway.components.build_image.context import Context, is_checkout, make_context
from slipway.components.build_image.images import ANY_USER, image_kind
from slipway.components.build_image.project import ProjectContent, project_content
from slipway.components.build_image.settings import ContentSettings
from slipway.components.prepare_data.sources import source_kind
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.hardware import Hardware
from slipway.trainer.engines.builder import module_spec

SOURCE_TREE = Path(__file__).parents[3]
Say = Callable[[str], None]
# Most untracked files that a build warns about by name.
MAX_NAMED = 10


@dataclass(frozen=True)
class Wanted:
    """An image that a run needs: its build context and its build request.

    `based_on` is the role of the image on which it is built, if that is one of the run's, too.
    """

    context: Context
    request: ImageRequest
    based_on: str | None = None

    def built_on(self, base: str) -> Wanted:
        """Return the same image, to be built on `base`."""
        request = self.request.model_copy(update={"arguments": {**self.request.arguments, "BASE": base}})
        return replace(self, request=request)

    @property
    def title(self) -> str:
        """Its name and tag."""
        return f"{self.request.name}:{self.request.tag}"


def accelerator_of(hardware: Hardware) -> str:
    """Return the kind of image for a choice of hardware: cpu, gpu or tpu."""
    if hardware.accelerator_row is None:
        return "cpu"
    return "tpu" if hardware.is_tpu else "gpu"


def wanted_image(
    config: RunConfig,
    role: str,
    accelerator: str,
    base: str,
    repository: str,
    say: Say,
    run_as: str = ANY_USER,
    *,
    with_engine: bool = True,
    content: tuple[dict[str, Path], ProjectContent | None] | None = None,
) -> Wanted:
    """Return one image of a run; files that git neither tracks nor ignores are excluded and reported with `say`.

    `run_as` is the image's user; `with_engine` says whether the image contains the training engine; `content` is the
    result of `own_content`, if several images share it.
    """
    kind = image_kind(SOURCE_TREE, role, accelerator, config.train.engine if with_engine else "tensorflow", run_as)
    user_files, project = content or own_content(config)
    context = make_context(SOURCE_TREE, kind, base, user_files, project)
    for name in context.excluded[:MAX_NAMED]:
        say(f"excluded from the image {kind.name} because git does not track it: {name}")
    if len(context.excluded) > MAX_NAMED:
        say(f"excluded from the image {kind.name} for the same reason: {len(context.excluded) - MAX_NAMED} more files")
    return Wanted(context, request_of(context, repository))


def own_content(config: RunConfig, *, without_git: bool = False) -> tuple[dict[str, Path], ProjectContent | None]:
    """Return the user's own content of a run's images.

    `without_git` accepts a project in no git checkout, as it is once git tracks its files.

    Returns:
        The packages and modules outside of the project's folder that the run imports, by name (a folder or a .py file),
        and the content of the project: None if the run needs nothing of it, or if it is Slipway's own checkout, where
        only what the run imports is included.
    """
    user_files, folder = own_code(config), Path.cwd()
    if is_checkout(SOURCE_TREE) and folder.is_relative_to(SOURCE_TREE):
        return user_files, None
    inside = [name for name, path in user_files.items() if path.parent == folder]
    build = config.section(ContentSettings) or ContentSettings()
    if not inside and not build.include and not build.requirements and not _reads_query(config):
        return user_files, None
    content = project_content(folder, build, inside, partial(_is_configuration, config), without_git=without_git)
    return {name: path for name, path in user_files.items() if name not in inside}, content


def _reads_query(config: RunConfig) -> bool:
    """Return whether the data's source is a query in a file of the project, which the step then has in its image."""
    source = config.prepared.source if config.prepared else ""
    return source.startswith("bigquery:") and source.lower().endswith(".sql") and "://" not in source


def _is_configuration(config: RunConfig, path: Path) -> bool:
    """Return whether a file is a run configuration, this run's or another: a new one does not build new images."""
    if path.suffix not in (".yaml", ".yml"):
        return False
    if config.file is not None and path.resolve() == config.file.resolve():
        return True
    try:
        load(path)
    except UserError:
        return False
    return True


def own_code(config: RunConfig) -> dict[str, Path]:
    """Return the user's packages and modules that a run imports, by name: a folder or a .py file."""
    trained = None if config.train.image else config.train.module  # an image of one's own contains it
    programs = (config.model and config.model.builder, trained, config.evaluate.module, config.serve.module)
    used = (*programs, *config.train.functions.values(), *config.evaluate.slice_functions)
    names = [name for name in used if name]
    if config.prepared and not source_kind(config.prepared.source).prefix:
        names.append(config.prepared.source)
    modules = {}
    for name in names:
        package = name.partition(":")[0].partition(".")[0]
        if package != "slipway":
            modules[package] = _place(package, name)
    return modules


def _place(package: str, reference: str) -> Path:
    spec = module_spec(package, Path.cwd())
    if spec is None:
        raise UserError(f"There is no Python module {package}.", setting="model.builder", value=reference)
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(str(spec.origin))
