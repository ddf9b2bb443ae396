"""The check that an image's programs find the driver of GPUs."""

from __future__ import annotations

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
    from slipway.components.build_image.registry import HttpRegistry  # imports urllib.request

    reference = ImageReference.parse(image)
    address = repository or reference.repository
    try:
        environment = HttpRegistry(setting, login).environment(address, reference.name, reference.version)
    except UserError as error:
        raise NotApplicableError(f"{image} cannot be read: {error.message}") from None
    if environment is None:
        raise NotApplicableError(f"there is no image {image}")
    for variable, folder in DRIVER.items():
        if folder not in environment.get(variable, "").split(":"):
            libraries = DRIVER["LD_LIBRARY_PATH"]
            raise CheckWarning(
                f"{setting} {image} does not set {variable} to {folder}, where {platform} mounts the GPUs' driver, so "
                "its program may find no GPU",
                f"add to its Dockerfile: ENV LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}} "
                f"PATH=$PATH:{DRIVER['PATH']}",
            )
