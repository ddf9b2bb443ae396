"""Checks of a run's configuration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slipway.core import manifest
from slipway.core.dsse import read_key
from slipway.core.errors import UserError
from slipway.core.manifest import Manifest
from slipway.core.paths import local_path
from slipway.pipelines.config.config import RunConfig
from slipway.pipelines.config.locations import locations
from slipway.pipelines.hardware import compiled, this_machine
from slipway.pipelines.hardware.memory import fits_memory
from slipway.pipelines.hardware.placement import check_engine
from slipway.pipelines.platforms.base import CheckWarning, Context, NotApplicableError, RemotePlatform
from slipway.pipelines.runs.budget import check_month
from slipway.trainer import checks
from slipway.trainer.data.assignment import check_even_split
from slipway.trainer.engines import builder, installed, table
from slipway.trainer.stages import check_patterns


def hardware_choice(context: Context) -> str:
    """The hardware is available on the run's platform."""
    summary, listed = context.platform.check_hardware(context), len(context.config.hardware)
    if listed > 1 and not context.config.is_chosen:
        raise CheckWarning(
            f"{summary}, the first of {listed} in the list: only runs on Vertex AI take the next one",
            f"--hardware '{context.config.training_hardware}'",
        )
    return summary


def cost(context: Context) -> str:
    """The training costs no more than the budget, whatever happens."""
    bill = context.platform.bill(context.config)
    if bill is None:
        raise NotApplicableError(f"the section {context.platform.name} is missing")
    bill = bill.times(context.search.trials) if context.search else bill
    bill.check(context.config.dollars, context.spent)
    check_month(context.config, context.platform.name, bill)
    return str(bill)


def batch(context: Context) -> str:
    """The batch size is divisible by the number of devices; otherwise the run would fail after preparing its data."""
    hardware, train = context.config.training_hardware, context.config.train
    if train.program is not None:
        raise NotApplicableError("the program has its own batches")
    devices = max(1, hardware.accelerators_per_host)
    check_even_split(train, hardware.hosts, devices)
    return f"{train.batch_size} examples, {train.batch_size // hardware.hosts // devices} per device"


def training_engine(context: Context) -> str:
    """The engine is installed (for local runs) and supports the run's settings and hardware."""
    train, hardware = context.config.train, context.config.training_hardware
    own_data = context.config.prepared is None
    # The step evaluate runs here as well, with TensorFlow if the engine's models are SavedModels.
    platform = context.platform
    trains_here, evaluates_here = platform.trains_here, not isinstance(platform, RemotePlatform)
    if not own_data and (trains_here or (evaluates_here and not table.ENGINES[train.engine].exports_saved_model)):
        installed.verify(train.engine)
    checks.refuse(train)
    image = train.image or platform.image(context.config)
    check_engine(hardware, train.engine, own_program=train.program is not None, own_build=image is not None)
    if own_data:
        return "the program's own"
    on_gpu = trains_here and hardware.accelerators_per_replica and not context.rehearsal
    if on_gpu and context.runner != "docker":  # there, the image has the library
        return f"{train.engine}, built for {this_machine.check_engine(train.engine, hardware.accelerators_per_replica)}"
    return train.engine


def buckets(context: Context) -> str:
    """No step would write to or read from a bucket as if it were a folder of this machine's disk."""
    if isinstance(context.platform, RemotePlatform):
        raise NotApplicableError("the steps do not run on this machine")
    for place in locations(context.config):
        place.require_mount()
    return "none, or mounted"


def data_source(context: Context) -> str:
    """The data source exists and its type is supported; its examples are validated when they are prepared."""
    data = context.config.data
    if data is None:
        raise NotApplicableError("the program has its own data")
    if data.uri is not None:
        return _passed_on(data.uri, context)
    if isinstance(context.platform, RemotePlatform):
        raise NotApplicableError("the source is not read from this machine")
    from slipway.components.prepare_data.sources import check_source  # imports TensorFlow Datasets

    return check_source(data, context.config.task)


def _passed_on(uri: str, context: Context) -> str:
    """Return the data that the program receives, after checking that a path exists where the program runs."""
    fix = "--set data.uri=gs://BUCKET/FOLDER"
    if "://" not in uri:
        if context.platform.trains_here and not (context.folder / uri).expanduser().exists():
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
        if context.platform.mounts_buckets and not uri.startswith("/gcs/"):
            raise UserError(
                f"The machines of {context.platform.title} do not have {uri}, which is on this machine.",
                setting="data.uri",
                value=uri,
                allowed="a URI, such as gs://BUCKET/FOLDER, which is also mounted as /gcs/BUCKET/FOLDER",
                fix=fix,
            )
    return f"{uri}, as it is"


