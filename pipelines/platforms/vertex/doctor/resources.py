"""Checks of the run's Google Cloud project."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import re
from collections.abc import Callable

from slipway.components.build_image.refusals import is_legacy
from slipway.components.cloud import policies
from slipway.components.cloud.connection import Connection
from slipway.components.cloud.known_errors.table import as_user_error
from slipway.components.cloud.refusals import is_absent, member_of, refusal, refusing
from slipway.components.cloud.retries import retried, status_of
from slipway.components.cloud.roles import permissions_of
from slipway.components.cloud.rules import check_bucket_region
from slipway.components.prepare_data.publishing.store import DISK_SETTING, USABLE, disk_fix
from slipway.components.prepare_data.sources import source_kind
from slipway.components.setup_access.access import COMMAND
from slipway.components.setup_access.desired import Binding
from slipway.components.setup_access.difference import Line, blocking
from slipway.components.setup_access.requirements import ACT_AS, BUILDS, PROJECT, SUBMITTER, VERTEX_USER, roles_for
from slipway.core.errors import UserError
from slipway.core.image_reference import ImageReference
from slipway.pipelines.hardware.quotas import DEFAULT_DISK_GB
from slipway.pipelines.images.inspection import check_boot, check_driver
from slipway.pipelines.platforms.base import CheckWarning, Context, NotApplicableError
from slipway.pipelines.platforms.vertex.doctor.project import Project
from slipway.pipelines.platforms.vertex.facts import check_serving_image, facts_of
from slipway.pipelines.platforms.vertex.settings import VertexSettings

# Vertex AI's, whose title in the console has been Agent Platform API since 2026.
VERTEX_API = "aiplatform.googleapis.com"
# Number of missing items named in an error; setup shows them all.
SHOWN = 3
# Sources of which a few requests tell the size.
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
COMPRESSED = (".tar.gz", ".tgz")
MAX_OBJECTS = 10_000


def serving_image(context: Context) -> str:
    """An image can serve the registered model: the configured one, or one that is built."""
    settings = context.config.section(VertexSettings)
    if settings is None:
        raise NotApplicableError("the section vertex is missing")
    check_serving_image(settings, context.config)
    return settings.serving_image or f"Slipway's, for {context.config.serve.accelerator}"


def credentials(context: Context) -> str:
    """There are credentials, and Google accepts them."""
    return context.shared(Project).caller() or "user credentials from gcloud"


def project_exists(context: Context) -> str:
    """The project exists and is accessible."""
    project = context.shared(Project)
    number, _ = project.services()
    return f"{project.vertex.project}, number {number}"


def apis(context: Context) -> str:
    """The APIs are enabled."""
    project = context.shared(Project)
    lines = project.lines(lambda line: line.kind == "api")
    missing = [str(line.item) for line in lines if line.status == "missing"]
    if missing:
        raise UserError(
            f"Not enabled: {', '.join(missing).replace(VERTEX_API, f'{VERTEX_API} (Agent Platform API)')}.",
            fix=f"{COMMAND}, or gcloud services enable {' '.join(missing)} --project={project.vertex.project}",
        )
    return f"{len(lines)} enabled"


def service_agents(context: Context) -> str:
    """The service agents exist. Google creates them with a project's first job."""
    lines = _require(context.shared(Project), lambda line: line.kind == "identity")
    return ", ".join(str(line.item).partition("@")[2].partition(".")[0] for line in lines if line.status == "there")


def own_rights(context: Context) -> str:
    """The caller may submit a run and follow it."""
    project = context.shared(Project)
    _ = project.number
    connection = project.connection
    where = policies.Resource("project", connection.project)
    missing = lacking(connection, where, VERTEX_USER)
    if missing:
        raise UserError(
            f"{project.caller() or 'Your account'} lacks {', '.join(missing)}.",
            fix=policies.grant_command(where, member_of(connection), VERTEX_USER),
        )
    return "may submit and follow runs"


