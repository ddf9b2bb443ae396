"""Load and call `model.builder`, an importable "module:function"; its errors become UserErrors.

Also measures the network that it builds, for any engine.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import math
import os
import pkgutil
import re
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from slipway.core.errors import UserError, nearest
from slipway.core.exit_codes import STOPPED
from slipway.core.manifest import Manifest
from slipway.trainer.config import ModelSettings
from slipway.trainer.engines.quick_import import import_tensorflow
from slipway.trainer.engines.table import ENGINES
from slipway.trainer.tasks import TASKS

if TYPE_CHECKING:
    from slipway.trainer.engines.base import ModelSize

# The parameters of a builder, by whether the image is the network's only input.
PARAMETERS = {True: ("image_shape", "classes"), False: ("inputs", "outputs")}
_CONTRACT = "a function of (image_shape, classes, …) that returns a network from images to logits [batch, classes]"


class EndedProcess(Exception):
    """User code tried to end this process; the cause is SystemExit, KeyboardInterrupt or `_OsExit`."""


class _OsExit(BaseException):
    """A call of os._exit; the argument is its status."""


class _Caller(threading.local):
    """Whether the thread runs user code: then, the process; forks that user code starts are others."""

    pid: int | None = None


_caller = _Caller()
_exit = os._exit


def _raise_or_exit(status: int) -> NoReturn:
    if _caller.pid == os.getpid():
        raise _OsExit(status)
    _exit(status)


@contextlib.contextmanager
def user_code() -> Iterator[None]:
    """Run user code; if it tries to end this process, raise `EndedProcess` instead.

    os._exit raises only in this thread; in other threads and forked processes it works as usual. Python itself does not
    report a call of it, by an audit event or otherwise: a step would end without a result or a reason, with status 0
    as if it had succeeded. A process for user code is no alternative, because networks cannot be sent to another one.
    Seen with Python 3.11.
    """
    os._exit = _raise_or_exit
    before, _caller.pid = _caller.pid, os.getpid()
    try:
        yield
    except (SystemExit, KeyboardInterrupt, _OsExit) as error:
        if isinstance(error, SystemExit) and error.code == STOPPED:  # not user code: SIGTERM was received
            raise
        raise EndedProcess(f"os._exit({error})" if isinstance(error, _OsExit) else _named(error)) from error
    finally:
        _caller.pid = before
        if before is None:
            os._exit = _exit


def what_happened(error: Exception) -> str:
    """Describe what user code did, as the end of a sentence: "raised KeyError: 'x'", "called os._exit(3)"."""
    if isinstance(error, EndedProcess):
        return f"{'called' if isinstance(error.__cause__, _OsExit) else 'raised'} {error}"
    return f"raised {_named(error)}"


def origin(error: Exception) -> BaseException:
    """Return the exception that the user code itself raised."""
    return (error.__cause__ if isinstance(error, EndedProcess) else None) or error


def _named(error: BaseException) -> str:
    """Return an exception's type and the first lines of its text, without Keras's color codes."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
    text = "\n".join([line for line in lines if line.strip()][:4])
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def build(settings: ModelSettings, manifest: Manifest) -> Any:
    """Call the builder for a data set, with `model.arguments` by name.

    Its first argument is the image's [height, width, channels] if that is the only input, and otherwise a dict of the
    inputs by name; its second the number of outputs.

    Raises:
        UserError: It cannot be imported, does not accept these arguments, or raises (then with that cause).
    """
    function = load(settings.builder)
    try:
        signature = inspect.signature(function)
    except ValueError:  # a C function without a signature; the call itself will fail if it does not match
        pass
    else:
        check_signature(signature, settings, manifest)
    first = manifest.image_shape if manifest.is_image_only else manifest.all_inputs
    try:
        with user_code():
            return function(first, manifest.outputs, **settings.arguments)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"The builder {settings.builder} {what_happened(error)}",
            setting="model.arguments" if settings.arguments else "model.builder",
            value=settings.arguments or settings.builder,
            allowed=contract(manifest),
            fix="fix the function, or change model.arguments",
        ) from origin(error)


def network_size(engine: str, settings: ModelSettings, manifest: Manifest) -> ModelSize:
    """Build the network for the engine, and return the size of its variables.

    Raises:
        UserError: The builder failed (`build`), or returned a network that the engine cannot train.
    """
    networks, model = _built(engine, settings, manifest)
    return networks.size(model)


def example_elements(engine: str, settings: ModelSettings, manifest: Manifest) -> int:
    """Return the number of elements of an example's inputs and all layers' outputs; raises as `network_size`."""
    networks, model = _built(engine, settings, manifest)
    inputs = sum(math.prod(feature.shape) for feature in manifest.all_inputs.values())
    return inputs + networks.output_elements(model, manifest)


def layers(engine: str, settings: ModelSettings, manifest: Manifest) -> dict[str, bool]:
    """Return the path of each layer, and whether it is trainable; raises as `network_size`."""
    networks, model = _built(engine, settings, manifest)
    return networks.layers(model)


def _built(engine: str, settings: ModelSettings, manifest: Manifest) -> tuple[Any, Any]:
    """Return the engine's `networks` module and the network, with Keras imported on the engine's backend."""
    import_tensorflow(engine)
    import keras

    keras.backend.clear_session()  # names of layers are numbered anew, as in the trainer
    model = build(settings, manifest)
    networks = importlib.import_module(ENGINES[engine].networks)
    return networks, networks.checked(model, settings)


def project_first() -> None:
    """Put the working directory first on the module search path: a project's own modules win, as with `python -m`."""
    here = str(Path.cwd())
    if sys.path[:1] not in ([here], [""]):
        sys.path.insert(0, here)