def model_memory(context: Context) -> str:
    """The model's variables, gradients and optimizer state fit a device. Builds the model."""
    config = context.config
    hardware = config.training_hardware
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
        sharding=config.train.sharding,
    )
    return f"{need} per device of {hardware.accelerator_row.title}, not counting activations"


def compiled_step(context: Context) -> str:
    """The training step, compiled for the accelerators, fits their memory. Takes 10 to 30 seconds."""
    config, hardware = context.config, context.config.training_hardware
    if context.rehearsal:
        raise NotApplicableError("the rehearsal compiles it with its own data")
    if why := compiled.missing(hardware, config.train.engine):
        raise NotApplicableError(why)
    if config.model is None or config.prepared is None:
        raise NotApplicableError(f"{config.train.program} compiles its own step")
    if (folder := prepared_folder(config)) is None:
        raise NotApplicableError(f"the data are not prepared: slipway rehearse --hardware '{hardware}'")
    job = compiled.job_of(config.model, config.train, folder)
    answer = compiled.compiled(hardware, job)
    summary = "; ".join(compiled.sentences(hardware, job, answer, steps=job.plan.steps))
    if not answer.fits:
        raise CheckWarning(summary, compiled.fixes(hardware, job, answer))
    return summary


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
    return next((prepared for _, prepared in _prepared(config)), None)


def prepared_folder(config: RunConfig) -> Path | None:
    """Return the folder of that data set on this machine, or None."""
    return next((folder for folder, _ in _prepared(config)), None)


def _prepared(config: RunConfig) -> Iterator[tuple[Path, Manifest]]:
    """Yield the prepared data sets of the run's source on this machine, the newest first."""
    data = config.prepared
    if data is None:
        return
    paths = Path(data.store).glob(f"*/*/{manifest.FILE_NAME}")
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            prepared = manifest.read(path.parent)
        except UserError:
            continue
        if (prepared.source, prepared.task, prepared.settings.get("inputs")) == (data.source, config.task, data.inputs):
            yield path.parent, prepared


def signing_key(context: Context) -> str:
    """The key with which registered models are signed can be used."""
    file = context.config.register_.signing_key
    if file is None or context.rehearsal:
        raise NotApplicableError("models are not signed")
    if isinstance(context.platform, RemotePlatform):
        problem = f"models that are registered on {context.platform.title} are not signed"
        raise CheckWarning(problem, "--set register.signing_key=null")
    read_key(file, private=True, setting="register.signing_key")
    return file


def champion(context: Context) -> str:
    """The champion that the model will be compared with can be read from the registry; whether its task is the same."""
    config = context.config
    if isinstance(context.platform, RemotePlatform):
        raise NotApplicableError("the registry is not on this machine")
    if context.rehearsal:
        raise NotApplicableError("a rehearsal is not compared with a champion")
    if config.evaluate.champion == "none":
        raise NotApplicableError("evaluate.champion is none")
    from slipway.components.register_model.registry import Registry
    from slipway.components.train.result import trainer_record
    from slipway.core import integrity

    champion = Registry(local_path(config.register_.registry).absolute()).champion(config.model_name)
    if champion is None:
        return f"{config.model_name} has none yet"
    if damage := integrity.damage(champion.folder):
        raise UserError(
            f"The champion in {champion.folder} is damaged: {damage}.",
            setting="evaluate.champion",
            value="registered",
            allowed="registered, none",
            fix=f"--set evaluate.champion=none to evaluate without it, or restore {champion.folder}",
        )
    record = trainer_record(champion.folder)
    task = record.get("task", config.task if not record else "classification")  # earlier versions wrote no task
    if config.train.program is None and config.evaluate.module is None and task != config.task:
        raise CheckWarning(
            f"{config.model_name} version {champion.number} was trained for the task {task}, not {config.task}: the "
            "models will not be comparable, and the champion stays",
            "--set register.model=NAME to register this model apart from it; to replace it: "
            "--set evaluate.champion=none",
        )
    return f"{config.model_name} version {champion.number}"