def lacking(connection: Connection, resource: policies.Resource, role: str) -> list[str]:
    """Return the permissions of a role that the caller lacks, also counting inherited ones."""
    permissions = permissions_of(role)
    return sorted(set(permissions) - policies.permitted(connection, resource, permissions))


def run_as_account(context: Context) -> str:
    """The run-as account exists, and the caller may start jobs that run as it."""
    project = context.shared(Project)
    _ = project.number
    account, connection = project.account, project.connection
    resource = policies.Resource("account", account)
    try:
        missing = lacking(connection, resource, ACT_AS)
    except Exception as error:
        if not is_absent(error):
            raise
        raise _wrong(project, f"The run-as account {account} does not exist.", COMMAND) from None
    if missing:
        raise _wrong(
            project,
            f"{project.caller() or 'Your account'} may not start jobs that run as {account}.",
            policies.grant_command(resource, member_of(connection), ACT_AS, project.vertex.project),
        )
    state = project.observed.resources.get(resource)
    if state is not None and state.facts.get("disabled"):
        raise _wrong(project, f"The account {account} is disabled.", f"gcloud iam service-accounts enable {account}")
    return f"{account}; you may start jobs that run as it"


def _wrong(project: Project, message: str, fix: str) -> UserError:
    value = project.vertex.service_account
    return UserError(message, setting="vertex.service_account", value=value, fix=fix)


def bucket_place(context: Context) -> str:
    """The bucket exists, belongs to the project, and is in the job's region."""
    project = context.shared(Project)
    # Setup also wants uniform bucket-level access, but a run works without it.
    (line,) = project.lines(lambda line: line.kind == "bucket")
    state = project.observed.resources[policies.Resource("bucket", project.settings.bucket)]
    if line.status == "missing":
        raise UserError(
            f"The bucket {line.item} does not exist.",
            setting="vertex.bucket",
            value=str(line.item),
            fix=f"{COMMAND} creates it in {project.vertex.region}",
        )
    if state.facts:
        if state.facts["number"] != project.number:
            raise UserError(
                f"The bucket {line.item} belongs to another project.",
                setting="vertex.bucket",
                value=str(line.item),
                fix=line.fix,
            )
        check_bucket_region(
            str(line.item),
            str(state.facts["location"]),
            project.vertex.region,
            job="the job",
            why="training requires a single-region bucket in the job's region",
            setting="vertex.bucket",
        )
    return f"{line.item}, {line.observed}"


def bucket_rights(context: Context) -> str:
    """The run-as account and, for TPUs, the TPU service agent may use the bucket."""
    project = context.shared(Project)
    name = project.settings.bucket
    state = project.observed.resources[policies.Resource("bucket", name)]
    if state.exists is False:
        raise NotApplicableError("the bucket does not exist")
    lines = _require(project, lambda line: _on(line, "bucket"))
    if not lines:
        raise NotApplicableError("vertex.service_account is not set")
    return f"{', '.join(sorted({_who(line) for line in lines}))} may use it"


def repository(context: Context) -> str:
    """The repository exists, and the service agents may pull from it."""
    project = context.shared(Project)
    if project.settings.repository is None:
        raise NotApplicableError("the image is not in Artifact Registry")
    _require(project, lambda line: line.kind == "repository")
    lines = _require(project, lambda line: _on(line, "repository"))
    return f"{project.settings.repository}, {len(lines)} roles on it"


