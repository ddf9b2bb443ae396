"""The container images of a run, tagged by content: looked up in the registry or built, and returned by digest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from slipway.components.build_image.build import (
    ImageRequest,
    build_locally,
    ensure,
    find,
    registry_of,
    request_of,
)
from slipway.components.build_image.cloud_build import CloudBuildSettings, Source
from slipway.components.build_image.context import Context, beam_context, is_checkout, make_context
from slipway.components.build_image.images import ANY_USER, image_kind
from slipway.components.build_image.project import ProjectContent, project_content
from slipway.components.build_image.reference import artifact_repository
from slipway.components.cloud.retries import is_transient
from slipway.components.cloud.settings import CloudSettings
from slipway.components.prepare_data.sources import source_kind
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig, load, vertex_of
from slipway.pipelines.hardware import Hardware
from slipway.trainer.engines.builder import module_spec
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.hooks import functions

SOURCE_TREE = Path(__file__).parents[3]
Say = Callable[[str], None]
# Most untracked files that a build warns about by name.
MAX_NAMED = 10


@dataclass(frozen=True)
class VerifiedBuild:
    """Arguments of the pipeline's step build_image: the trainer's image, its context, and Cloud Build settings."""

    request: ImageRequest
    source: Source
    settings: CloudBuildSettings


@dataclass(frozen=True)
class Images:
    """The images in a run's spec: for the steps, for training, for the step evaluate, and for serving the model.

    `evaluation` equals `steps` unless the engine's models need additional packages. `serving` is None if
    `vertex.serving_image` is set, `beam` (for Dataflow's workers) unless the run uses Dataflow and names no image for
    them. `build` is None if nothing is built during the run.
    """

    steps: str
    trainer: str
    evaluation: str
    serving: str | None = None
    build: VerifiedBuild | None = None
    beam: str | None = None

    @classmethod
    def one(cls, image: str) -> Images:
        """Return images that are all the same."""
        return cls(image, image, image)

    def by_role(self) -> dict[str, str]:
        """Return the distinct URIs by role."""
        uris = {"steps": self.steps, "trainer": self.trainer}
        if self.evaluation != self.steps:
            uris["evaluation"] = self.evaluation
        others = {"serving": self.serving, "beam": self.beam}
        return uris | {role: uri for role, uri in others.items() if uri is not None}


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


def wanted_images(config: RunConfig, say: Say, *, without_git: bool = False) -> dict[str, Wanted]:
    """Return the images for a run on Vertex AI by role: steps, trainer, evaluation if it needs a separate one, serving,
    and beam for Dataflow's workers.

    With an image of the user's own for training (`train.image`) or serving (`vertex.serving_image`), none for that.
    `without_git` accepts a project in no git checkout, and returns the images that it has once git tracks its files.

    Raises:
        UserError: No image can be built: no checkout, files that git does not track, or no such image.
    """
    settings = vertex_of(config)
    base, repository, user = settings.build.base, settings.image_repository, settings.build.run_as
    accelerator = accelerator_of(config.parsed_hardware)
    content = own_content(config, without_git=without_git)  # the same in all images
    wanted = {
        "steps": wanted_image(config, "steps", "cpu", base, repository, say, user, with_engine=False, content=content)
    }
    if config.train.image is None:
        wanted["trainer"] = wanted_image(config, "trainer", accelerator, base, repository, say, user, content=content)
    needs_engine = not ENGINES[config.train.engine].exports_saved_model
    if needs_engine:
        wanted["evaluation"] = wanted_image(config, "steps", "cpu", base, repository, say, user, content=content)
    if settings.serving_image is None:
        served = content if config.serve.module else ({}, None)  # other models need nothing of the project
        kind = config.serve.accelerator
        wanted["serving"] = wanted_image(
            config, "serving", kind, base, repository, say, with_engine=needs_engine, content=served
        )
    if needs_beam_image(config):
        # Its tag is that of the steps' image, which does not move; it is built on that image by digest.
        context = beam_context(SOURCE_TREE, wanted["steps"].request.uri)
        wanted["beam"] = Wanted(context, request_of(context, repository), based_on="steps")
    return wanted


def needs_beam_image(config: RunConfig) -> bool:
    """Return whether a run uses Dataflow and names no image for its workers."""
    beam = config.prepared.beam if config.prepared else None
    return beam is not None and beam.on_dataflow and not beam.options.get("sdk_container_image")


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
    own, project = content or own_content(config)
    context = make_context(SOURCE_TREE, kind, base, own, project)
    for name in context.excluded[:MAX_NAMED]:
        say(f"excluded from the image {kind.name} because git does not track it: {name}")
    if len(context.excluded) > MAX_NAMED:
        say(f"excluded from the image {kind.name} for the same reason: {len(context.excluded) - MAX_NAMED} more files")
    return Wanted(context, request_of(context, repository))


def ensure_images(config: RunConfig, log: TextIO, say: Say, builder: str | None = None) -> Images:
    """Return the images of a run on Vertex AI by digest, building those that the registry does not have.

    Args:
        config: The run's configuration; with `vertex.image` set nothing is built.
        log: Receives the builders' output.
        say: Receives one line for each image.
        builder: Replaces vertex.build.builder.

    Raises:
        UserError: The user can fix it: missing permissions, a missing repository, untracked files.
        WorkFailed: A build failed.
    """
    settings = vertex_of(config)
    if settings.image is not None:
        return Images.one(settings.image)
    wanted = wanted_images(config, say)
    uris = _ensured(wanted, settings, log, say, builder)
    return _images(config, uris, _verified(settings, wanted.get("trainer"), upload=True))


def trainer_image(config: RunConfig, settings: CloudSettings, log: TextIO, say: Say, builder: str | None = None) -> str:
    """Return the image that trains on Cloud TPU VMs by digest, building it if the registry does not have it.

    Raises:
        UserError: The user can fix it: missing permissions, a missing repository, untracked files.
        WorkFailed: The build failed.
    """
    if own := config.train.image or settings.image:
        return own
    return _ensured({"trainer": wanted_trainer(config, settings, say)}, settings, log, say, builder)["trainer"]


def _ensured(
    wanted: Mapping[str, Wanted], settings: CloudSettings, log: TextIO, say: Say, builder: str | None
) -> dict[str, str]:
    """Return images by digest and role, building those that the registry does not have."""
    builder = builder or settings.build.builder
    check_builder(settings, builder)
    registry = registry_of(settings.image_repository, settings.connection)
    uris: dict[str, str] = {}
    for role, image in wanted.items():
        found = find(image.request, registry)
        if found is None:
            if image.based_on:
                image = image.built_on(uris[image.based_on])
            say(f"building {image.request.uri} with {builder}")
            found = ensure(image.request, registry, partial(_build, settings, image, log, builder)).uri
        say(f"image {found}")
        uris[role] = found
    return uris


def known_trainer(config: RunConfig, settings: CloudSettings, say: Say) -> str:
    """Return the image for a spec that is only compiled, by its tag if it is one that a run builds."""
    return config.train.image or settings.image or wanted_trainer(config, settings, say, without_git=True).request.uri


def wanted_trainer(config: RunConfig, settings: CloudSettings, say: Say, *, without_git: bool = False) -> Wanted:
    """Return the trainer's image on Cloud TPU VMs; see `wanted_images` for the arguments and errors."""
    build, content = settings.build, own_content(config, without_git=without_git)
    repository = settings.image_repository
    return wanted_image(config, "trainer", "tpu", build.base, repository, say, build.run_as, content=content)


def known_images(config: RunConfig, say: Say) -> Images:
    """Return the images for a spec that is only compiled; nothing is built or uploaded.

    Images are named by digest if the registry has their tag; otherwise by tag, with a warning.
    """
    settings = vertex_of(config)
    if settings.image is not None:
        return Images.one(settings.image)
    wanted = wanted_images(config, say, without_git=True)
    try:
        registry = registry_of(settings.image_repository, settings.connection)
        found = {role: find(image.request, registry) for role, image in wanted.items()}
    except Exception as error:
        if not isinstance(error, UserError) and not is_transient(error):
            raise
        say(f"could not look up the images' digests: {getattr(error, 'message', error)}")
        found = dict.fromkeys(wanted)
    for role, image in wanted.items():
        if found[role] is None:
            say(f"not built yet, using its tag: {image.request.uri} (to build it: slipway build --target vertex)")
    uris = {role: found[role] or image.request.uri for role, image in wanted.items()}
    build = _verified(settings, wanted.get("trainer"), upload=False) if all(found.values()) else None
    return _images(config, uris, build)


def _images(config: RunConfig, uris: Mapping[str, str], build: VerifiedBuild | None) -> Images:
    steps, trainer = uris["steps"], config.train.image or uris["trainer"]
    return Images(steps, trainer, uris.get("evaluation", steps), uris.get("serving"), build, uris.get("beam"))


def own_content(config: RunConfig, *, without_git: bool = False) -> tuple[dict[str, Path], ProjectContent | None]:
    """Return the user's own content of a run's images; see `wanted_images` for `without_git`.

    Returns:
        The packages and modules outside of the project's folder that the run imports, by name (a folder or a .py file),
        and the content of the project: None if the run needs nothing of it, or if it is Slipway's own checkout, where
        only what the run imports is included.
    """
    own, folder = own_code(config), Path.cwd()
    if is_checkout(SOURCE_TREE) and folder.is_relative_to(SOURCE_TREE):
        return own, None
    inside = [name for name, path in own.items() if path.parent == folder]
    if not inside and not config.build.include and not config.build.requirements:
        return own, None
    content = project_content(folder, config.build, inside, partial(_is_configuration, config), without_git=without_git)
    return {name: path for name, path in own.items() if name not in inside}, content


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
    used = (*programs, *functions(config.train).values(), *config.evaluate.slice_functions)
    names = [name for name in used if name]
    if config.prepared and not source_kind(config.prepared.source).prefix:
        names.append(config.prepared.source)
    found = {}
    for name in names:
        package = name.partition(":")[0].partition(".")[0]
        if package != "slipway":
            found[package] = _place(package, name)
    return found


def _place(package: str, reference: str) -> Path:
    spec = module_spec(package, Path.cwd())
    if spec is None:
        raise UserError(f"There is no Python module {package}.", setting="model.builder", value=reference)
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(str(spec.origin))


def cloud_build(settings: CloudSettings) -> CloudBuildSettings:
    """Return the settings of Cloud Build."""
    return CloudBuildSettings(
        project=settings.project,
        region=settings.region,
        endpoints=settings.endpoints,
        bucket=settings.bucket.removeprefix("gs://"),
        service_account=settings.build.service_account,
        build_region=settings.build.region,
        section=settings.section,
    )


def check_builder(settings: CloudSettings, builder: str) -> None:
    """Raise UserError if a builder cannot push to the repository."""
    if builder == "cloud-build" and not artifact_repository(settings.image_repository):
        raise UserError(
            "Cloud Build can push only to Artifact Registry.",
            setting=f"{settings.section}.build.repository",
            value=settings.build.repository,
            allowed="the name of an Artifact Registry repository, or another builder",
            nearest="slipway",
            fix="--builder docker",
        )


def _build(settings: CloudSettings, image: Wanted, log: TextIO, builder: str) -> str | None:
    """Build and push an image; return its digest if the builder reports it."""
    request, archive = image.request, image.context.archive()
    if builder != "cloud-build":
        build_locally(request, builder, archive, log)
        return None
    service = cloud_build(settings).service()
    source = service.upload(archive, _source_name(image))
    return service.build(source, request.uri, request.arguments, request.labels, log)


def _source_name(image: Wanted) -> str:
    return f"{image.request.name}-{image.request.tag}"


def _verified(settings: CloudSettings, trainer: Wanted | None, *, upload: bool) -> VerifiedBuild | None:
    """Return the arguments of the step build_image; None if it builds none with Cloud Build and Artifact Registry."""
    if trainer is None or settings.build.builder != "cloud-build" or not artifact_repository(settings.image_repository):
        return None
    parameters = cloud_build(settings)
    service = parameters.service()
    name = _source_name(trainer)
    source = service.upload(trainer.context.archive(), name) if upload else service.uploaded(name)
    return VerifiedBuild(trainer.request, source, parameters) if source else None
