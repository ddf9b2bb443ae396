"""Checks of a run's configuration."""

from __future__ import annotations

from pathlib import Path

from slipway.core import manifest
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.pipelines.checks import Context, DoubtError, NotApplicableError
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.hardware import this_machine
from slipway.pipelines.hardware.memory import fits_memory
from slipway.pipelines.hardware.placement import check_engine
from slipway.pipelines.platforms.remote import remote
from slipway.pipelines.platforms.tpu.checks import request_of
from slipway.pipelines.table import HERE
from slipway.trainer.data.assignment import check_shared_evenly
from slipway.trainer.engines import builder, installed, table
from slipway.trainer.stages import check_patterns

# Whose machines train in Google Cloud, by target.
CLOUD = {"vertex": "Vertex AI", "tpu": "Cloud TPU"}


def hardware_choice(context: Context) -> str:
    """The hardware is available on the run's platform."""
    config = context.config
    hardware = config.parsed_hardware
    if context.target == "tpu":
        request = request_of(config)
        return f"{hardware} in {', '.join(request.settings.zones)}, with {request.runtime_version}"
    if elsewhere := remote(context.target):
        return elsewhere.check_hardware(config)
    if not hardware.accelerators_per_replica or context.rehearsal:
        return str(hardware)
    return f"{hardware}: {this_machine.check(hardware)}"


def batch(context: Context) -> str:
    """The batch size is divisible by the number of devices; otherwise the run would fail after preparing its data."""
    hardware, train = context.config.parsed_hardware, context.config.train
    if train.program is not None:
        raise NotApplicableError("the program has its own batches")
    devices = max(1, hardware.accelerators_per_host)
    check_shared_evenly(train, hardware.hosts, devices)
    return f"{train.batch_size} examples, {train.batch_size // hardware.hosts // devices} per device"


def training_engine(context: Context) -> str:
    """The engine is installed (for local runs) and supports the run's settings and hardware."""
    train, hardware = context.config.train, context.config.parsed_hardware
    own_data = context.config.prepared is None
    # The step evaluate runs here as well, with TensorFlow if the engine's models are SavedModels.
    trains_here, evaluates_here = context.target == "local", context.target in HERE
    if not own_data and (trains_here or (evaluates_here and not table.ENGINES[train.engine].exports_saved_model)):
        installed.verify(train.engine)
    table.refuse(train)
    section = {"vertex": context.config.vertex, "tpu": context.config.tpu}.get(context.target)
    image = train.image or (section.image if section else None)
    check_engine(hardware, train.engine, own_program=train.program is not None, own_build=image is not None)
    if own_data:
        return "the program's own"
    on_gpu = context.target == "local" and hardware.accelerators_per_replica and not context.rehearsal
    if on_gpu and context.runner != "docker":  # there, the image has the library
        return f"{train.engine}, built for {this_machine.check_engine(train.engine, hardware.accelerators_per_replica)}"
    return train.engine


def data_source(context: Context) -> str:
    """The data source exists and its type is supported; its examples are validated when they are prepared."""
    data = context.config.data
    if data is None:
        raise NotApplicableError("the program has its own data")
    if data.uri is not None:
        return _passed_on(data.uri, context)
    if context.target not in HERE:
        raise NotApplicableError("the source is not read from this machine")
    from slipway.components.prepare_data.sources import check_source  # imports TensorFlow Datasets

    return check_source(data, context.config.task)


