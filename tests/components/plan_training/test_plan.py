"""plan_training: batch per replica, number of steps, complete specifications."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway.components.plan_training import component
from slipway.components.plan_training.plan import ELEMENT_BYTES, plan_training
from slipway.components.worker_pools import variables_of
from slipway.core.errors import UserError
from slipway.core.manifest import FILE_NAME, Manifest, Shard, Split
from slipway.pipelines.hardware import parse
from slipway.trainer.config import JobConfig, ModelSettings, TrainSettings
from slipway.trainer.distributed.verification import verified_in_shell
from slipway.trainer.engines.builder import example_elements

MODEL = ModelSettings(builder="a.b:c", arguments={"width": 3, "rate": 0.5})


def manifest(examples: int, shards: int) -> Manifest:
    split = Split(
        examples=examples,
        classes={"a": examples},
        shards=[Shard(file=f"s{n}", examples=examples // shards, bytes=1, sha256="") for n in range(shards)],
    )
    return Manifest(
        name="d", fingerprint="f", source="digits", settings={}, classes=["a"], image_size=(8, 8), channels=1,
        resize=False, encodings=["png"], splits={"train": split},
    )  # fmt: skip


def pools(replicas: int) -> list[dict]:
    machine = {"machine_type": "n1-standard-4"}
    result = [{"replica_count": 1, "machine_spec": machine}]
    return result + ([{"replica_count": replicas - 1, "machine_spec": machine}] if replicas > 1 else [])


def plan(replicas=1, devices=0, available=1000, shards=4, image="", model=MODEL, memory=0, **train):
    settings = TrainSettings(**({"epochs": 1} | train))
    return plan_training(pools(replicas), devices, manifest(available, shards), "/data", model, settings, image, memory)


def test_every_pool_runs_the_trainer_with_the_whole_job():
    result = plan(replicas=3, batch_size=48, image="host/image@sha256:1")
    assert [spec["replica_count"] for spec in result.worker_pool_specs] == [1, 2]
    for spec in result.worker_pool_specs:
        container = spec["container_spec"]
        assert container["image_uri"] == "host/image@sha256:1"
        assert container["command"] == ["python", "-m", "slipway.trainer"]
        flag, text = container["args"]
        job = JobConfig.model_validate_json(text)
        assert flag == "--config"
        assert job.model == MODEL
        assert job.data == "/data"
        assert job.plan.batch_per_replica == 16


def test_a_setting_that_is_switched_off_stays_off():
    _, text = plan(checkpoint={"every_seconds": None}).worker_pool_specs[0]["container_spec"]["args"]
    assert JobConfig.model_validate_json(text).train.checkpoint.every_seconds is None


def test_without_an_image_none_is_named():
    assert "image_uri" not in plan().worker_pool_specs[0]["container_spec"]


@pytest.mark.parametrize(
    ("train", "steps"),
    [
        ({"epochs": 2, "batch_size": 64}, 30),
        ({"epochs": 0.5, "batch_size": 100}, 5),
        ({"epochs": 0.1, "batch_size": 500}, 1),
        ({"epochs": None, "steps": 7}, 7),
        ({"epochs": None, "examples": 1001, "batch_size": 100}, 11),
    ],
)
def test_steps_are_exact(train, steps):
    assert plan(**train).plan.steps == steps


@pytest.mark.parametrize(
    ("arguments", "setting", "fix"),
    [
        ({"replicas": 3, "batch_size": 64}, "train.batch_size", "--set train.batch_size=63"),
        ({"replicas": 2, "devices": 4, "batch_size": 20}, "train.batch_size", "--set train.batch_size=16"),
        ({"available": 50, "batch_size": 64}, "train.batch_size", "--set train.batch_size=50"),
        ({"replicas": 8, "shards": 4, "batch_size": 64}, "hardware", "use 4 replicas"),
        ({"devices": 8, "shards": 4, "batch_size": 64, "engine": "pytorch"}, "hardware", "use 4 devices"),
        ({"replicas": 2, "available": 1, "batch_size": 64}, "train.batch_size", "use fewer replicas"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, setting, fix):
    with pytest.raises(UserError) as caught:
        plan(**arguments)
    assert caught.value.setting == setting
    assert caught.value.fix.startswith(fix)


@given(replicas=st.integers(1, 16), batch=st.integers(1, 512), examples=st.integers(1, 5000))
def test_the_proposed_batch_is_always_accepted(replicas, batch, examples):
    try:
        result = plan(replicas=replicas, shards=16, available=examples, batch_size=batch).plan
    except UserError as error:
        if error.nearest is None:
            assert examples < replicas
            return
        if int(error.nearest) > examples:
            return
        result = plan(replicas=replicas, shards=16, available=examples, batch_size=int(error.nearest)).plan
    assert result.batch_per_replica * replicas * result.steps_per_epoch <= examples
    assert result.steps >= 1


CONVOLUTION = ModelSettings(builder="slipway.trainer.models.digits:build")


def test_a_rehearsals_batch_is_the_largest_that_fits_and_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPWAY_EVENTS", str(tmp_path / "events"))
    each = example_elements("tensorflow", CONVOLUTION, manifest(8, 4)) * ELEMENT_BYTES
    fitted = plan(
        replicas=2, devices=2, batch_size=512, model=CONVOLUTION, memory=int(each * 103.5), steps=3, epochs=None
    )
    assert fitted.plan.batch_per_replica * 2 == 100
    assert "batch size 100: 512" in (tmp_path / "events").read_text()
    assert plan(batch_size=512, model=CONVOLUTION, memory=each * 512).plan.batch_per_replica == 512
    with pytest.raises(UserError, match="cannot rehearse"):
        plan(replicas=2, batch_size=512, model=CONVOLUTION, memory=each)


def test_a_training_module_of_ones_own_is_run_in_every_pool_and_told_where_the_data_is():
    settings = TrainSettings(module="my.training", arguments=["--epochs", "3"])
    image = "host/image@sha256:1"
    result = plan_training(pools(3), 0, manifest(1000, 4), "gs://bucket/set", None, settings, image)
    assert result.plan is None
    assert [spec["replica_count"] for spec in result.worker_pool_specs] == [1, 2]
    for spec in result.worker_pool_specs:
        container = spec["container_spec"]
        assert container["command"] == ["python", "-m", "slipway.trainer.launch", "my.training"]
        assert container["args"] == ["--epochs", "3"]
        assert container["image_uri"] == image
        assert {"name": "SLIPWAY_DATA", "value": "gs://bucket/set"} in container["env"]


def test_a_module_may_have_a_process_per_device():
    settings = TrainSettings(module="my.training", processes="per_device")
    result = plan_training(pools(1), 0, manifest(1000, 4), "/data", None, settings, "")
    (spec,) = result.worker_pool_specs
    launcher = ["python", "-m", "slipway.trainer.launch", "--processes", "per_device", "my.training"]
    assert spec["container_spec"]["command"] == launcher
    with pytest.raises(UserError, match="processes requires a custom training module"):
        TrainSettings(epochs=1, processes=2)
    for other in ({"command": ["julia", "fit.jl"]}, {"module": "my.training", "image": "host/image@sha256:1"}):
        with pytest.raises(UserError, match="processes requires train\\.module"):
            TrainSettings(processes=2, **other)


def test_an_image_of_ones_own_has_no_launcher():
    settings = TrainSettings(module="my.training", image="host/image@sha256:1")
    (spec,) = plan_training(pools(1), 0, None, "", None, settings, "").worker_pool_specs
    assert spec["container_spec"]["command"] == ["python", "-m", "my.training"]


def test_in_an_image_of_ones_own_a_shell_verifies_the_accelerators_of_a_known_command():
    image = "host/image@sha256:1"

    def container(**program):
        settings = TrainSettings(image=image, **program)
        (spec,) = plan_training(parse("l4x4").worker_pools(), 4, None, "", None, settings, "").worker_pool_specs
        return spec["container_spec"]

    for program, command in (
        ({"module": "my.training"}, ["python", "-m", "my.training"]),
        ({"command": ["julia", "fit.jl"]}, ["julia", "fit.jl"]),
    ):
        assert container(**program)["command"] == verified_in_shell(command)
    entry_point = container()
    assert "command" not in entry_point
    assert {"name": "SLIPWAY_ACCELERATORS", "value": "gpu:4"} in entry_point["env"]


@pytest.mark.parametrize("settings", [{"module": "my.training"}, {"epochs": 1}], ids=["custom module", "trainer"])
def test_machines_that_need_gib_start_the_program_with_its_environment(settings):
    wanting = [{**pool, "machine_spec": {"machine_type": "a4-highgpu-8g"}} for pool in pools(2)]
    train = TrainSettings(**settings)
    model = None if train.module else MODEL
    result = plan_training(wanting, 8, manifest(1024, 16), "gs://bucket/set", model, train, "host/image@sha256:1")
    program = ["python", "-m", *(["slipway.trainer.launch", train.module] if train.module else ["slipway.trainer"])]
    for spec in result.worker_pool_specs:
        starter = ["python", "-m", "slipway.trainer.distributed.nccl", "/usr/local/gib"]
        assert spec["container_spec"]["command"] == [*starter, *program]


@pytest.mark.parametrize(
    ("settings", "setting"),
    [
        ({"class_weights": {"b": 2.0}}, "train.class_weights.b"),
        ({"early_stop": {"patience": 2}}, "train.early_stop"),  # there is no validation split
        ({"export": "best"}, "train.export"),
        ({"engine": "pytorch", "xla": True}, "train.xla"),
        ({"batch_size": 48, "accumulation": 5}, "train.accumulation"),
    ],
)
def test_settings_that_the_data_or_the_engine_cannot_follow_are_refused(settings, setting):
    with pytest.raises(UserError) as caught:
        plan(**settings)
    assert caught.value.setting == setting


@given(replicas=st.integers(1, 4), devices=st.integers(1, 4), share=st.integers(1, 40), accumulation=st.integers(1, 12))
def test_a_devices_share_is_worked_through_in_equal_parts_or_refused(replicas, devices, share, accumulation):
    batch = replicas * devices * share
    settings = {"batch_size": batch, "accumulation": accumulation}
    if share % accumulation == 0:
        assert plan(replicas=replicas, devices=devices, **settings).plan.batch_per_replica == devices * share
        return
    with pytest.raises(UserError) as caught:
        plan(replicas=replicas, devices=devices, **settings)
    assert share % int(caught.value.nearest) == 0


def slice_plan(hosts: int, **settings: Any) -> Any:
    """Plan for a TPU slice of 4 chips per host."""
    train = TrainSettings(**(settings or {"engine": "jax", "steps": 10, "batch_size": 32}))
    pool: Any = {"replica_count": 1, "machine_spec": {"machine_type": "ct5lp-hightpu-4t", "tpu_topology": "4x4"}}
    return plan_training(
        [pool], 4 * hosts, manifest(1000, 4), "/data", None if train.module else MODEL, train, "", hosts=hosts
    )


def variables(result: Any) -> dict[str, str]:
    (pool,) = result.worker_pool_specs
    return {each["name"]: each["value"] for each in pool["container_spec"].get("env", [])}


def test_each_host_of_a_slice_reads_and_trains_as_a_replica_does():
    result = slice_plan(4)
    assert (result.plan.replicas, result.plan.batch_per_replica) == (4, 8)
    assert variables(result) == {"SLIPWAY_HOSTS": "4", "SLIPWAY_ACCELERATORS": "tpu:4"}
    with pytest.raises(UserError, match="4 shards, fewer than the 8 replicas"):
        slice_plan(8)
    assert variables(slice_plan(1)) == {"SLIPWAY_ACCELERATORS": "tpu:4"}


def test_a_custom_module_learns_the_number_of_hosts():
    found = variables(slice_plan(4, module="own.program"))
    assert (found["SLIPWAY_DATA"], found["SLIPWAY_HOSTS"]) == ("/data", "4")


def test_tensorflow_reaches_a_tpu_by_topology_through_pjrt():
    """As Vertex AI's page "Training with TPU accelerators" asks for TPU v5e."""
    assert variables(slice_plan(1, steps=10, batch_size=32))["NEXT_PLUGGABLE_DEVICE_USE_C_API"] == "true"


