"""The specs of all platforms against the table of steps, and the documentation of the steps."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler

from slipway.components.build_image.build import ImageRequest
from slipway.components.build_image.cloud_build import CloudBuildSettings, Source
from slipway.components.deploy.settings import DeploySettings
from slipway.components.train.tpu.settings import TpuSettings
from slipway.pipelines.config.config import RunConfig, validate
from slipway.pipelines.hardware import parse
from slipway.pipelines.images.registry import VerifiedBuild
from slipway.pipelines.platforms.kubeflow import steps as kubeflow
from slipway.pipelines.platforms.local import steps as local
from slipway.pipelines.platforms.table import PLATFORMS, remote
from slipway.pipelines.platforms.tpu.steps import TpuSteps
from slipway.pipelines.platforms.vertex import steps as vertex
from slipway.pipelines.platforms.vertex.images import Images
from slipway.pipelines.step import Step, Task
from slipway.pipelines.table import EXIT_TASKS, STEPS
from tests.pipelines.platforms.kubeflow.conftest import configuration
from tests.pipelines.platforms.vertex.test_spec import VERTEX

IMAGES = Images("steps@sha256:1", "trainer@sha256:2", "evaluation@sha256:3")


class Compiled:
    """The tasks of a compiled pipeline, including those inside a condition."""

    def __init__(self, folder: Path, pipeline: Any) -> None:
        compiler.Compiler().compile(pipeline, str(folder / "spec.yaml"))
        spec = next(yaml.safe_load_all((folder / "spec.yaml").read_text()))
        self.components = spec["components"]
        self.executors = spec["deploymentSpec"]["executors"]
        dags = [spec["root"]["dag"], *(one["dag"] for one in self.components.values() if "dag" in one)]
        tasks = {name: task for dag in dags for name, task in dag["tasks"].items()}
        for task in tasks.values():  # what is inside a condition also waits for what the condition waits for
            inner = self.components[task["componentRef"]["name"]].get("dag", {}).get("tasks", {})
            for one in inner.values():
                one["dependentTasks"] = [*one.get("dependentTasks", []), *task.get("dependentTasks", [])]
        self.tasks = {name: task for name, task in tasks.items() if not name.startswith("condition")}

    def image(self, task: str) -> str:
        component = self.components[self.tasks[task]["componentRef"]["name"]]
        return str(self.executors[component["executorLabel"]]["container"]["image"])

    def outputs(self, task: str) -> set[str]:
        found = self.components[self.tasks[task]["componentRef"]["name"]].get("outputDefinitions", {})
        return {*found.get("parameters", {}), *found.get("artifacts", {})}

    def is_cached(self, task: str) -> bool:
        return bool(self.tasks[task].get("cachingOptions", {}).get("enableCache"))

    def retries(self, task: str) -> int:
        return int(self.tasks[task].get("retryPolicy", {}).get("maxRetryCount", 0))


def pipeline_for(platform: str, notify: dict[str, Any] | None = None) -> Any:
    if platform == "kubeflow":
        return kubeflow.pipeline(configuration(notify=notify).model_copy(update={"when": "drift"}))
    digits = {**yaml.safe_load(Path("configs/digits.yaml").read_text()), "notify": notify, "when": "drift"}
    config: RunConfig = validate(digits | {"vertex": {**VERTEX, "retries": 2}}, "the test's configuration")
    if platform == "vertex":
        return vertex.pipeline(config.model_copy(update={"deploy": DeploySettings(endpoint="digits")}), IMAGES)
    if platform == "tpu":
        section = TpuSettings(
            project="p", zones=("us-west4-a",), bucket="gs://p-runs", service_account="tpu@p.iam.gserviceaccount.com"
        )
        on_tpu = config.model_copy(update={"hardware": (parse("tpu-v5e-2x2"),), "tpu": section})
        return local.pipeline(on_tpu, platform=TpuSteps(IMAGES.trainer))
    return local.pipeline(config)


@pytest.fixture(scope="module", params=PLATFORMS)
def platform(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def compiled(platform: str, tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp(platform), pipeline_for(platform))


def rows(platform: str) -> list[tuple[Step, Task]]:
    # The images of this run are built before it.
    steps = [step for step in STEPS.values() if step.is_on(platform) and step.name != "build_image"]
    return [(step, task) for step in steps for task in step.tasks_on(platform) if not task.search]


def test_a_pipeline_has_the_tasks_of_the_table(platform: str, compiled: Compiled) -> None:
    assert set(compiled.tasks) == {task.name for _, task in rows(platform)}


def test_the_last_task_of_a_step_has_its_outputs(platform: str, compiled: Compiled) -> None:
    for step, _ in rows(platform):
        assert set(step.outputs) <= compiled.outputs(step.tasks_on(platform)[-1].name), step.name


@pytest.mark.parametrize("last", [step.name for step in STEPS.values() if step.is_on("local") and step.settings])
def test_a_part_of_a_pipeline_ends_after_its_last_step(tmp_path: Path, last: str) -> None:
    """As `slipway run --only` requires; with `platform.includes`, `pipelines/pipeline.py` adds no step after it."""
    config = validate(yaml.safe_load(Path("configs/digits.yaml").read_text()), "the test's configuration")
    names = [step.name for step in STEPS.values() if step.is_on("local") and not step.condition]
    included = names[1 : names.index(last) + 1]  # without build_image
    expected = {task.name for name in included for task in STEPS[name].tasks_on("local")}
    assert set(Compiled(tmp_path, local.pipeline(config, last=last)).tasks) == expected


def test_only_this_machine_caches_and_only_as_the_table_says(platform: str, compiled: Compiled) -> None:
    cached = {task.name for _, task in rows(platform) if task.cached} if remote(platform) is None else set()
    assert {name for name in compiled.tasks if compiled.is_cached(name)} == cached
    assert "prepare-data" not in cached


def test_vertex_uses_the_images_and_retries_of_the_table(tmp_path: Path) -> None:
    compiled = Compiled(tmp_path, pipeline_for("vertex"))
    images = {"steps": IMAGES.steps, "evaluation": IMAGES.evaluation}
    for _, task in rows("vertex"):
        assert compiled.retries(task.name) == (2 if task.retried else 0), task.name
        if task.name == "custom-training-job":  # Google's launcher; the plan has the trainer's image
            plan = compiled.tasks["plan-training"]["inputs"]["parameters"]
            assert plan["image"]["runtimeValue"]["constant"] == getattr(IMAGES, task.image)
        else:
            assert compiled.image(task.name) == images[task.image], task.name


BUILD = VerifiedBuild(
    ImageRequest(repository="europe-west4-docker.pkg.dev/p/slipway", name="trainer", tag="1", arguments={}, labels={}),
    Source(bucket="p-slipway", name="source.tar.gz", generation="1"),
    CloudBuildSettings(project="p", region="europe-west4", endpoints={}, bucket="p-slipway", service_account=None),
)


BEAM = {"options": {"region": "europe-west4"}}


@pytest.mark.parametrize(
    ("hardware", "disk", "beam", "build"),
    [  # all pairs of two settings
        ("cpu*2", None, None, None),
        ("cpu*2", "500G", BEAM, BUILD),
        ("l4x1", None, BEAM, None),
        ("l4x1", "500G", None, BUILD),
        ("tpu-v5e-2x2", None, BEAM, BUILD),
        ("tpu-v5e-2x2", "500G", None, None),
    ],
)
def test_what_starts_machines_waits_for_the_permissions_and_the_image(
    tmp_path: Path, hardware: str, disk: str | None, beam: dict[str, Any] | None, build: VerifiedBuild | None
) -> None:
    digits = yaml.safe_load(Path("configs/digits.yaml").read_text())
    place = {**VERTEX, "steps": {"prepare_data": {"disk": disk}, "evaluate": {"disk": disk}}}
    more = {"data": {**digits["data"], "beam": beam}, "deploy": {"endpoint": "digits"}}
    values = digits | {"vertex": place, "hardware": hardware, **more}
    config: RunConfig = validate(values, "the test's configuration")
    tasks = Compiled(tmp_path, vertex.pipeline(config, replace(IMAGES, build=build))).tasks
    expensive = {step.tasks_on("vertex")[0].name for step in STEPS.values() if step.starts_machines}
    assert expensive
    for task in expensive | ({"prepare-data", "evaluate"} if beam or disk else set()):
        assert {"setup-access", *(["build-image"] if build else [])} <= awaited(tasks, task), task


def awaited(tasks: dict[str, Any], name: str) -> set[str]:
    """The tasks that must succeed before the task `name` starts."""
    direct = set(tasks[name].get("dependentTasks", []))
    return direct.union(*(awaited(tasks, task) for task in direct))


@pytest.mark.parametrize("name", ["vertex", "kubeflow"])
def test_whoever_is_notified_by_an_exit_task_that_waits_for_all_others(tmp_path: Path, name: str) -> None:
    without = Compiled(tmp_path, pipeline_for(name)).tasks
    notify = {"webhook": "https://hooks.example.com/x"} | ({"email": ["a@b.c"]} if name == "vertex" else {})
    tasks = Compiled(tmp_path, pipeline_for(name, notify=notify)).tasks
    exits = {task: tasks[task] for task in set(tasks) - set(without) - {"exit-handler-1"}}
    used = EXIT_TASKS if name == "vertex" else EXIT_TASKS[:1]
    assert set(exits) == {task.name for task in used}
    for task in exits.values():
        assert task["dependentTasks"] == ["exit-handler-1"]
        assert task["triggerPolicy"] == {"strategy": "ALL_UPSTREAM_TASKS_COMPLETED"}
        assert not task.get("cachingOptions", {}).get("enableCache")
    spec = yaml.safe_load((tmp_path / "spec.yaml").read_text().split("\n---\n")[0])
    assert set(spec["root"]["dag"]["tasks"]) == {"exit-handler-1", *exits}


def test_every_step_has_its_folder_and_its_row_in_the_documentation() -> None:
    page = Path("docs/architecture.md").read_text()
    for step in STEPS.values():
        assert (Path("components") / step.name / "component.py").is_file()
        assert row(step) in page


def row(step: Step) -> str:
    """The line of docs/architecture.md about a step."""
    tasks = {task for name in PLATFORMS for task in step.tasks_on(name) if not task.concurrent}
    cached = "yes" if any(task.cached for task in step.tasks_on("local")) else "no"
    retried = "yes" if all(task.retried for task in tasks) else "no"
    machines = "yes" if step.starts_machines else "no"
    outputs = ", ".join(f"`{name}`" for name in step.outputs) or "none"
    platforms = ", ".join(name for name in PLATFORMS if step.is_on(name))
    return f"| `{step.name}` | {step.label} | {outputs} | {platforms} | {cached} | {retried} | {machines} |"


def test_the_files_of_the_usual_changes_exist() -> None:
    """The table of docs/architecture.md: none of the changes touches more than four files."""
    section = Path("docs/architecture.md").read_text().partition("## Where to add things")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:5] for line in section.splitlines() if line.startswith("| ")][1:]
    counts: Counter[str] = Counter()
    change = ""
    for name, files, _, tests in rows:
        change = name.strip() or change
        counts[change] += 1
        for path in re.findall(r"`([\w.]+/[\w./-]*)`", files + tests):
            known = re.sub(r"(NAME|TASK).*", "", path)
            assert Path(known).exists(), path
    assert len(counts) >= 12
    assert max(counts.values()) <= 4
