"""Own pipelines of Slipway's steps, in KFP's forms: each is compiled as for Vertex AI and run by kfp.local.

kfp.local starts a process for each task; here the task is a call in the test's process, with the same arguments.
"""

# ruff: noqa: B006, UP006, UP035  # kfp reads annotations and defaults, which people write so

import concurrent.futures
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Dict, List

import pytest
import yaml
from kfp import compiler, dsl, local
from kfp.dsl.executor import Executor
from kfp.local import subprocess_task_handler

from slipway import steps
from slipway.components.prepare_data.prepare import prepare
from slipway.components.prepare_data.settings import DataSettings
from slipway.core.errors import UserError

MODEL = {"builder": "slipway.trainer.models.digits:build"}
LENGTH = {"steps": 20, "batch_size": 64}
RATES = [0.001, 0.01]


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def choose_rates() -> list:
    return [0.001, 0.01]


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def count(plans: list) -> int:
    return len(plans)


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def say(status: dsl.PipelineTaskFinalStatus) -> str:
    return status.state


def imported(folder: Any) -> Any:
    return dsl.importer(artifact_uri=folder, artifact_class=dsl.Dataset, reimport=False).output


def plan(folder: Any, rate: Any, optimizer: Any = "adam") -> Any:
    train = {**LENGTH, "learning_rate": rate, "optimizer": optimizer}
    return steps.plan_training(imported(folder), train=train, model=MODEL)


@dsl.pipeline(name="loop-typed-list")
def typed_list(folder: str, rates: List[float] = RATES):
    with dsl.ParallelFor(items=rates) as rate:
        plan(folder, rate)


@dsl.pipeline(name="loop-untyped-list")
def untyped_list(folder: str, rates: list = RATES):
    with dsl.ParallelFor(items=rates) as rate:
        plan(folder, rate)


@dsl.pipeline(name="loop-static-list")
def static_list(folder: str):
    with dsl.ParallelFor(items=[1, 0.01]) as rate:  # all whole numbers, for kfp
        plan(folder, rate)


@dsl.pipeline(name="loop-static-dicts")
def static_dicts(folder: str):
    items = [{"rate": 0.001, "optimizer": "sgd"}, {"rate": 0.01, "optimizer": "adam"}]
    with dsl.ParallelFor(items=items) as item:  # all fields are of the first one's type, for kfp
        plan(folder, item.rate, item.optimizer)


@dsl.pipeline(name="loop-typed-dicts")
def typed_dicts(folder: str, items: List[Dict[str, float]] = [{"rate": 0.001}, {"rate": 0.01}]):
    with dsl.ParallelFor(items=items) as item:
        plan(folder, item.rate)


@dsl.pipeline(name="loop-untyped-dicts")
def untyped_dicts(folder: str, items: list = [{"rate": 0.001}, {"rate": 0.01}]):
    with dsl.ParallelFor(items=items) as item:
        plan(folder, item.rate)


@dsl.pipeline(name="loop-output")
def output(folder: str):
    with dsl.ParallelFor(items=choose_rates().output) as rate:
        plan(folder, rate)


@dsl.pipeline(name="loop-in-loop")
def loop_in_loop(folder: str, optimizers: List[str] = ["sgd", "adam"]):
    data = imported(folder)
    rates = choose_rates()
    with dsl.ParallelFor(items=optimizers) as optimizer, dsl.ParallelFor(items=RATES) as rate:
        train = {**LENGTH, "learning_rate": rate, "optimizer": optimizer}
        steps.plan_training(data, train=train, model=MODEL)
        count(plans=rates.output)  # an output from outside of the loops


@dsl.pipeline(name="loop-collected")
def collected(folder: str):
    with dsl.ParallelFor(items=RATES) as rate:
        planned = plan(folder, rate)
    count(plans=dsl.Collected(planned.output))


@dsl.pipeline(name="loop-condition")
def condition(folder: str, rates: List[float] = RATES, skipped: str = "no"):
    with dsl.ParallelFor(items=rates) as rate, dsl.If(skipped == "no"):
        plan(folder, rate)


@dsl.pipeline(name="dicts-as-settings")
def dicts_as_settings(folder: str, settings: dict = {**LENGTH, "learning_rate": 0.001}):
    data = imported(folder)
    steps.plan_training(data, train=settings, model=MODEL)
    with dsl.ParallelFor(items=[{**LENGTH, "learning_rate": 0.01}]) as item:
        steps.plan_training(data, train=item, model=MODEL)


@dsl.pipeline(name="items-as-settings")
def items_as_settings(folder: str, items: list = [{**LENGTH, "learning_rate": rate} for rate in RATES]):
    data = imported(folder)
    with dsl.ParallelFor(items=items) as item:
        steps.plan_training(data, train=item, model=MODEL)


@dsl.pipeline(name="inner")
def inner(folder: str, rate: float):
    plan(folder, rate)


@dsl.pipeline(name="nested")
def nested(folder: str, rates: List[float] = RATES):
    with dsl.ParallelFor(items=rates) as rate:
        inner(folder=folder, rate=rate)


@dsl.pipeline(name="exit-handler")
def exit_handler(folder: str, rates: List[float] = RATES):
    with dsl.ExitHandler(say()), dsl.ParallelFor(items=rates) as rate:
        plan(folder, rate)


