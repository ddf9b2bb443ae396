"""Fixtures that several parts of the tests share."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import logging
import os
import shutil
import signal
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import psutil
import pytest
import typer.testing
import yaml
from xdist.scheduler import LoadFileScheduling

from slipway.core import yaml_loader
from slipway.core.cores import available_cores
from slipway.trainer.engines.quick_import import import_tensorflow
from tests import absent, forks

if TYPE_CHECKING:
    from tests.fakes.google import FakeGoogle

# Tests fork beside the fakes' gRPC servers, whose fork handlers now and then crash or block the new process.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# Evaluations sign the ledger of their test split.
os.environ["SLIPWAY_LEDGER_KEY"] = str(Path(tempfile.gettempdir()) / f"slipway-tests-{os.getuid()}" / "ledger.key")

# Threads of OpenMP wait asleep, not in loops: machines are shared. OpenMP reads this when scikit-learn is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Nor do those of OpenBLAS, which NumPy and SciPy have, 2**26 cycles long after each start and each fork. It reads this
# when they are imported: in the processes of pytest-xdist and in all that tests start.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")

# Tests start many interpreters, and several processes read the rewritten assertions: they cache their bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# kfp asks for the whole stack at each limit of a task; the lines of source, read for each frame, are most of the work.
inspect.stack = functools.partial(inspect.stack, 0)

# What importing and collecting the tests makes stays: collections of garbage would only visit it, again and again.
gc.disable()

# How long an example takes says nothing here: machines are shared. What failed is printed so that it can be repeated.
hypothesis.settings.register_profile(
    "slipway",
    max_examples=25,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("slipway"), max_examples=300)
hypothesis.settings.load_profile("slipway")  # make test-long: --hypothesis-profile thorough


# Tests that use TensorFlow or a notebook's kernel, or talk to the fakes' servers, are slow: they have one of these
# fixtures, or are in one of these folders. Any other test that needs more than half a second of a core has the marker.
# `make check` skips them. Tests with the marker `long` are slow too; `make test` skips those. Files that
# wait more than they compute, WAITING, begin early.
SLOW_FIXTURES = {"tensorflow", "workers", "data_set", "make_data_set", "google", "kubeflow", "kernel"}
SLOW_FOLDERS = {"browser", "end_to_end", "engines", "installed"}
WAITING = {"test_rendezvous.py", "test_launch.py", "test_local_cluster.py", "test_restarts.py", "test_connections.py"}
TESTS = Path(__file__).parent
PROCESS_BYTES = 2 << 30  # of the process of some tests, and of those that it starts


def pytest_xdist_auto_num_workers() -> int:
    """Return two processes more than there are cores, if memory allows: many tests wait for servers and processes."""
    return max(1, min(available_cores() + 2, psutil.virtual_memory().total // PROCESS_BYTES))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip the tests of extensions whose folders were deleted."""
    return absent.needs_absent(collection_path) or None