def builder(context: Context) -> str:
    """Builds have an account, and the caller may start builds that run as it."""
    project = context.shared(Project)
    if not project.settings.builds:
        raise NotApplicableError("Cloud Build builds no images")
    with contextlib.suppress(NotApplicableError):  # who may not see the account may still act as it
        _require(project, lambda line: line.kind == "account" and str(line.item) != project.account)
    email, unasked = project.observed.builder, project.observed.unasked
    if not email:
        raise NotApplicableError(unasked.message if unasked else "the account of builds is unknown")
    connection = project.connection
    where, member = policies.Resource("project", connection.project), member_of(connection)
    who = project.caller() or "Your account"
    for role in roles_for(SUBMITTER, PROJECT, BUILDS):
        if missing := lacking(connection, where, role):
            fix = policies.grant_command(where, member, role)
            raise UserError(f"{who} may not start builds: it lacks {', '.join(missing)}.", fix=fix)
    account = policies.Resource("account", email)
    if not is_legacy(email) and lacking(connection, account, ACT_AS):
        raise UserError(
            f"{who} may not start builds that run as {email}.",
            setting="vertex.build.service_account",
            value=project.vertex.build.service_account,
            fix=policies.grant_command(account, member, ACT_AS, str(where)),
        )
    return f"{email}; you may start builds that run as it"


def encryption_key(context: Context) -> str:
    """The encryption key exists in the jobs' region, is enabled, and Vertex AI may use it."""
    project = context.shared(Project)
    if project.settings.encryption_key is None:
        raise NotApplicableError("vertex.encryption_key is not set")
    _require(project, lambda line: line.kind == "key")
    lines = _require(project, lambda line: _on(line, "key"))
    return f"{_who(lines[0])} may use it"


def image(context: Context) -> str:
    """The configured image exists; skipped if images are built."""
    project = context.shared(Project)
    text = project.vertex.image
    if text is None:
        raise NotApplicableError("it is built if the registry does not have it (slipway config build --target vertex)")
    image = ImageReference.parse(text)
    if image.is_googles:
        raise NotApplicableError("it is one of Google's images")
    _ = project.number
    if not image_exists(image, project.connection):
        raise UserError(
            f"There is no image {text}.",
            setting="vertex.image",
            value=text,
            fix="--set vertex.image=null to let the run build its images, or slipway config build --target vertex",
        )
    return text


def image_exists(image: ImageReference, connection: Connection) -> bool:
    """Whether the registry has the image.

    Raises:
        NotApplicableError: The caller may not see it.
    """
    from slipway.components.build_image.registry import ArtifactRegistry, HttpRegistry  # imports urllib.request

    if image.artifact_repository is None:
        return HttpRegistry("vertex.image").digest(image.repository, image.name, image.version) is not None
    if image.digest is None:
        return ArtifactRegistry(connection).digest(image.repository, image.name, image.version) is not None
    packages = connection.api("artifactregistry", "v1").projects().locations().repositories().packages()
    package = f"{image.artifact_repository}/packages/{image.name.replace('/', '%2F')}"
    request = packages.versions().get(name=f"{package}/versions/{image.digest}")
    try:
        retried(request.execute)
    except Exception as error:
        if status_of(error) == 403:
            # The service agents pull the image; the submitter needs no access to it.
            permission = "artifactregistry.repositories.downloadArtifacts"
            raise NotApplicableError(refusal(error, connection, "see the image", permission).message) from None
        if is_absent(error):
            return False
        raise
    return True


def gpu_driver(context: Context) -> str:
    """Custom images that run on GPUs have the folder of the driver on the loader's path."""
    config, settings, connection = context.config, context.shared(Project).vertex, context.shared(Project).connection
    row = config.training_hardware.accelerator_row
    trains = "train.image" if config.train.image else "vertex.image"
    images = {
        trains: (config.train.image or settings.image) if row and not row.is_tpu else None,
        "vertex.serving_image": settings.serving_image if config.serve.accelerator == "gpu" else None,
    }
    read = []
    for setting, text in images.items():
        image = ImageReference.parse(text or "")
        if text is None or image.is_googles:
            continue
        check_driver(setting, text, "Vertex AI", *_registry_access(connection, image))
        read.append(text)
    if not read:
        raise NotApplicableError("no custom image runs on GPUs")
    return f"{', '.join(read)}: finds it"


