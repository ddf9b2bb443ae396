"""Find the model that a command names, a registered one, a run's, or a folder, and load it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from slipway.components.register_model.registry import CHAMPION, METADATA, SERVE_MODULE, Registry, Version
from slipway.core import integrity
from slipway.core.errors import UserError, nearest
from slipway.core.noise import without_stderr
from slipway.core.paths import in_project, project, require_utf8, short
from slipway.pipelines.runs import copies
from slipway.pipelines.runs import record as runs
from slipway.pipelines.terminal import say
from slipway.serving import instances
from slipway.serving import model as served

MEANINGS = "NAME (its champion), NAME/VERSION, a run's id, or a model's folder, also gs://BUCKET/FOLDER"


@dataclass(frozen=True)
class Chosen:
    """A model's folder; `name` and `version` if it is registered.

    With `follow`, the version is the champion, which may change. `module` is the function that loads a custom program's
    model: --module, or serve.module of a registered model or a run, never what another folder names. `uri` is that of a
    model in a bucket, of which `fetch` makes the copy `folder`, and `configuration` has the project of a run's.
    """

    folder: Path
    name: str
    version: int | None = None
    follow: bool = False
    module: str | None = None
    uri: str | None = None
    configuration: Path | None = None

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}/{self.version}"


def find(model: str | None, registry: Path, module: str | None = None, *, lazy: bool = False) -> Chosen:
    """Return the model that `model` names, None for the only registered one; copy one in a bucket to this machine.

    Args:
        model: See `MEANINGS`.
        registry: The folder of the registered models.
        module: The function that loads the model, in place of its own.
        lazy: Whether the model of a run is copied later, by `fetch`.

    Raises:
        UserError: There is none, it cannot be copied, or it is not registered and names a function to load it.
    """
    chosen = _find(model, Registry(in_project(registry)))
    if not lazy or chosen.configuration is None:
        fetch(chosen, say)
    if module is not None:
        return replace(chosen, module=module)
    named = served.read_json(chosen.folder / METADATA).get(SERVE_MODULE)
    if chosen.module is None and named is not None:
        path = str(named).partition(":")[0].replace(".", "/")[:200]
        is_own = any(Path(file).is_file() for file in (f"{path}.py", f"{path}/__init__.py"))
        offered = shlex.quote(str(named)) if is_own else "MODULE:FUNCTION, of your own project"
        raise UserError(
            f"The model in {chosen.folder} is not registered, and its {METADATA} names a function to execute: "
            f"{str(named)[:200]!r}.",
            setting="--module",
            value=None,
            allowed=f"{MEANINGS}; the function of a folder outside of {registry} is not executed",
            fix=f"--module {offered}, if you trust the model",
        )
    return chosen


def say_once(chosen: Chosen, registry: Path, *, trust: bool) -> None:
    """Say that a model can run code, unless it is in the registry, in the project's folder, or of one of its runs."""
    if trust or chosen.configuration is not None:
        return
    trusted_folders = (project() or Path.cwd(), in_project(registry))
    if chosen.uri is None and any(
        chosen.folder.resolve().is_relative_to(folder.resolve()) for folder in trusted_folders
    ):
        return
    say(
        f"{chosen.uri or chosen.folder} is from outside of this project, and a model can run any code: "
        "docs/serving.md#which-models-to-trust; --trust hides this line"
    )


def fetch(chosen: Chosen, say: Callable[[str], None]) -> None:
    """Copy a model in a bucket to this machine, unless it is there.

    Raises:
        UserError: It cannot be copied, or the copy is damaged.
    """
    if chosen.uri is not None:
        where = short(str(chosen.folder))
        copies.folders().copy(chosen.uri, chosen.folder, chosen.configuration, lambda line: say(f"{line} to {where}"))
        integrity.verify(chosen.folder)


def _find(model: str | None, known: Registry) -> Chosen:
    if model is None:
        names = known.models()
        if not names and (rejected := _rejected()):
            raise rejected
        if len(names) != 1:
            raise UserError(
                f"{'No model is' if not names else f'{len(names)} models are'} registered in {known.root}.",
                setting="MODEL",
                value=None,
                allowed=", ".join(names) or MEANINGS,
                fix=f"name one, such as {names[0]}" if names else "slipway run, which registers a model",
            )
        return _champion(known, names[0])
    if copies.is_remote(model):
        return Chosen(copies.cached(model), model.rstrip("/"), uri=model.rstrip("/"))
    folder = Path(model).expanduser()
    if folder.is_dir():
        if (folder / CHAMPION).is_file():
            champion = _champion(Registry(folder.absolute().parent), folder.absolute().name)
            return champion if folder.resolve().parent == known.root.resolve() else replace(champion, module=None)
        if served.is_model(folder) or any((folder / name).is_file() for name in (served.RECORD_FILE, METADATA)):
            real = folder.resolve()
            if real.parent.parent == known.root.resolve() and real.name.isdigit():
                module = served.read_json(folder / METADATA).get(SERVE_MODULE)
                return Chosen(folder.absolute(), real.parent.name, int(real.name), module=module)
            run = next((parent.name for parent in real.parents if runs.RunFolder(parent).record_file.is_file()), None)
            return Chosen(folder.absolute(), run or real.name)
    name, _, version = model.partition("/")
    if name in known.models():
        return _version(known, name, version) if version else _champion(known, name)
    if chosen := _of_run(model):
        return chosen
    if folder.is_dir():
        return Chosen(folder.absolute(), folder.name)
    if rejected := _rejected(model):
        raise rejected
    near = nearest(model, [*known.models(), *(run_folder.run_id for run_folder in runs.folders())])
    raise UserError(
        f"There is no model {model}.",
        setting="MODEL",
        value=model,
        allowed=f"{MEANINGS}; registered in {known.root}: {', '.join(known.models()) or 'none'}",
        nearest=near,
        fix=f"name {near}" if near else "slipway list, which shows the runs",
    )


