"""Checks of custom images in their registries: the driver of GPUs, and the entry point of Dataflow's workers."""

from __future__ import annotations

from typing import Any

from slipway.components.build_image.images import BEAM_BOOT, BEAM_SDK
from slipway.components.build_image.reference import ImageReference
from slipway.core.errors import UserError
from slipway.pipelines.checks import CheckWarning, NotApplicableError
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
    variables = _configuration(setting, image, repository, login).get("Env") or ()
    environment = dict(variable.partition("=")[::2] for variable in variables)
    for variable, folder in DRIVER.items():
        if folder not in environment.get(variable, "").split(":"):
            libraries = DRIVER["LD_LIBRARY_PATH"]
            raise CheckWarning(
                f"{setting} {image} does not set {variable} to {folder}, where {platform} mounts the GPUs' driver, so "
                "its program may find no GPU",
                f"add to its Dockerfile: ENV LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} "
                f"PATH=$PATH:{DRIVER['PATH']}",
            )


def check_boot(setting: str, image: str, repository: str | None = None, login: tuple[str, str] | None = None) -> None:
    """Check in its registry that an image is started by Beam's boot; see `check_driver` for the arguments.

    Raises:
        CheckWarning: It is not. A script that ends with boot would do, but cannot be seen.
        NotApplicableError: It cannot be read.
    """
    entry = list(_configuration(setting, image, repository, login).get("Entrypoint") or ())
    if entry[:1] != [BEAM_BOOT]:
        raise CheckWarning(
            f"the entry point of {setting} {image} is {entry or 'not set'}, not {BEAM_BOOT}, without which Dataflow's "
            "workers never start to work",
            f"add to its Dockerfile: COPY --from={BEAM_SDK}:VERSION /opt/apache/beam /opt/apache/beam, ENV "
            f'RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1, and ENTRYPOINT ["{BEAM_BOOT}"]; or remove {setting}: slipway '
            "builds such an image",
        )


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
