"""A run's two images: built if missing, named by digest in the spec, and not built if one is configured."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from slipway.core.errors import UserError
from slipway.pipelines.cli.app import app
from slipway.pipelines.config.config import RunConfig, load
from slipway.pipelines.doctor.model_builder import model_builder
from slipway.pipelines.images.build import build_images
from slipway.pipelines.images.images import accelerator_of, own_code
from slipway.pipelines.images.registry import trainer_image
from slipway.pipelines.platforms.base import Context
from slipway.pipelines.platforms.table import platform_of
from slipway.pipelines.platforms.vertex.images import ensure_images, known_images, wanted_images
from slipway.trainer.engines import builder
from tests.components.build_image.conftest import git
from tests.fakes.google import COMPUTE_ACCOUNT, PROJECT, REGION, FakeGoogle
from tests.fakes.ready import let_build, take_away

REPOSITORY = f"projects/{PROJECT}/locations/{REGION}/repositories/slipway"
BUCKET = "slipway-test-bucket"
PREFIX = f"{REGION}-docker.pkg.dev/{PROJECT}/slipway"


@pytest.fixture
def project(google: FakeGoogle) -> FakeGoogle:
    """A project with a bucket and a repository, and the roles that builds need."""
    google.storage.add_bucket(BUCKET, google.world.projects[PROJECT], REGION)
    google.repositories.add(REPOSITORY)
    let_build(google, COMPUTE_ACCOUNT, BUCKET, REPOSITORY)
    google.builds.looks = 1
    return google


def configuration(google: FakeGoogle, folder: Path, **vertex: Any) -> Path:
    values = yaml.safe_load(Path("configs/digits.yaml").read_text())
    place = {"project": PROJECT, "region": REGION, "bucket": f"gs://{BUCKET}", "endpoints": google.endpoints}
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values | {"vertex": place | {"serving_image": "e.g/serving:1"} | vertex}))
    return path


def compiled(path: Path, *settings: str) -> tuple[str, dict[str, Any], str]:
    """Run compile; return its output, the spec and stderr."""
    spec = path.with_name("spec.yaml")
    options = [part for setting in settings for part in ("--set", setting)]
    result = CliRunner().invoke(
        app, ["config", "compile", "-c", str(path), "--target", "vertex", "-o", str(spec), *options]
    )
    assert result.exit_code == 0, result.output
    return spec.read_text(), yaml.safe_load(spec.read_text()), result.stderr


def images_of(specification: dict[str, Any]) -> set[str]:
    executors = specification["deploymentSpec"]["executors"].values()
    return {e["container"]["image"] for e in executors if "container" in e and "google-cloud-pipe" not in str(e)}


def planned_image(specification: dict[str, Any]) -> dict[str, Any]:
    return specification["root"]["dag"]["tasks"]["plan-training"]["inputs"]["parameters"]["image"]


def test_a_run_builds_both_once_and_names_them_by_digest(project: FakeGoogle, tmp_path: Path) -> None:
    config = load(configuration(project, tmp_path))
    said: list[str] = []
    images = ensure_images(config, io.StringIO(), said.append)
    assert images.steps.startswith(f"{PREFIX}/steps-cpu@sha256:")
    assert images.trainer.startswith(f"{PREFIX}/trainer-cpu@sha256:")
    assert sum(line.startswith("building") for line in said) == 2
    assert ensure_images(config, io.StringIO(), said.append) == images
    assert project.world.writes["build"] == 2
    assert project.images.moved == []


def test_images_for_vertex_run_as_root_unless_another_user_is_set(project: FakeGoogle, tmp_path: Path) -> None:
    def users(**build: Any) -> set[str]:
        config = load(configuration(project, tmp_path, build=build))
        return {image.context.arguments["RUN_AS"] for image in wanted_images(config, print).values()}

    assert users() == {"0:0"}
    assert users(run_as="65534:65534") == {"65534:65534"}


def test_the_accelerator_changes_the_trainers_image_only(project: FakeGoogle, tmp_path: Path) -> None:
    path = configuration(project, tmp_path)
    by_hardware = {name: known_images(load(path, (), name), print) for name in ("cpu", "l4x4*2", "tpu-v5e-2x4")}
    names = [images.trainer.rpartition("/")[2].partition(":")[0] for images in by_hardware.values()]
    assert names == ["trainer-cpu", "trainer-gpu", "trainer-tpu"]
    assert len({images.steps for images in by_hardware.values()}) == 1
    assert accelerator_of(load(path, (), "t4x2").training_hardware) == "gpu"


def test_pytorch_models_are_evaluated_in_an_image_with_pytorch(project: FakeGoogle, tmp_path: Path) -> None:
    path = configuration(project, tmp_path)
    config = load(path, ("train.engine=pytorch",), "l4x4*2")
    found = {
        role: uri.rpartition("/")[2].partition(":")[0] for role, uri in known_images(config, print).by_role().items()
    }
    assert found == {"steps": "steps-cpu", "trainer": "trainer-gpu-pytorch", "evaluation": "steps-gpu-pytorch"}
    images = ensure_images(config, io.StringIO(), print)
    from kfp import compiler

    from slipway.pipelines.platforms.vertex.steps import pipeline

    compiler.Compiler().compile(pipeline(config, images), str(tmp_path / "spec.yaml"))
    specification = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    executors = specification["deploymentSpec"]["executors"]
    assert executors["exec-evaluate"]["container"]["image"] == images.evaluation
    assert executors["exec-prepare-data"]["container"]["image"] == images.steps
    assert "steps-gpu-pytorch@sha256:" in images.evaluation


def test_without_another_image_the_model_is_served_by_slipways(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configuration(project, tmp_path, serving_image=None)

    def name(**settings: str) -> str:
        config = load(path, [f"{key.replace('_', '.')}={value}" for key, value in settings.items()])
        return wanted_images(config, print)["serving"].request.name

    assert name() == name(train_engine="jax") == "serving-cpu"
    assert name(serve_accelerator="gpu") == "serving-gpu"
    assert name(train_engine="pytorch") == "serving-gpu-pytorch"
    image = wanted_images(load(path), print)["serving"]
    assert image.context.arguments["RUN_AS"] == "65534:65534"
    assert {each.split("/")[2] for each in image.context.files if each.startswith("code/slipway/")} == {
        "__init__.py", "core", "extensions.py", "serving", "trainer", "training.py",
    }  # fmt: skip
    images = ensure_images(load(path), io.StringIO(), print)
    assert images.by_role().keys() == {"steps", "trainer", "serving"}
    _, specification, said = compiled(path)
    assert "not built" not in said
    assert candidate(specification)["container"] == {
        "image_uri": images.serving,
        "command": ["python", "-m", "slipway.serving"],
        "ports": [{"container_port": 8080}],
        "predict_route": "/predict",
        "health_route": "/health",
        "env": [],
    }
    assert f"{PREFIX}/serving-cpu@sha256:" in str(images.serving)


DATAFLOW = ("data.beam.runner=DataflowRunner", "data.store=gs://other/sets")


def dataflow_options(specification: dict[str, Any]) -> dict[str, Any]:
    """Return the options of Beam that the step prepare_data receives."""
    settings = specification["root"]["dag"]["tasks"]["prepare-data"]["inputs"]["parameters"]["settings"]
    return dict(json.loads(settings["runtimeValue"]["constant"])["beam"]["options"])


def test_dataflows_workers_have_an_image_by_digest_unless_one_is_named(project: FakeGoogle, tmp_path: Path) -> None:
    path = configuration(project, tmp_path)
    config = load(path, DATAFLOW)
    images = ensure_images(config, io.StringIO(), print)
    assert str(images.beam).startswith(f"{PREFIX}/beam-cpu@sha256:")
    assert images.by_role().keys() == {"steps", "trainer", "beam"}
    builds = list(project.builds.builds.values())
    build = builds[-1]["steps"][0]["args"]
    assert f"BASE={images.steps}" in build
    assert "@sha256:" in images.steps
    _, specification, _ = compiled(path, *DATAFLOW)
    assert dataflow_options(specification)["sdk_container_image"] == images.beam
    own = "data.beam.options.sdk_container_image=e.g/beam:1"
    _, specification, said = compiled(path, *DATAFLOW, own)
    assert dataflow_options(specification)["sdk_container_image"] == "e.g/beam:1"
    assert "beam-cpu" not in said
    assert "beam" not in wanted_images(load(path), print)


def candidate(specification: dict[str, Any]) -> dict[str, Any]:
    """Return what the step register_model registers."""
    branch = specification["components"]["comp-condition-1"]["dag"]["tasks"]["register-version"]
    return json.loads(branch["inputs"]["parameters"]["candidate"]["runtimeValue"]["constant"])


def test_only_the_image_of_a_custom_serving_function_contains_the_project(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configuration(project, tmp_path, serving_image=None)
    (tmp_path / "nets.py").write_text("def build(image_shape, classes): ...\n")
    (tmp_path / "my_serving.py").write_text("def load(folder): ...\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    monkeypatch.chdir(tmp_path)

    def project_of(*settings: str) -> set[str]:
        config = load(path, ("model.builder=nets:build", *settings))
        return set(wanted_images(config, print)["serving"].context.project)

    assert project_of() == set()
    own = ("serve.module=my_serving:load",)
    assert project_of(*own) == {"code/nets.py", "code/my_serving.py"}  # and not the configuration
    _, specification, _ = compiled(path, "model.builder=nets:build", *own)
    [variable] = candidate(specification)["container"]["env"]
    assert variable == {"name": "SLIPWAY_SERVE_MODULE", "value": "my_serving:load"}


def test_compile_uses_digests_of_built_images_and_tags_otherwise(project: FakeGoogle, tmp_path: Path) -> None:
    path = configuration(project, tmp_path)
    _, before, said = compiled(path)
    (tagged,) = images_of(before)
    assert tagged.startswith(f"{PREFIX}/steps-cpu:")
    assert said.count("not built yet") == 2
    assert project.world.writes.total() == 0
    images = ensure_images(load(path), io.StringIO(), print)
    text, after, _ = compiled(path)
    assert images_of(after) == {images.steps}
    assert "not built" not in compiled(path)[2]
    # What a run submits is what compile writes.
    from kfp import compiler

    from slipway.pipelines.platforms.vertex.steps import pipeline

    compiler.Compiler().compile(pipeline(load(path), images), str(tmp_path / "submitted.yaml"))
    assert (tmp_path / "submitted.yaml").read_text() == text
    # The step build_image gives the trainer's image to the plan, and always runs.
    assert planned_image(after)["taskOutputParameter"]["producerTask"] == "build-image"
    task = after["root"]["dag"]["tasks"]["build-image"]
    assert "cachingOptions" not in task or not task["cachingOptions"].get("enableCache")
    request = json.loads(task["inputs"]["parameters"]["request"]["runtimeValue"]["constant"])
    assert images.trainer.startswith(f"{PREFIX}/{request['name']}@")


def test_the_step_finds_the_image_or_builds_it_again(project: FakeGoogle, tmp_path: Path) -> None:
    from slipway.components.build_image.component import build_image

    images = ensure_images(load(configuration(project, tmp_path)), io.StringIO(), print)
    assert images.build is not None
    arguments = {name: getattr(images.build, name).model_dump_json() for name in ("request", "source", "settings")}
    assert build_image.python_func(**arguments) == images.trainer
    assert project.world.writes["build"] == 2
    project.images.tags = {key: value for key, value in project.images.tags.items() if key[1] != "trainer-cpu"}
    assert build_image.python_func(**arguments) == images.trainer
    assert project.world.writes["build"] == 3


def test_compile_without_credentials_writes_tags_and_warns(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    _, specification, said = compiled(configuration(project, tmp_path))
    assert "could not look up the images' digests: There are no credentials" in said
    assert all(":" in image.rpartition("/")[2] for image in images_of(specification))


def test_a_configured_image_is_neither_built_nor_looked_up(project: FakeGoogle, tmp_path: Path) -> None:
    image = f"{PREFIX}/mine@sha256:" + "0" * 64
    path = configuration(project, tmp_path, image=image)
    images = ensure_images(load(path), io.StringIO(), print)
    assert (images.steps, images.trainer, images.build) == (image, image, None)
    assert project.faults.calls.total() == 0


@pytest.mark.parametrize("image", ["europe-docker.pkg.dev/p/r/trainer", "localhost:5000/trainer:latest"])
def test_a_mutable_tag_is_refused(project: FakeGoogle, tmp_path: Path, image: str) -> None:
    with pytest.raises(UserError, match="latest is not") as error:
        load(configuration(project, tmp_path, image=image))
    assert error.value.setting == "vertex.image"


def test_the_build_command_prints_digests(project: FakeGoogle, tmp_path: Path) -> None:
    path = str(configuration(project, tmp_path))
    result = CliRunner().invoke(app, ["config", "build", "--target", "vertex", "-c", path, "--json"])
    assert result.exit_code == 0, result.output
    images = json.loads(result.stdout)
    assert set(images) == {"steps", "trainer"}
    assert all("@sha256:" in uri for uri in images.values())
    assert "DONE" in result.stderr


def for_tpu(project: FakeGoogle, folder: Path) -> Path:
    """A configuration for --target tpu that builds its image."""
    path = configuration(project, folder)
    values = yaml.safe_load(path.read_text())
    del values["vertex"]
    section = {
        "project": PROJECT,
        "zones": [f"{REGION}-b"],
        "bucket": f"gs://{BUCKET}",
        "service_account": f"tpu@{PROJECT}.iam.gserviceaccount.com",
        "endpoints": dict(project.endpoints),
    }
    path.write_text(yaml.safe_dump(values | {"tpu": section, "hardware": "tpu-v5e-1x1"}))
    return path


def test_a_build_for_target_tpu_that_fails_names_the_setting_of_the_section_tpu(
    project: FakeGoogle, tmp_path: Path
) -> None:
    take_away(project, f"buckets/{BUCKET}", "roles/storage.objectViewer")
    result = CliRunner().invoke(app, ["config", "build", "--target", "tpu", "-c", str(for_tpu(project, tmp_path))])
    assert result.exit_code != 0
    assert "setting:  tpu.build.service_account" in result.stderr
    assert "--role=roles/storage.objectViewer" in result.stderr


def test_the_build_command_builds_the_image_that_a_run_with_target_tpu_finds(
    project: FakeGoogle, tmp_path: Path
) -> None:
    path = for_tpu(project, tmp_path)
    result = CliRunner().invoke(app, ["config", "build", "--target", "tpu", "-c", str(path), "--json"])
    assert result.exit_code == 0, result.output
    built = json.loads(result.stdout)
    assert project.world.writes["build"] == 1
    config = load(path)
    assert config.tpu is not None
    assert built == {"trainer": trainer_image(config, config.tpu, io.StringIO(), print)}
    assert project.world.writes["build"] == 1
    listed = CliRunner().invoke(app, ["config", "build", "--target", "tpu", "-c", str(path), "--list"])
    assert listed.exit_code == 0, listed.output
    assert "trainer" in listed.stdout


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (["--builder", "bildah"], "--builder"),
        (["--no-push"], "--no-push"),
        (["--set", "vertex.build.repository=localhost:5000/slipway"], "vertex.build.repository"),
    ],
)
def test_an_impossible_build_is_refused_before_it_starts(
    project: FakeGoogle, tmp_path: Path, arguments: list[str], setting: str
) -> None:
    result = CliRunner().invoke(
        app, ["config", "build", "--target", "vertex", "-c", str(configuration(project, tmp_path)), *arguments]
    )
    assert result.exit_code == 2, result.output
    assert f"setting:  {setting}" in result.stderr
    assert project.world.writes["build"] == 0


def test_a_builder_that_is_not_installed_is_named(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load(configuration(project, tmp_path))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/buildah" if name == "buildah" else None)
    with pytest.raises(UserError, match="podman is not installed") as error:
        build_images(config, platform_of("vertex"), "podman", push=True, log=io.StringIO(), say=print)
    assert error.value.nearest == "buildah"


def test_the_users_own_modules_are_found(project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/__init__.py").touch()
    (tmp_path / "samples.py").touch()
    monkeypatch.chdir(tmp_path)
    values = load(Path(__file__).parents[3] / "configs/digits.yaml").model_dump(by_alias=True)
    values["model"]["builder"] = "nets.small:build"
    values["data"]["source"] = "samples:examples"
    found = own_code(RunConfig.model_validate(values))
    assert found == {"nets": tmp_path / "nets", "samples": tmp_path / "samples.py"}
    values["model"]["builder"] = "slipway.trainer.models.digits:build"
    values["data"]["source"] = "digits"
    assert own_code(RunConfig.model_validate(values)) == {}
    hooked = {**values, "train": {**values["train"], "loss": "samples:loss", "metrics": {"far": "nets.small:far"}}}
    assert own_code(RunConfig.model_validate(hooked)) == found
    sliced = {**values, "evaluate": {"slices": ["width>5", "samples:camera"]}}
    assert own_code(RunConfig.model_validate(sliced)) == {"samples": tmp_path / "samples.py"}
    own = {"module": "only.in_the_image", "image": "registry/own:1"}
    program = {**values, "model": None, "train": own, "evaluate": {"module": "samples:score"}}
    assert own_code(RunConfig.model_validate(program)) == {"samples": tmp_path / "samples.py"}


@pytest.mark.parametrize("target", ["vertex", "tpu"])
def test_compile_in_no_checkout_names_the_images_of_the_later_one(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    path = for_tpu(project, tmp_path) if target == "tpu" else configuration(project, tmp_path)
    values = yaml.safe_load(path.read_text())
    values["model"]["builder"] = "nets:build"
    path.write_text(yaml.safe_dump(values))
    (tmp_path / "nets.py").write_text("from slipway.trainer.models.digits import build as build\n")
    monkeypatch.chdir(tmp_path)

    def compiled(spec: str) -> str:
        result = CliRunner().invoke(app, ["config", "compile", "-c", path.name, "--target", target, "-o", spec])
        assert result.exit_code == 0, result.output
        return (tmp_path / spec).read_text()

    before = compiled("one.yaml")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "nets.py")
    assert compiled("two.yaml") == before


def test_a_runs_own_configuration_is_in_none_of_its_images(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configuration(project, tmp_path)
    values = yaml.safe_load(path.read_text())
    values["model"]["builder"] = "nets:build"
    path.write_text(yaml.safe_dump(values | {"name": "not a name"}))
    (tmp_path / "nets.py").touch()
    (tmp_path / "names.yaml").write_text("daisy: 1\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    monkeypatch.chdir(tmp_path)
    images = wanted_images(load(Path(path.name), ["name=good"]), print)
    assert {Path(name).name for name in images["trainer"].context.project} == {"nets.py", "names.yaml"}


@pytest.mark.extension("bigquery")
def test_the_query_of_a_source_is_in_the_image(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configuration(project, tmp_path)
    (tmp_path / "houses.sql").write_text("SELECT 1")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "--all")
    monkeypatch.chdir(tmp_path)
    for source, content in (("houses.sql", {"code/houses.sql"}), ("gs://b/houses.sql", set()), ("p.d.t", set())):
        images = wanted_images(load(Path(path.name), [f"data.source=bigquery:{source}"]), print)
        assert set(images["trainer"].context.project) == content


def test_a_build_lists_what_the_images_contain_of_the_project(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configuration(project, tmp_path)
    values = yaml.safe_load(path.read_text()) | {"build": {"include": ["*.h5"]}}
    values["model"]["builder"] = "nets:build"
    path.write_text(yaml.safe_dump(values))
    for name, size in {"nets.py": 0, "layers.py": 20, "backbone.h5": 2_000_000, "forgotten.py": 0}.items():
        (tmp_path / name).write_bytes(b"#" * size)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "nets.py", "layers.py")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["config", "build", "-c", str(path), "--target", "vertex", "--list"])
    assert result.exit_code == 0, result.output
    steps, trainer = result.stdout.split("\n\n")
    for image, text in (("steps-cpu", steps), ("trainer-cpu", trainer)):
        first, *lines = text.splitlines()
        assert first.startswith(f"{PREFIX}/{image}:")
        listed = {line.split("bytes")[1].strip(): line.split()[0] for line in lines}
        assert listed.pop("backbone.h5") == "2,000,000"
        assert set(listed) >= {"nets.py", "layers.py", "in 3 files of the project"}
    assert "does not track it: forgotten.py" in result.stderr
    assert project.world.writes.total() == 0
    (contents, _) = json.loads(
        CliRunner().invoke(app, ["config", "build", "-c", str(path), "--target", "vertex", "--list", "--json"]).stdout
    )
    assert contents["project"] == {"backbone.h5": 2_000_000, "layers.py": 20, "nets.py": 0}


def test_a_projects_package_wins_over_an_installed_one_of_its_name(
    project: FakeGoogle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, installed = tmp_path / "project", tmp_path / "installed"
    for folder in (own / "trainer", installed / "trainer"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    (own / "trainer/task.py").write_text("def examples(): ...\n")
    monkeypatch.setattr("sys.path", [str(installed), *sys.path])
    monkeypatch.chdir(own)
    values = load(Path(__file__).parents[3] / "configs/digits.yaml").model_dump(by_alias=True)
    config = RunConfig.model_validate({**values, "model": None, "train": {"module": "trainer.task"}})
    assert own_code(config) == {"trainer": own / "trainer"}
    assert (
        model_builder(Context(config, platform_of("local"), False, own)) == f"trainer.task in {own / 'trainer/task.py'}"
    )
    assert builder.load("trainer.task:examples").__code__.co_filename == str(own / "trainer/task.py")
    del sys.modules["trainer"], sys.modules["trainer.task"]
    (own / "trainer/__init__.py").unlink()
    monkeypatch.setattr("sys.path", [str(installed), *sys.path])
    with pytest.raises(UserError, match=r"The folder trainer has no __init__\.py") as error:
        model_builder(Context(config, platform_of("local"), False, own))
    assert error.value.fix == "touch trainer/__init__.py"