class Scheduling(LoadFileScheduling):
    """Gives all tests of a file to one process, and all of tests/installed: its services are started once."""

    def _split_scope(self, nodeid: str) -> str:
        return "tests/installed" if nodeid.startswith("tests/installed/") else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Return how xdist divides the tests."""
    return Scheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests and those to skip; where several processes share the files of tests, the longest come first.

    The weights are about the seconds that a test takes.
    """
    weights: Counter[Path] = Counter()
    for item in items:
        if (marker := item.get_closest_marker("extension")) and absent.lacks_extensions(marker.args):
            item.add_marker(pytest.mark.skip("needs an extension that was deleted"))
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.get_closest_marker("timeout"):
            weights[item.path] += 40
        if item.get_closest_marker("long"):
            item.add_marker("slow")
            weights[item.path] += 60
        elif item.get_closest_marker("slow"):
            weights[item.path] += 5
        elif item.path.relative_to(TESTS).parts[0] in SLOW_FOLDERS:
            item.add_marker("slow")
            weights[item.path] += 15
        elif SLOW_FIXTURES & fixtures:
            item.add_marker("slow")
            weights[item.path] += 10 if "workers" in fixtures else 1
        elif item.path.name in WAITING:
            weights[item.path] += 1
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -weights[item.path])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Import TensorFlow without its slow parts, before the first test that imports all of it, if tests need it.

    Modules and libraries are left to themselves: they stay, and collections of garbage would visit all their objects.
    """
    if session.config.option.collectonly:
        return
    if any("tensorflow" in getattr(item, "fixturenames", ()) for item in session.items):
        import_tensorflow()
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def default_signals() -> None:
    """Let child processes receive signals that nohup, or a script that runs the tests in the background, ignores.

    A new process inherits an ignored signal; one that is handled has its default action there.
    """
    handlers = {signal.SIGHUP: lambda *_: None, signal.SIGINT: signal.default_int_handler}
    for number, handler in handlers.items():
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, handler)


@pytest.fixture(scope="session")
def tensorflow() -> None:
    """Import TensorFlow without its slow parts."""
    import_tensorflow()


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Skip fsync in this process: tests would wait for the disk, and none of them cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_libraries() -> Iterator[None]:
    """Let libraries read and write YAML with libyaml, which takes a tenth of the time, and make commands only once.

    Slipway's parser of YAML reads a text once: tests share most configurations.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "safe_load", functools.partial(yaml.load, Loader=yaml.CSafeLoader))
        patch.setattr(yaml, "safe_load_all", functools.partial(yaml.load_all, Loader=yaml.CSafeLoader))
        patch.setattr(yaml, "dump_all", functools.partial(yaml.dump_all, Dumper=yaml.CDumper))  # of kfp's compiler
        patch.setattr(typer.testing, "_get_command", functools.cache(typer.main.get_command))
        read = functools.partialmethod(_read_once, yaml.constructor.BaseConstructor.get_single_data, {})
        patch.setattr(yaml_loader._Limits, "get_single_data", read, raising=False)
        yield


def _read_once(loader: Any, read: Callable[[Any], Any], values: dict[Any, Any]) -> Any:
    key = type(loader), loader.where, loader.buffer
    if key not in values:
        values[key] = read(loader)
    return copy.deepcopy(values[key])


@pytest.fixture(scope="session", autouse=True)
def forked_programs() -> Iterator[None]:
    """Start Slipway's programs as forks of a process that has imported their libraries."""
    with forks.installed():
        yield


@pytest.fixture(scope="session", autouse=True)
def empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give Slipway a cache of its own for the tests of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def real_processes() -> Iterator[None]:
    """Start all programs as processes: what is tested happens in a new interpreter."""
    with forks.as_processes():
        yield


@pytest.fixture
def no_tar_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpack archives as Python 3.11.2, which is Debian 12's: `filter` exists from 3.11.4."""
    extract_all, unpack = tarfile.TarFile.extractall, shutil.unpack_archive

    def extractall(
        archive: tarfile.TarFile, path: str = ".", members: Any = None, *, numeric_owner: bool = False
    ) -> None:
        extract_all(archive, path, members, numeric_owner=numeric_owner)

    def unpack_archive(filename: Path, extract_dir: Path | None = None, format: str | None = None) -> None:
        unpack(filename, extract_dir, format)

    monkeypatch.setattr(tarfile.TarFile, "extractall", extractall)
    monkeypatch.setattr(shutil, "unpack_archive", unpack_archive)
    for name in ("data_filter", "tar_filter", "fully_trusted_filter"):
        monkeypatch.delattr(tarfile, name, raising=False)


@pytest.fixture(autouse=True)
def log_handlers() -> Iterator[None]:
    """Remove the handlers that a step leaves behind: they write to the output of its test, which is closed."""
    before = set(logging.root.handlers)
    yield
    for handler in set(logging.root.handlers) - before:
        if type(handler) is logging.StreamHandler:
            logging.root.removeHandler(handler)


@pytest.fixture
def google(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGoogle]:
    """A new project on loopback that this process's clients trust and have credentials for."""
    if absent.needs_absent(TESTS / "fakes/google.py"):
        pytest.skip("the fake of Google Cloud needs an extension that was deleted")
    from tests.fakes import quick_clients
    from tests.fakes.google import FakeGoogle

    quick_clients.install(monkeypatch)
    folder: Path = tmp_path_factory.mktemp("google")
    with FakeGoogle(folder) as fake:
        for name, value in fake.environment.items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def ready_google(google: FakeGoogle) -> FakeGoogle:
    """The project with Vertex AI running and everything set up for runs."""
    from tests.fakes.ready import make_ready

    make_ready(google)
    google.region  # noqa: B018 (from here on its services answer)
    return google