def _rejected(model: str | None = None) -> UserError | None:
    """Return the error for a model, or any, of which all runs were rejected; None if that is not why there is none."""
    rejected = [
        record
        for record in (folder.read() for folder in runs.folders())
        if record.is_rejected and model in (None, record.name)
    ]
    if not rejected:
        return None
    newest = rejected[0]
    reasons = " ".join((newest.verdict or {}).get("reasons", ()))
    count = f"The run {newest.run_id} was" if len(rejected) == 1 else f"{len(rejected)} runs were"
    return UserError(
        f"No model{f' {model}' if model else ''} is registered: {count} rejected. {reasons}",
        setting="MODEL",
        value=model,
        allowed=MEANINGS,
        fix=f"name the run, {newest.run_id}, to predict with its model, or correct what the verdict says and run again",
    )


def ready(chosen: Chosen, sizes: tuple[int, ...] = (1,)) -> served.Model:
    """Load the model and predict once in batches of each size.

    Raises:
        UserError: It cannot be loaded, or does not run.
    """
    require_utf8(chosen.folder)
    if chosen.module is not None and str(Path.cwd()) not in sys.path:  # as for the module of a run
        sys.path.insert(0, str(Path.cwd()))
    try:
        with without_stderr():
            loaded = served.load(chosen.folder, chosen.module)
            instances.warm_up(loaded, sizes)
    except UserError:
        raise
    except Exception as error:  # TensorFlow and PyTorch may raise anything for a damaged file
        raise UserError(
            f"The model in {chosen.folder} cannot be served: {instances.sentence(error)}.",
            setting="MODEL",
            value=str(chosen),
            fix="the same command again: the file could not be read"
            if isinstance(error, OSError)
            else "serve.module or --module MODULE:FUNCTION, if a custom program wrote it; otherwise train it again: "
            "slipway run",
        ) from error
    return loaded


def _champion(known: Registry, name: str) -> Chosen:
    champion = known.champion(name)
    if champion is None:
        raise UserError(
            f"The model {name} has no champion.",
            setting="MODEL",
            value=name,
            allowed=", ".join(f"{name}/{registered.number}" for registered in known.versions(name)),
            fix=f"name a version, such as {name}/{known.versions(name)[-1].number}",
        )
    return _registered(champion, follow=True)


def _registered(version: Version, *, follow: bool = False) -> Chosen:
    module = version.metadata.get(SERVE_MODULE)
    return Chosen(version.folder.absolute(), version.model, version.number, follow, module)


def _version(known: Registry, name: str, version: str) -> Chosen:
    for candidate in known.versions(name):
        if str(candidate.number) == version:
            return _registered(candidate)
    numbers = [f"{name}/{registered.number}" for registered in known.versions(name)]
    raise UserError.unknown("version", f"{name}/{version}", numbers, setting="MODEL", fix=f"name {numbers[-1]}")


def _of_run(run_id: str) -> Chosen | None:
    """Return the model that a local run trained; None if there is no such run."""
    import yaml

    if run_id != runs.LATEST and run_id not in [folder.run_id for folder in runs.folders()]:
        return None
    folder = runs.find(run_id)
    path = folder.read().outputs("train").get("model")
    module = (yaml.safe_load(folder.configuration_file.read_bytes()).get("serve") or {}).get("module")
    if isinstance(path, str) and copies.is_remote(path):
        copied, configuration = folder.path / "model", folder.configuration_file
        return Chosen(copied, folder.run_id, module=module, uri=path, configuration=configuration)
    if not isinstance(path, str) or not Path(path).is_dir():
        raise UserError(
            f"The run {folder.run_id} has no model on this machine: {json.dumps(path)}.",
            setting="MODEL",
            value=run_id,
            fix=f"slipway status {folder.run_id}",
        )
    return Chosen(Path(path), folder.run_id, module=module)
