"""Checks of custom images in their registries: the driver of GPUs, and the entry point of Dataflow's workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slipway.components.build_image.images import BEAM_BOOT, BEAM_LABEL, BEAM_SDK, beam_version
from slipway.core.errors import UserError
from slipway.core.image_reference import ImageReference
from slipway.pipelines.hardware.placement import IMAGE_PYTHON
from slipway.pipelines.images.images import SOURCE_TREE
from slipway.pipelines.platforms.base import CheckWarning, NotApplicableError
from slipway.trainer.distributed.verification import DRIVER_FOLDER

# The driver's libraries and programs, as in containers/Dockerfile.
DRIVER = {"LD_LIBRARY_PATH": f"/{DRIVER_FOLDER}/lib64", "PATH": f"/{DRIVER_FOLDER}/bin"}


def check_driver(
    setting: str, image: str, platform: str, repository: str | None = None, login: tuple[str, str] | None = None
) -> None:
    """Check in its registry that an image looks for the driver where Vertex AI and GKE mount it.

    Args:
        setting: The setting that names the image.
        image: The image.
        platform: The platform that mounts the driver.
        repository: The address to read it from, if it is not its own.
        login: A user and password other than those that `docker login` stored.

    Raises:
        CheckWarning: It does not set a variable.
        NotApplicableError: It cannot be read.
    """
    environment = _environment(_configuration(setting, image, repository, login))
    for variable, folder in DRIVER.items():
        if folder not in environment.get(variable, "").split(":"):
            libraries = DRIVER["LD_LIBRARY_PATH"]
            raise CheckWarning(
                f"{setting} {image} does not set {variable} to {folder}, where {platform} mounts the GPUs' driver, so "
                "its program may find no GPU",
                f"add to its Dockerfile: ENV LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} "
                f"PATH=$PATH:{DRIVER['PATH']}",
            )


def check_boot(setting: str, image: str, repository: str | None = None, login: tuple[str, str] | None = None) -> str:
    """Check in its registry that an image is started by Beam's boot; see `check_driver` for the arguments.

    Returns:
        Its versions of Beam and Python, as far as it names them: images of Python do, and those that Slipway builds.

    Raises:
        CheckWarning: It is not, or it names other versions than those of the step that starts the job. A script that
            ends with boot would do, but cannot be seen.
        NotApplicableError: It cannot be read.
    """
    configuration = _configuration(setting, image, repository, login)
    entry = list(configuration.get("Entrypoint") or ())
    if entry[:1] != [BEAM_BOOT]:
        raise CheckWarning(
            f"the entry point of {setting} {image} is {entry or 'not set'}, not {BEAM_BOOT}, without which Dataflow's "
            "workers never start to work",
            f"add to its Dockerfile: COPY --from={BEAM_SDK}:VERSION /opt/apache/beam /opt/apache/beam, ENV "
            f'RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1, and ENTRYPOINT ["{BEAM_BOOT}"]; or remove {setting}: slipway '
            "builds such an image",
        )
    actual = {
        "Beam": str((configuration.get("Labels") or {}).get(BEAM_LABEL, "")),
        "Python": ".".join(_environment(configuration).get("PYTHON_VERSION", "").split(".")[:2]),
    }
    for name, version in {"Beam": beam_version(SOURCE_TREE), "Python": IMAGE_PYTHON}.items():
        if actual[name] not in ("", version):
            raise CheckWarning(
                f"{setting} {image} has {name} {actual[name]}, but the step that starts the job has {version}, so its "
                "workers may not be able to read the pipeline",
                f"build it with {name} {version}; or remove {setting}: slipway builds such an image",
            )
    return ", ".join(f"{name} {version}" for name, version in actual.items() if version) or "its versions are not known"


def _environment(configuration: Mapping[str, Any]) -> dict[str, str]:
    return dict(variable.partition("=")[::2] for variable in configuration.get("Env") or ())


def _configuration(setting: str, image: str, repository: str | None, login: tuple[str, str] | None) -> dict[str, Any]:
    from slipway.components.build_image.registry import HttpRegistry  # imports urllib.request

    reference = ImageReference.parse(image)
    address = repository or reference.repository
    try:
        configuration = HttpRegistry(setting, login).configuration(address, reference.name, reference.version)
    except UserError as error:
        raise NotApplicableError(f"{image} cannot be read: {error.message}") from None
    if configuration is None:
        raise NotApplicableError(f"there is no image {image}")
    return configuration
