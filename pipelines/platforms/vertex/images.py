"""The images of a run on Vertex AI, by role."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

from slipway.components.build_image.build import find, registry_of, request_of
from slipway.components.build_image.context import beam_context
from slipway.components.cloud.retries import is_transient
from slipway.core.errors import UserError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.images.images import SOURCE_TREE, Say, Wanted, accelerator_of, own_content, wanted_image
from slipway.pipelines.images.registry import VerifiedBuild, ensured, verified
from slipway.pipelines.platforms.vertex.settings import vertex_of
from slipway.trainer.engines.table import ENGINES


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
        optional = {"serving": self.serving, "beam": self.beam}
        return uris | {role: uri for role, uri in optional.items() if uri is not None}


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
    accelerator = accelerator_of(config.training_hardware)
    content = own_content(config, without_git=without_git)  # the same in all images
    images = {
        "steps": wanted_image(config, "steps", "cpu", base, repository, say, user, with_engine=False, content=content)
    }
    if config.train.image is None:
        images["trainer"] = wanted_image(config, "trainer", accelerator, base, repository, say, user, content=content)
    needs_engine = not ENGINES[config.train.engine].exports_saved_model
    if needs_engine:
        images["evaluation"] = wanted_image(config, "steps", "cpu", base, repository, say, user, content=content)
    if settings.serving_image is None:
        served = content if config.serve.module else ({}, None)  # other models need nothing of the project
        kind = config.serve.accelerator
        images["serving"] = wanted_image(
            config, "serving", kind, base, repository, say, with_engine=needs_engine, content=served
        )
    if needs_beam_image(config):
        # Its tag is that of the steps' image, which does not move; it is built on that image by digest.
        context = beam_context(SOURCE_TREE, images["steps"].request.uri)
        images["beam"] = Wanted(context, request_of(context, repository), based_on="steps")
    return images


def needs_beam_image(config: RunConfig) -> bool:
    """Return whether a run uses Dataflow and names no image for its workers."""
    beam = config.prepared.beam if config.prepared else None
    return beam is not None and beam.on_dataflow and not beam.options.get("sdk_container_image")


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
    images = wanted_images(config, say)
    uris = ensured(images, settings, log, say, builder)
    return _images(config, uris, verified(settings, images.get("trainer"), upload=True))


def known_images(config: RunConfig, say: Say) -> Images:
    """Return the images for a spec that is only compiled; nothing is built or uploaded.

    Images are named by digest if the registry has their tag; otherwise by tag, with a warning.
    """
    settings = vertex_of(config)
    if settings.image is not None:
        return Images.one(settings.image)
    images = wanted_images(config, say, without_git=True)
    try:
        registry = registry_of(settings.image_repository, settings.connection)
        existing = {role: find(image.request, registry) for role, image in images.items()}
    except Exception as error:
        if not isinstance(error, UserError) and not is_transient(error):
            raise
        say(f"could not look up the images' digests: {getattr(error, 'message', error)}")
        existing = dict.fromkeys(images)
    for role, image in images.items():
        if existing[role] is None:
            say(
                f"not built yet, using its tag: {image.request.uri} (to build it: slipway config build --target vertex)"
            )
    uris = {role: existing[role] or image.request.uri for role, image in images.items()}
    build = verified(settings, images.get("trainer"), upload=False) if all(existing.values()) else None
    return _images(config, uris, build)


def _images(config: RunConfig, uris: Mapping[str, str], build: VerifiedBuild | None) -> Images:
    steps, trainer = uris["steps"], config.train.image or uris["trainer"]
    return Images(steps, trainer, uris.get("evaluation", steps), uris.get("serving"), build, uris.get("beam"))