def test_a_program_receives_the_seed_where_it_asks_for_it() -> None:
    train = TrainSettings(module="fit", arguments=["--epochs", 10, "--seed=$(SEED)"], seed=7)
    [pool] = plan_training(
        pools=pools(1), devices=0, manifest=None, data="", model=None, train=train, image=""
    ).worker_pool_specs
    assert pool["container_spec"]["args"] == ["fit", "--epochs", "10", "--seed=7"][1:]
    assert train.model_dump()["seed"] == 7
    with pytest.raises(UserError, match=r"train\.seed applies only to Slipway's training loop"):
        TrainSettings(module="fit", arguments=["--seed", "1"], seed=7)


@pytest.mark.parametrize(
    ("hardware", "planned"),
    [
        ("cpu*2", None),
        ("l4x4*2", "gpu:4"),
        ("gpux2", "gpu:2"),
        ("tpu-v3-8", "tpu:8"),
        ("tpu-v5e-2x4", "tpu:8"),
        ("tpu-v5p-2x2x2", "tpu:4"),  # two hosts
    ],
)
@pytest.mark.parametrize("program", [{"module": "own.program"}, {"command": ("fit", "--fast")}, {"image": "e.g/own:1"}])
def test_every_replica_learns_the_accelerators_of_its_machine(hardware, planned, program):
    chosen = parse(hardware)
    result = plan_training(
        chosen.worker_pools(), chosen.accelerators_per_replica, None, "", None, TrainSettings(**program), "",
        hosts=chosen.machines_per_replica,
    )  # fmt: skip
    for pool in result.worker_pool_specs:
        assert variables_of(pool).get("SLIPWAY_ACCELERATORS") == planned
    if "command" in program:  # no launcher of Slipway's compares it with the machine
        verified = ["python", "-m", "slipway.trainer.distributed.verification", "fit", "--fast"]
        assert result.worker_pool_specs[0]["container_spec"]["command"] == (verified if planned else verified[3:])


def test_a_slice_of_an_unknown_column_is_refused_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    prepared = SimpleNamespace(path=str(tmp_path), uri="/data")
    (tmp_path / FILE_NAME).write_text(manifest(1000, 4).model_dump_json())
    given = {
        "pools": pools(1), "devices": 0, "model": MODEL.model_dump_json(), "train": '{"epochs": 1}', "image": "",
        "memory": 0, "hosts": 1, "dataset": prepared,
    }  # fmt: skip
    with pytest.raises(SystemExit):
        component.plan_training.python_func(slices=["width>4", "city"], **given)
    assert "no column city" in capsys.readouterr().err
    assert len(component.plan_training.python_func(slices=["width>4"], **given)) == 1