def _registry_access(connection: Connection, image: ImageReference) -> tuple[str | None, tuple[str, str] | None]:
    """Return the repository's address and the login with which an image is read; None for those of `docker login`."""
    if not image.artifact_repository:
        return None, None
    _ = connection.caller  # refreshes the token
    host, _, path = image.repository.partition("/")
    address = f"{connection.endpoints.get('docker', host)}/{path}"
    return address, ("oauth2accesstoken", str(connection.credentials.token))


def dataflow_image(context: Context) -> str:
    """Dataflow's workers have an image that contains Slipway and is started by Beam's boot."""
    data, project = context.config.prepared, context.shared(Project)
    if data is None or data.beam is None or not data.beam.on_dataflow:
        raise NotApplicableError("the run does not use Dataflow")
    setting, image = "data.beam.options.sdk_container_image", data.beam.options.get("sdk_container_image")
    if image is None and project.vertex.image is None:
        return "built by Slipway"
    if not isinstance(image, str):
        raise UserError(
            "Dataflow's workers need an image that contains Slipway; with vertex.image, Slipway builds none.",
            setting=setting,
            value=image,
            fix=f"--set {setting}=IMAGE, or remove vertex.image",
        )
    versions = check_boot(setting, image, *_registry_access(project.connection, ImageReference.parse(image)))
    return f"{image}: started by Beam's boot ({versions})"


def data_disk(context: Context) -> str:
    """The disk of the step prepare_data has room for the data set, if the size of the source can be read cheaply.

    That of an archive and of TFRecord files in a bucket can: one request for each 1,000 files. The step itself checks
    its disk when it has listed its source, before it writes.
    """
    project, data = context.shared(Project), context.config.prepared
    if data is None:
        raise NotApplicableError("no data are prepared")
    place = source_kind(data.source).located(data)[1]
    if not place.startswith("gs://") or not data.source.startswith(("images:", "tfrecord:")):
        raise NotApplicableError(
            "the size of the source is known only when it is listed; the step checks its disk then"
        )
    if data.source.startswith("images:") and not place.lower().endswith(ARCHIVES):
        raise NotApplicableError("the images are listed by the step, which checks its disk then")
    _ = project.number
    size = _size(project.connection, place)
    if place.lower().endswith(COMPRESSED):
        size *= 2  # it is extracted before the shards are written
    if data.beam is not None and size >= data.beam.from_gigabytes * 1e9:
        raise NotApplicableError("Apache Beam writes the data set")
    resources = project.vertex.steps.get("prepare_data")
    disk = (resources.disk_gb if resources else None) or DEFAULT_DISK_GB
    if size > disk * 1e9 * USABLE:
        raise UserError(
            f"Preparing {data.source} takes about {size / 1e9:,.0f} GB on the disk of the step, which has {disk} GB.",
            setting=DISK_SETTING,
            value=resources.disk if resources else None,
            fix=disk_fix(size).removeprefix("on Vertex AI, "),
        )
    return f"about {size / 1e9:,.1f} of {disk} GB"


def _size(connection: Connection, place: str) -> int:
    """Return the size in bytes of the objects that match a pattern.

    Raises:
        NotApplicableError: They cannot be listed, or are too many.
    """
    bucket, _, pattern = place.removeprefix("gs://").partition("/")
    prefix = re.split(r"[*?\[]", pattern)[0]
    try:
        blobs = retried(
            lambda: list(itertools.islice(connection.storage.list_blobs(bucket, prefix=prefix), MAX_OBJECTS + 1))
        )
    except Exception as error:
        if status_of(error) not in (403, 404):
            raise
        raise NotApplicableError(refusal(error, connection, f"list {place}").message) from None
    if len(blobs) > MAX_OBJECTS:
        raise NotApplicableError(f"there are more than {MAX_OBJECTS:,} objects at gs://{bucket}/{prefix}")
    size = sum(int(blob.size or 0) for blob in blobs if fnmatch.fnmatchcase(blob.name, pattern))
    if not size:
        raise NotApplicableError(f"there is nothing at {place}; the step reports it")
    return size