def _passed_on(uri: str, context: Context) -> str:
    """Return the data that the program receives, after checking that a path exists where the program runs."""
    fix = "--set data.uri=gs://BUCKET/FOLDER"
    if "://" not in uri:
        if context.target == "local" and not (context.folder / uri).expanduser().exists():
            raise UserError(
                f"There is no file or folder {uri}.",
                setting="data.uri",
                value=uri,
                allowed="an existing path, or a URI",
                fix=f"correct the path, or {fix}",
            )
        if context.runner == "docker" and context.config.train.image is not None and not uri.startswith("/"):
            raise UserError(
                f"The relative path {uri} would be another one in a container of train.image.",
                setting="data.uri",
                value=uri,
                allowed="an absolute path, or a URI",
                fix=f"--set data.uri={(context.folder / uri).resolve()}",
            )
        if context.target in CLOUD and not uri.startswith("/gcs/"):
            raise UserError(
                f"The machines of {CLOUD[context.target]} do not have {uri}, which is on this machine.",
                setting="data.uri",
                value=uri,
                allowed="a URI, such as gs://BUCKET/FOLDER, which is also mounted as /gcs/BUCKET/FOLDER",
                fix=fix,
            )
    return f"{uri}, as it is"


def model_memory(context: Context) -> str:
    """The model's variables, gradients and optimizer state fit a device. Builds the model."""
    config = context.config
    hardware = config.parsed_hardware
    if hardware.accelerator_row is None:
        raise NotApplicableError("the hardware has no accelerators")
    if config.model is None or config.prepared is None:
        raise NotApplicableError(f"{config.train.program} builds its own network")
    data, prepared = config.prepared, prepared_data(config)
    if prepared is None:
        raise NotApplicableError(f"the image size is unknown until {data.source} is prepared in {data.store}")
    engine = config.train.engine
    needed = builder.network_size(engine, config.model, prepared)
    need = fits_memory(
        hardware,
        needed.variables,
        config.train.optimizer_kind,
        trainable_bytes=needed.trainable,
        engine=engine,
    )
    return f"{need} per device of {hardware.accelerator_row.title}, not counting activations"


def stages(context: Context) -> str:
    """The patterns of the training's stages match layers of the network. Builds the model."""
    config = context.config
    if not config.train.stages or config.model is None:
        raise NotApplicableError("train.stages is not set")
    prepared = prepared_data(config)
    if prepared is None:
        raise NotApplicableError("the network's inputs are unknown until the data are prepared")
    try:
        installed.verify(config.train.engine)
    except UserError as error:
        raise NotApplicableError(error.message) from None
    check_patterns(config.train.stages, builder.layers(config.train.engine, config.model, prepared))
    return "every pattern matches a layer"


def prepared_data(config: RunConfig) -> Manifest | None:
    """Return the manifest of the newest prepared data set of the run's source, with its task and inputs, or None."""
    data = config.prepared
    if data is None:
        return None
    paths = Path(data.store).glob(f"*/*/{manifest.FILE_NAME}")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            found = manifest.read(path.parent)
        except UserError:
            continue
        if (found.source, found.task, found.settings.get("inputs")) == (data.source, config.task, data.inputs):
            return found
    return None


def image_context(context: Context) -> str:
    """The run's images can be built: git tracks their files, and for local containers Docker responds."""
    config = context.config
    if context.target == "vertex" and config.vertex is not None and config.vertex.image is None:
        from slipway.pipelines.images.images import check_builder, wanted_images

        check_builder(config.vertex, config.vertex.build.builder)
        images = wanted_images(config, lambda _line: None, without_git=not context.builds)
        return ", ".join(f"{image.request.name}:{image.request.tag}" for image in images.values())
    if context.target == "tpu" and config.tpu is not None and not (config.tpu.image or config.train.image):
        from slipway.pipelines.images.images import check_builder, wanted_trainer

        check_builder(config.tpu, config.tpu.build.builder)
        image = wanted_trainer(config, config.tpu, lambda _line: None, without_git=not context.builds)
        return f"{image.request.name}:{image.request.tag}"
    if context.runner == "docker":
        from slipway.pipelines.images.images import wanted_image
        from slipway.pipelines.platforms.local.containers import docker_client, has_gpus

        accelerator, built = "gpu" if has_gpus() else "cpu", config.containers
        with docker_client():
            image = wanted_image(config, "steps", accelerator, built.base, built.repository, lambda _line: None)
        return f"{image.request.name}:{image.request.tag}"
    raise NotApplicableError("no image is built")


