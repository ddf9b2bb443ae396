"""What Slipway replaces in other packages: a test fails as soon as a package no longer needs the replacement.

It can be deleted once the oldest version that pyproject.toml allows has the change.
"""

import asyncio
import importlib.util
import subprocess
import sys
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import docker
import pytest
import uvicorn
from kfp import dsl, local
from kfp.local import docker_task_handler, subprocess_task_handler
from kfp.local.orchestrator import task_spec_utils
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineTaskSpec
from typer.core import TyperArgument
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from slipway.components import tasks
from slipway.serving import connections


def unpatched(module: ModuleType) -> Any:
    """Return another copy of a module, as its package has it."""
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(copy)
    return copy


def test_click_resets_the_help_that_typer_sets() -> None:
    """`slipway.pipelines.cli.app` sets it again."""
    assert TyperArgument(param_decls=["run"], help="A run.").help is None


def test_python_does_not_report_calls_of_os_exit() -> None:
    """`slipway.trainer.engines.builder.user_code` replaces it."""
    code = "import atexit, os, sys; sys.addaudithook(print); atexit.register(print); os._exit(3)"
    ended = subprocess.run([sys.executable, "-ISuc", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "")


def test_kfp_does_not_quote_the_interpreter() -> None:
    """`slipway.components.tasks` does."""
    command = unpatched(subprocess_task_handler).replace_python_executable(["sh", "-c", "python3"], "/my code/python")
    assert command == ["sh", "-c", "/my code/python"]


def test_kfp_passes_a_loops_item_in_place_of_a_tasks_output() -> None:
    """`slipway.components.tasks` passes the output."""
    loop = PipelineTaskSpec()
    loop.parameter_iterator.item_input = "item"
    loop.inputs.parameters["data"].task_output_parameter.producer_task = "prepare-data"
    create = unpatched(task_spec_utils).create_parameter_loop_iteration_task_spec
    assert create(loop, 0.1, "loop").inputs.parameters["data"].runtime_value.constant.number_value == 0.1
    create = task_spec_utils.create_parameter_loop_iteration_task_spec
    assert create is tasks._iteration
    iteration = create(loop, 0.1, "loop").inputs.parameters
    assert iteration["data"].task_output_parameter.producer_task == "prepare-data"
    assert iteration["item"].runtime_value.constant.number_value == 0.1


def test_kfp_reports_success_for_a_container_that_it_cannot_find() -> None:
    """`slipway.pipelines.platforms.local.containers.run_container` returns its exit code."""
    client = MagicMock()
    container = client.containers.run.return_value
    container.logs.side_effect = container.wait.side_effect = docker.errors.NotFound("removed")
    assert unpatched(docker_task_handler).run_docker_container(client, "image", ["false"], {}) == 0


def test_kfp_refuses_custom_runners(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`slipway.pipelines.platforms.local.executor` replaces what the runner of processes calls."""

    class Forks(local.SubprocessRunner):
        pass

    @dsl.component(base_image="python:3.11")
    def task() -> None:
        pass

    monkeypatch.setattr(local.config.LocalExecutionConfig, "instance", None)
    local.init(runner=Forks(use_venv=False), pipeline_root=str(tmp_path))
    with pytest.raises(KeyError, match="Forks"):
        task()


def test_uvicorn_bounds_neither_a_header_nor_the_time_until_it_is_complete() -> None:
    """`slipway.serving.connections` does."""
    transport, loop = MagicMock(asyncio.Transport), MagicMock(asyncio.AbstractEventLoop)
    config = uvicorn.Config(MagicMock(), http=HttpToolsProtocol, log_config=None)
    config.load()
    protocol = HttpToolsProtocol(config, ServerState(), {}, loop)
    protocol.connection_made(transport)
    protocol.data_received(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 2**18)
    assert not loop.call_later.called
    assert not (transport.close.called or transport.abort.called or transport.write.called)
    assert issubclass(connections._Connection, HttpToolsProtocol)