def module_spec(package: str, folder: Path) -> ModuleSpec | None:
    """Return where a project in `folder` imports a top-level module from, without importing it; None if nowhere.

    Raises:
        UserError: The project has a folder of this name, but Python prefers an installed package to it.
    """
    project_spec = importlib.machinery.PathFinder.find_spec(package, [str(folder)])
    installed = importlib.util.find_spec(package)
    if (
        project_spec is not None
        and project_spec.origin is None
        and installed is not None
        and installed.origin is not None
    ):
        raise UserError(
            f"The folder {package} has no __init__.py, so that Python imports {installed.origin} instead.",
            fix=f"touch {package}/__init__.py",
        )
    return project_spec or installed


def load(builder: str, setting: str = "model.builder", contract: str = _CONTRACT) -> Callable[..., Any]:
    """Import and return the function that "module:function" names.

    Args:
        builder: The function's module and name.
        setting: The setting that names it, for messages.
        contract: What the function accepts and returns, for messages.

    Raises:
        UserError: The module or function does not exist, or importing the module fails (then with that cause).
    """
    module_name, _, function_name = builder.partition(":")
    project_first()
    try:
        with user_code():
            module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _import_failed(builder, module_name, error, setting) from error
        raise UserError(
            f"There is no module {error.name!r}.",
            setting=setting,
            value=builder,
            allowed='"module:function" with a module that is installed or in the working directory',
            nearest=_nearest_module(module_name, function_name),
            fix="correct the module's name, or run the command in the folder that contains the module",
        ) from None
    except Exception as error:
        raise _import_failed(builder, module_name, error, setting) from origin(error)
    function = getattr(module, function_name, None)
    if not callable(function):
        names = _functions(module)
        close = nearest(function_name, names)
        raise UserError(
            f"The module {module_name} has no function {function_name!r}.",
            setting=setting,
            value=builder,
            allowed=", ".join(f"{module_name}:{name}" for name in names) or contract,
            nearest=f"{module_name}:{close}" if close else None,
            fix="correct the function's name",
        )
    return function


def _import_failed(builder: str, module_name: str, error: Exception, setting: str) -> UserError:
    return UserError(
        f"The module {module_name} cannot be imported: it {what_happened(error)}",
        setting=setting,
        value=builder,
        fix="fix the module, or install its dependencies",
    )


def contract(manifest: Manifest) -> str:
    """Return what a builder for the data set is, for messages."""
    if manifest.is_image_only and manifest.task == "classification":
        return _CONTRACT
    first, second = PARAMETERS[manifest.is_image_only]
    inputs = "images" if manifest.is_image_only else "a dict of inputs"
    return (
        f"a function of ({first}, {second}, …) that returns a network from {inputs} to {TASKS[manifest.task].head}, "
        f"[batch, {manifest.outputs}]"
    )


def check_signature(signature: inspect.Signature, settings: ModelSettings, manifest: Manifest | None) -> None:
    """Check that a builder with this signature accepts the two arguments of `build` and `model.arguments`.

    Args:
        signature: The builder's.
        settings: Its name and arguments.
        manifest: The data set, which decides between the two forms; None if it is not known yet.

    Raises:
        UserError: It does not, or its first parameter is named like that of the other form.
    """
    form = manifest is None or manifest.is_image_only
    called = ", ".join(PARAMETERS[form])
    if manifest is not None:
        _check_form(signature, settings, manifest)
    try:
        signature.bind(None, None, **settings.arguments)
    except TypeError as error:
        problem = f"The builder {settings.builder} cannot be called with ({called}, **model.arguments): {error}."
        if not settings.arguments:
            raise UserError(
                problem,
                setting="model.builder",
                value=settings.builder,
                allowed=_CONTRACT if manifest is None else contract(manifest),
                fix=f"def {settings.builder.partition(':')[2]}({called}): …",
            ) from None
        names = [name for name in list(signature.parameters)[2:] if not name.startswith("_")]
        unknown = [name for name in settings.arguments if name not in signature.parameters]
        raise UserError(
            problem,
            setting="model.arguments",
            value=settings.arguments,
            allowed=f"the arguments {', '.join(names)}" if names else "no arguments",
            nearest=nearest(unknown[0], names) if unknown else None,
            fix="correct model.arguments",
        ) from None


def _check_form(signature: inspect.Signature, settings: ModelSettings, manifest: Manifest) -> None:
    first, second = PARAMETERS[manifest.is_image_only]
    other, _ = PARAMETERS[not manifest.is_image_only]
    if next(iter(signature.parameters), None) != other:
        return
    names = list(manifest.all_inputs)
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    why = "the image is the only input" if manifest.is_image_only else f"the inputs are {some}"
    raise UserError(
        f"The builder {settings.builder} accepts {other}, but is called with ({first}, {second}), because {why}.",
        setting="model.builder",
        value=settings.builder,
        allowed=contract(manifest),
        fix=f"def {settings.builder.partition(':')[2]}({first}, {second}): …, or change data.inputs",
    )


def _functions(module: ModuleType) -> list[str]:
    """Return the names of the public functions that `module` itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]


def _nearest_module(module_name: str, function_name: str) -> str | None:
    """Return the sibling module with the name most similar to the missing one."""
    parent, _, name = module_name.rpartition(".")
    if not parent:  # every installed package would be a sibling
        return None
    try:
        path = importlib.import_module(parent).__path__
    except (ImportError, AttributeError):
        return None
    close = nearest(name, [module.name for module in pkgutil.iter_modules(path)])
    return f"{parent}.{close}:{function_name}" if close else None