def roles(context: Context) -> str:
    """All principals have the roles on the project and on accounts that a run needs."""
    lines = _require(context.shared(Project), lambda line: _on(line, "project") or _on(line, "account"))
    later = sum(line.later and line.status == "missing" for line in lines)
    more = f", {later} to be granted by Google with the first job" if later else ""
    return f"{len(lines) - later} granted{more}"


def schedules(context: Context) -> str:
    """Vertex AI has started the last run of each schedule; a run that it refuses leaves the schedule active."""
    from slipway.pipelines.platforms.vertex.schedules.difference import refused
    from slipway.pipelines.platforms.vertex.schedules.service import Schedules

    project = context.shared(Project)
    _ = project.number
    try:
        active = [
            (name, resource)
            for _, name, resource in Schedules(project.connection).all()
            if resource.state.name == "ACTIVE"
        ]
    except Exception as error:
        if status_of(error) != 403:
            raise
        problem = refusal(error, project.connection, "list the schedules", "aiplatform.schedules.list")
        raise NotApplicableError(problem.message) from None
    if not active:
        raise NotApplicableError(f"none is active in {project.vertex.region}")
    for name, schedule in active:
        if why := refused(schedule):
            problem = as_user_error(why, f"The last run of {name} was refused", facts_of(context.config))
            raise CheckWarning(problem.message, f"{problem.fix}; slipway schedule list shows all")
    return f"the last runs of {len(active)} were started"


def first_job(context: Context) -> str:
    """A job has run in the region, or the service agents, which the first job needs, exist."""
    project = context.shared(Project)
    connection = project.connection
    region = project.vertex.region
    _ = project.number
    with refusing(connection, "list the jobs", "aiplatform.pipelineJobs.list"):
        request = {"parent": connection.parent, "page_size": 1}
        pipelines = retried(lambda: list(connection.pipelines.list_pipeline_jobs(request).pipeline_jobs))
        jobs = pipelines or retried(lambda: list(connection.jobs.list_custom_jobs(request).custom_jobs))
    if jobs:
        return f"jobs have run in {region}"
    missing = blocking(project.lines(lambda line: line.kind == "identity"))
    if missing:
        raise UserError(
            f"No job has run in {region} yet, and {missing[0].item} does not exist: the first one would fail.",
            fix=COMMAND,
        )
    return f"this will be the first in {region}; the service agents exist"


def _require(project: Project, predicate: Callable[[Line], bool]) -> list[Line]:
    """Return the lines of setup's difference that match `predicate`.

    Raises:
        UserError: A run would fail because of one of them.
    """
    lines = project.lines(predicate)
    bad = blocking(lines)
    if bad:
        texts = [f"{line.item} ({line.observed})" if line.status == "wrong" else str(line.item) for line in bad]
        more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        reason = bad[0].item.reason
        raise UserError(
            f"Missing: {'; '.join(texts[:SHOWN])}{more}. {reason[0].upper()}{reason[1:]}.",
            fix=bad[0].fix or COMMAND,
        )
    doubtful = [str(line.item) for line in lines if line.doubtful]
    if doubtful:
        more = f"; and {len(doubtful) - SHOWN} more" if len(doubtful) > SHOWN else ""
        raise CheckWarning(
            f"Not visible, but perhaps inherited from a folder or an organization, or held through a group: "
            f"{'; '.join(doubtful[:SHOWN])}{more}.",
            f"{COMMAND} grants it; if it is inherited, ignore this",
        )
    return lines


def _who(line: Line) -> str:
    return line.item.member.partition(":")[2] if isinstance(line.item, Binding) else str(line.item)


def _on(line: Line, kind: str) -> bool:
    return isinstance(line.item, Binding) and line.item.resource.kind == kind