def serving_image(context: Context) -> str:
    """On Vertex AI, an image can serve the registered model: the configured one, or one that is built."""
    if context.target != "vertex" or context.config.vertex is None:
        raise NotApplicableError("the model is not registered on Vertex AI")
    from slipway.pipelines.platforms.vertex.submission import check_serving_image

    check_serving_image(context.config.vertex, context.config)
    return context.config.vertex.serving_image or f"Slipway's, for {context.config.serve.accelerator}"


def notification(context: Context) -> str:
    """The run's platform can notify everyone whom the configuration names."""
    settings = context.config.notify
    if settings is None:
        raise NotApplicableError("nobody is notified")
    kubeflow = context.config.kubeflow
    if context.target == "kubeflow" and settings.email:
        raise UserError(
            "A run on Kubeflow sends no e-mail: only Vertex AI has a service for it.",
            setting="notify.email",
            value=", ".join(settings.email),
            allowed="notify.webhook or notify.topic",
            fix="--set notify.email=[] --set notify.webhook=env:CHAT_WEBHOOK",
        )
    if context.target == "kubeflow" and settings.variable and kubeflow is not None and kubeflow.secret is None:
        raise UserError(
            f"The environment variable {settings.variable} does not exist on the cluster.",
            setting="kubeflow.secret",
            value=None,
            allowed=f"a Secret in the namespace with the key {settings.variable}",
            fix=f"kubectl create secret generic slipway --from-literal={settings.variable}=URL, and "
            "--set kubeflow.secret=slipway",
        )
    if context.target == "vertex" and settings.variable:
        raise UserError(
            f"The environment variable {settings.variable} does not exist on Vertex AI.",
            setting="notify.webhook",
            value=settings.webhook,
            allowed="projects/PROJECT/secrets/SECRET in Secret Manager, or an https:// URL",
            fix="gcloud secrets create slipway-webhook --data-file=FILE, and "
            "--set notify.webhook=projects/PROJECT/secrets/slipway-webhook",
        )
    used = [name for name in ("email", "webhook", "topic") if getattr(settings, name)]
    if context.target in HERE and settings.email:
        used[0] = "no e-mail from this machine"
    return ", ".join(used)


def champion(context: Context) -> str:
    """The champion that the model will be compared with can be read from the registry; whether its task is the same."""
    config = context.config
    if context.target not in HERE:
        raise NotApplicableError("the registry is not on this machine")
    if context.rehearsal:
        raise NotApplicableError("a rehearsal is not compared with a champion")
    if config.evaluate.champion == "none":
        raise NotApplicableError("evaluate.champion is none")
    from slipway.components.register_model.registry import Registry
    from slipway.components.train.result import trainer_record
    from slipway.core import integrity

    champion = Registry(Path(config.register_.registry).absolute()).champion(config.model_name)
    if champion is None:
        return f"{config.model_name} has none yet"
    if what := integrity.damage(champion.folder):
        raise UserError(
            f"The champion in {champion.folder} is damaged: {what}.",
            setting="evaluate.champion",
            value="registered",
            allowed="registered, none",
            fix=f"--set evaluate.champion=none to evaluate without it, or restore {champion.folder}",
        )
    record = trainer_record(champion.folder)
    task = record.get("task", config.task if not record else "classification")  # earlier versions wrote no task
    if config.train.program is None and config.evaluate.module is None and task != config.task:
        raise DoubtError(
            f"{config.model_name} version {champion.number} was trained for the task {task}, not {config.task}: the "
            "models will not be comparable, and the champion stays",
            "--set register.model=NAME to register this model apart from it; to replace it: "
            "--set evaluate.champion=none",
        )
    return f"{config.model_name} version {champion.number}"