BOTH = [(0.001, "adam"), (0.01, "adam")]
PIPELINES: dict[Any, list[tuple[float, str]]] = {
    typed_list: BOTH,
    untyped_list: BOTH,
    static_list: [(0.01, "adam"), (1.0, "adam")],
    static_dicts: [(0.001, "sgd"), (0.01, "adam")],
    typed_dicts: BOTH,
    untyped_dicts: BOTH,
    output: BOTH,
    loop_in_loop: [(0.001, "adam"), (0.001, "sgd"), (0.01, "adam"), (0.01, "sgd")],
    collected: BOTH,
    condition: BOTH,
    dicts_as_settings: BOTH,
    items_as_settings: BOTH,
    nested: BOTH,
    exit_handler: BOTH,
}
Run = Callable[..., list[tuple[str, Any]]]


@pytest.fixture(scope="module")
def data_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(DataSettings(source="digits", store=str(tmp_path_factory.mktemp("store"))), 1).folder


class InThisThread(concurrent.futures.Executor):
    """In place of kfp.local's threads, of which two execute iterations: a step needs the main one."""

    def __init__(self, max_workers: int) -> None:
        pass

    def submit(self, function: Any, /, *arguments: Any, **named: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result(function(*arguments, **named))
        return future


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a pipeline by kfp.local; return the name and the output of each task, in the order in which they ended."""
    functions = {component.name: component.python_func for component in (choose_rates, count, say)}
    functions["plan-training"] = steps._plan_training.plan_training.python_func
    ended: list[tuple[str, Any]] = []

    def call(full_command: list[str], env_vars: object = None) -> int:
        arguments = full_command[full_command.index("--executor_input") :]
        name = arguments[arguments.index("--function_to_execute") + 1].replace("_", "-")
        with monkeypatch.context() as patched:
            patched.setattr(sys, "argv", ["executor", *arguments])
            try:
                written = Executor(json.loads(arguments[1]), functions[name]).execute()
            except SystemExit as exit_:
                return int(exit_.code or 0)
        ended.append((name, json.loads(Path(written).read_text())["parameterValues"]["Output"]))
        return 0

    monkeypatch.setattr(subprocess_task_handler, "run_local_subprocess", call)
    monkeypatch.setattr("concurrent.futures.ThreadPoolExecutor", InThisThread)
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(tmp_path / "outputs"))

    def execute(pipeline: Any, **arguments: Any) -> list[tuple[str, Any]]:
        ended.clear()
        pipeline(**arguments)
        return ended

    yield execute
    local.config.LocalExecutionConfig.instance = None


def trained(ended: list[tuple[str, Any]]) -> list[tuple[float, str]]:
    """The learning rate and the optimizer of each planned training."""
    arguments = [plan[0]["container_spec"]["args"] for name, plan in ended if name == "plan-training"]
    plans = [json.loads(each[each.index("--config") + 1])["train"] for each in arguments]
    return sorted((plan["learning_rate"], plan["optimizer"]) for plan in plans)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda pipeline: pipeline.name)
def test_every_form_compiles_for_vertex_and_runs_here(pipeline: Any, data_set: Path, run: Run, tmp_path: Path) -> None:
    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    ended = run(pipeline, folder=str(data_set))
    assert trained(ended) == PIPELINES[pipeline]
    assert {output for name, output in ended if name == "count"} <= {2}
    assert {output for name, output in ended if name == "say"} <= {"SUCCEEDED"}


def test_inputs_have_the_types_of_the_items(tmp_path: Path) -> None:
    compiler.Compiler().compile(static_dicts, str(tmp_path / "pipeline.yaml"))
    components = yaml.safe_load((tmp_path / "pipeline.yaml").read_text())["components"]
    parameters = components["comp-plan-training"]["inputDefinitions"]["parameters"]
    types = {name.rpartition("-")[2]: each["parameterType"] for name, each in parameters.items() if "--" in name}
    assert types == {"rate": "NUMBER_DOUBLE", "optimizer": "STRING"}


def test_an_item_is_part_of_a_text(run: Run, tmp_path: Path) -> None:
    @dsl.pipeline(name="options")
    def options():
        with dsl.ParallelFor(items=[{"rate": 0.5, "label": "a"}, {"rate": 0.25, "label": "b"}]) as item:
            arguments = [f"--rate={item.rate}", "--out", f"gs://bucket/{item.label}/model"]
            steps.plan_training(train={"module": "program", "arguments": arguments})

    compiler.Compiler().compile(options, str(tmp_path / "pipeline.yaml"))
    texts = [json.dumps(plan) for _, plan in run(options)]
    assert len(texts) == 2
    for rate, name in ((0.5, "a"), (0.25, "b")):
        assert any(f"--rate={rate}" in text and f"gs://bucket/{name}/model" in text for text in texts)


def test_an_unknown_output_names_the_known_ones() -> None:
    with pytest.raises(UserError) as refused:

        @dsl.pipeline
        def wrong():
            steps.prepare_data({"source": "digits"}).outputs["datasets"]

    assert refused.value.message == "There is no output of prepare-data 'datasets'."
    assert (refused.value.nearest, refused.value.allowed) == ("dataset", "dataset, statistics")


@pytest.mark.parametrize("name", ["flowers", "0123456789abcdef"])
def test_an_imported_folder_of_the_users_is_not_named_to_be_deleted(
    run: Run, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / name
    (folder / "rose").mkdir(parents=True)
    (folder / "rose" / "1.jpg").write_bytes(b"image")
    with pytest.raises(RuntimeError):
        run(typed_list, folder=str(folder))
    said = "".join(capsys.readouterr())
    assert "manifest.json is missing" in said
    assert (
        "fix:      name a data set of prepare_data: its folder STORE/NAME/FINGERPRINT, which has manifest.json" in said
    )
    assert "rm -r" not in said
